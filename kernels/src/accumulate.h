// acc[c] += sum over a block of entries of weight * f(x[c], c): the inner loop of spmm and of attention.
#pragma once
#include "segments.h"

namespace {

// Where the weight of an entry's column comes from: nowhere, one for all columns, one a pair of vectors of columns, one a
// vector, the lanes of one vector of weights, or one a column.
enum class Weight { none, scalar, per_pair, per_vector, shuffled, per_column };

template <class T> struct Block {
    const T* const* x;   // a row of features for each of `count` entries
    const Acc<T>* w;     // weights, w_stride apart from entry to entry
    const T* const* wx;  // per_column: a row of weights for each entry
    int64_t w_stride;
    int64_t count;
    int64_t ready;  // entries of x that may be prefetched, count or more
    const T* row(int64_t k) const { return x[k]; }
    Acc<T> scalar(int64_t k) const { return w[k * w_stride]; }
};

// Calls f(vectors, tailed, col, tail) for the columns [col, end), some vectors at a time, `kMost` at most; of the last of them
// only `tail` columns are there where `tailed`. Both are constants.
template <class A, int kMost, class F> void for_columns(int64_t col, int64_t end, const F& f) {
    constexpr int W = kLanes<A>;
    const auto some = [&](auto vectors) {
        const int tail = int(end - col >= vectors * W ? 0 : (end - col) % W);
        if (tail) f(vectors, std::true_type{}, col, tail);
        else f(vectors, std::false_type{}, col, 0);
        col += vectors * W;
    };
    const auto whole = [&](auto vectors) {
        for (; col + vectors * W <= end; col += vectors * W) f(vectors, std::false_type{}, col, 0);
    };
    if constexpr (kMost >= 16) whole(std::integral_constant<int, 16>{});
    if constexpr (kMost >= 8) whole(std::integral_constant<int, 8>{});
    while (col < end) switch (least((end - col + W - 1) / W, int64_t(4))) {
        case 4: some(std::integral_constant<int, 4>{}); break;
        case 3: some(std::integral_constant<int, 3>{}); break;
        case 2: some(std::integral_constant<int, 2>{}); break;
        default: some(std::integral_constant<int, 1>{});
    }
}

// acc += the sums of NV vectors of columns, which are in the order of pairs where Pairs.
template <class T, int NV, bool Pairs> __attribute__((always_inline)) inline void add_columns(Vec<Acc<T>>* sum, Acc<T>* acc) {
    using A = Acc<T>;
    constexpr int W = kLanes<A>;
    if constexpr (Pairs)
#pragma GCC unroll 8
        for (int i = 0; i < NV; i += 2) {
            const Pair<A> pair = Paired<T>::in_order({sum[i], sum[i + 1]});
            sum[i] = pair.first, sum[i + 1] = pair.second;
        }
#pragma GCC unroll 16
    for (int i = 0; i < NV; ++i) store(acc + i * W, load(acc + i * W) + sum[i]);
}

struct AsItIs { template <class V> V operator()(V x, int64_t) const { return x; } };

// NV vectors of columns from `col`; the last holds `tail` columns where Tail. The block's terms are added up before
// they meet acc, so that a hub's sum of n terms errs by about kBlock + n / kBlock roundings, not n. f is given whole
// vectors, the last one's with zeros behind the tail.
template <class T, Weight M, int NV, bool Tail, class B, class F>
void accumulate_columns(const B& b, int64_t col, int64_t per_weight, int tail, Acc<T>* acc, const F& f) {
    using A = Acc<T>;
    using Int = typename Traits<A>::Int;
    constexpr int W = kLanes<A>;
    constexpr bool kPairs = NV % 2 == 0 && !Tail && std::is_same_v<F, AsItIs> && (M == Weight::none || M == Weight::scalar || M == Weight::per_pair);
    Vec<A> sum[NV];
#pragma GCC unroll 16
    for (int i = 0; i < NV; ++i) sum[i] = Vec<A>{};
    int64_t wi[NV];
    Int lane[NV];
    for (int i = 0; i < NV; ++i) {
        if (M == Weight::per_vector || M == Weight::per_pair) wi[i] = (col + i * W) / per_weight;
        if (M == Weight::shuffled)
            for (int q = 0; q < W; ++q) lane[i][q] = typename Traits<A>::Bits(least((col + i * W + q) / per_weight, int64_t(W - 1)));
    }
    for (int64_t k = 0; k < b.count; ++k) {
        if (k + kAhead < b.ready) prefetch(b.row(k + kAhead) + col, NV * W);
        const T* x = b.row(k) + col;
        A scalar = 1;
        const A* w = nullptr;
        if constexpr (M == Weight::scalar) scalar = b.scalar(k);
        else if constexpr (M != Weight::none && M != Weight::per_column) w = b.w + k * b.w_stride;
        Vec<A> lanes;
        if (M == Weight::shuffled) lanes = load(w);
        if constexpr (kPairs) {
#pragma GCC unroll 8
            for (int i = 0; i < NV; i += 2) {
                const Pair<A> v = Paired<T>::load_pair(x + i * W);
                const A factor = M == Weight::per_pair ? w[wi[i]] : scalar;
                if (M == Weight::none) sum[i] += v.first, sum[i + 1] += v.second;
                else sum[i] += v.first * factor, sum[i + 1] += v.second * factor;
            }
            continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < NV; ++i) {
            const bool partial = Tail && i == NV - 1;
            const Vec<A> value = f(partial ? load_n(x + i * W, tail) : load(x + i * W), col + i * W);
            if (M == Weight::none) sum[i] += value;
            if (M == Weight::scalar) sum[i] += value * scalar;
            if (M == Weight::per_vector || M == Weight::per_pair) sum[i] += value * w[wi[i]];
            if (M == Weight::shuffled) sum[i] += value * __builtin_shuffle(lanes, lane[i]);
            if constexpr (M == Weight::per_column) {
                const T* wx = b.wx[k] + col + i * W;
                sum[i] += value * (partial ? load_n(wx, tail) : load(wx));
            }
        }
    }
    add_columns<T, NV, kPairs>(sum, acc + col);
}

// All of the columns [0, n). acc has room for whole vectors. per_weight: columns that share a weight (per_vector,
// per_pair: a multiple of one or two vectors).
template <class T, Weight M, class B, class F = AsItIs>
void accumulate(const B& b, int64_t n, int64_t per_weight, Acc<T>* acc, const F& f = {}) {
    constexpr int kMost = M == Weight::shuffled ? 8 : 16;  // shuffling needs a register more for each vector
    for_columns<Acc<T>, kMost>(0, n, [&](auto vectors, auto tailed, int64_t col, int tail) {
        accumulate_columns<T, M, vectors, tailed>(b, col, per_weight, tail, acc, f);
    });
}

// Weights w (count, heads) on features (heads, dim). Reads a whole vector from each entry's weights on; acc takes
// whole vectors.
template <class T, class F = AsItIs>
void accumulate_heads(const Block<T>& b, int64_t heads, int64_t dim, Acc<T>* acc, const F& f = {}) {
    constexpr int64_t W = kLanes<Acc<T>>;
    if (heads == 1) return accumulate<T, Weight::scalar>(b, dim, dim, acc, f);
    if (dim % (2 * W) == 0) return accumulate<T, Weight::per_pair>(b, heads * dim, dim, acc, f);
    if (dim % W == 0) return accumulate<T, Weight::per_vector>(b, heads * dim, dim, acc, f);
    if (heads <= W) return accumulate<T, Weight::shuffled>(b, heads * dim, dim, acc, f);
    Scratch<const T*> x(b.ready);
    for (int64_t h = 0; h < heads; h += W) {
        for (int64_t k = 0; k < b.ready; ++k) x[k] = b.x[k] + h * dim;
        const int64_t some = least(W, heads - h);
        accumulate<T, Weight::shuffled>(Block<T>{x, b.w + h, nullptr, b.w_stride, b.count, b.ready}, some * dim, dim, acc + h * dim,
                                        [&](auto v, int64_t col) { return f(v, h * dim + col); });
    }
}

}  // namespace
