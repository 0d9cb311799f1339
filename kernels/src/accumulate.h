// acc[c] += sum over a block of entries of weight * x[c]: the inner loop of spmm and of attention.
#pragma once
#include "rows.h"

namespace {

enum class Weight { none, scalar, per_vector, per_lane };

template <class T> struct Block {
    const T* const* x;   // a row of features for each of `count` entries
    const Acc<T>* w;     // weights, w_stride apart from entry to entry (none: not read)
    const T* const* wx;  // per_lane: a row of weights for each entry
    int64_t w_stride;
    int64_t count;
};

constexpr int kAhead = 8;  // entries

template <class T> inline void prefetch(const T* p, int64_t n) {
    for (int64_t byte = 0; byte < n * int64_t(sizeof(T)); byte += 64) __builtin_prefetch((const char*)p + byte);
}

// NV vectors of columns from `col`; the last holds `tail` columns where Tail.
template <class T, Weight M, int NV, bool Tail>
void accumulate_columns(const Block<T>& b, int64_t col, int64_t per_weight, int tail, Acc<T>* acc) {
    using A = Acc<T>;
    constexpr int W = kLanes<A>;
    Vec<A> sum[NV];
    int64_t wi[NV];
    for (int i = 0; i < NV; ++i) {
        sum[i] = load(acc + col + i * W);
        wi[i] = M == Weight::per_vector ? (col + i * W) / per_weight : 0;
    }
    for (int64_t k = 0; k < b.count; ++k) {
        if (k + kAhead < b.count) prefetch(b.x[k + kAhead] + col, NV * W);
        const T* x = b.x[k] + col;
        const A* w = M == Weight::scalar || M == Weight::per_vector ? b.w + k * b.w_stride : nullptr;
#pragma GCC unroll 16
        for (int i = 0; i < NV; ++i) {
            const bool partial = Tail && i == NV - 1;
            const Vec<A> value = partial ? load_n(x + i * W, tail) : load(x + i * W);
            if (M == Weight::none) sum[i] += value;
            if (M == Weight::scalar) sum[i] += value * w[0];
            if (M == Weight::per_vector) sum[i] += value * w[wi[i]];
            if (M == Weight::per_lane) {
                const T* wx = b.wx[k] + col + i * W;
                sum[i] += value * (partial ? load_n(wx, tail) : load(wx));
            }
        }
    }
    for (int i = 0; i < NV; ++i) store(acc + col + i * W, sum[i]);
}

template <class T, Weight M, int NV>
void accumulate_some(const Block<T>& b, int64_t col, int64_t per_weight, int tail, Acc<T>* acc) {
    if (tail) accumulate_columns<T, M, NV, true>(b, col, per_weight, tail, acc);
    else accumulate_columns<T, M, NV, false>(b, col, per_weight, 0, acc);
}

// All of the columns [0, n). acc has room for whole vectors. per_weight: columns that share a weight (per_vector: a
// multiple of the vector).
template <class T, Weight M> void accumulate(const Block<T>& b, int64_t n, int64_t per_weight, Acc<T>* acc) {
    constexpr int W = kLanes<Acc<T>>;
    int64_t col = 0;
    while (col < n) {
        const int64_t left = (n - col + W - 1) / W;
        const int nv = int(left >= 16 ? 16 : left > 8 ? 8 : left);
        const bool last = nv == left;
        const int tail = last ? int((n - col) % W) : 0;
        switch (nv) {
            case 16: accumulate_some<T, M, 16>(b, col, per_weight, tail, acc); break;
            case 8: accumulate_some<T, M, 8>(b, col, per_weight, tail, acc); break;
            case 7: accumulate_some<T, M, 7>(b, col, per_weight, tail, acc); break;
            case 6: accumulate_some<T, M, 6>(b, col, per_weight, tail, acc); break;
            case 5: accumulate_some<T, M, 5>(b, col, per_weight, tail, acc); break;
            case 4: accumulate_some<T, M, 4>(b, col, per_weight, tail, acc); break;
            case 3: accumulate_some<T, M, 3>(b, col, per_weight, tail, acc); break;
            case 2: accumulate_some<T, M, 2>(b, col, per_weight, tail, acc); break;
            case 1: accumulate_some<T, M, 1>(b, col, per_weight, tail, acc); break;
        }
        col += int64_t(nv) * W;
    }
}

// Weights w (count, heads) on features (heads, dim): one pass a row where a vector lies inside one head, else one a
// head.
template <class T> void accumulate_heads(Block<T> b, int64_t heads, int64_t dim, Acc<T>* acc) {
    if (heads == 1) return accumulate<T, Weight::scalar>(b, dim, dim, acc);
    if (dim % kLanes<Acc<T>> == 0) return accumulate<T, Weight::per_vector>(b, heads * dim, dim, acc);
    using A = Acc<T>;
    for (int64_t k = 0; k < b.count; ++k) {
        if (k + kAhead < b.count) prefetch(b.x[k + kAhead], heads * dim);
        for (int64_t head = 0; head < heads; ++head) {
            const A w = b.w[k * b.w_stride + head];
            const T* x = b.x[k] + head * dim;
            A* to = acc + head * dim;
            for (int64_t i = 0; i < dim; ++i) to[i] += w * A(to_acc(x[i]));
        }
    }
}

}  // namespace
