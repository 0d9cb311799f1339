// Softmax of the logits of each row's edges. Sums are kept in double: a hub's million terms lose nothing.
#pragma once
#include <cmath>

#include "hubs.h"

namespace {

// e[i] = exp(x[i] - max) over n logits that share one maximum; returns nothing, x and e may be the same.
template <class A> inline void exp_all(const A* x, A max, int64_t n, A* e) {
    constexpr int W = kLanes<A>;
    const Vec<A> m = splat(max);
    int64_t i = 0;
    for (; i + W <= n; i += W) store(e + i, exp_difference(load(x + i), m));
    if (i < n) store_n(e + i, exp_difference(load_n(x + i, int(n - i)), m), int(n - i));
}

// Vectors of (count, heads) values that are the same for every entry: x, (heads,), over and over.
template <class A> class HeadLanes {
    static constexpr int W = kLanes<A>;
    const A* x;
    int64_t heads;
    Vec<A> lanes;
    Vec<A> made(int64_t i) const {
        A v[W];
        for (int j = 0; j < W; ++j) v[j] = x[(i + j) % heads];
        return load(v);
    }
  public:
    HeadLanes(const A* of, int64_t number) : x(of), heads(number), lanes(number == 1 ? splat(of[0]) : made(0)) {}
    // The vector from value i on, a multiple of kLanes.
    Vec<A> from(int64_t i) const { return W % heads == 0 ? lanes : made(i); }
};

// The same for (count, heads) logits with a maximum a head.
template <class A> inline void exp_heads(const A* x, const A* max, int64_t count, int64_t heads, A* e) {
    if (heads == 1) return exp_all(x, max[0], count, e);
    constexpr int W = kLanes<A>;
    const HeadLanes<A> m(max, heads);
    const int64_t n = count * heads;
    for (int64_t i = 0; i < n; i += W) {
        const int c = int(least(int64_t(W), n - i));
        if (c == W) store(e + i, exp_difference(load(x + i), m.from(i)));
        else store_n(e + i, exp_difference(load_n(x + i, c), m.from(i)), c);
    }
}

template <class A> inline void take_max(A v, A& max) {  // a NaN stays
    if (!(v <= max) && max == max) max = v;
}

template <class A> inline void max_heads(const A* x, int64_t count, int64_t heads, A* max) {
    constexpr int W = kLanes<A>;
    const int64_t n = count * heads;
    int64_t i = 0;
    if (W % heads == 0 && n >= 2 * W) {
        Vec<A> best = load(x);
        for (i = W; i + W <= n; i += W) {
            const Vec<A> v = load(x + i);
            best = (v <= best) | (best != best) ? best : v;
        }
        for (int j = 0; j < W; ++j) take_max(A(best[j]), max[j % heads]);
    }
    for (; i < n; i += heads)
        for (int64_t h = 0; h < heads; ++h) take_max(x[i + h], max[h]);
}

// sum[h] += the sum of e[:, h]. Reads a whole vector from each entry's e on, and from sum.
template <class A> inline void sum_heads(const A* e, int64_t count, int64_t heads, double* sum) {
    constexpr int W = kLanes<double>;
    if (heads == 1) {
        double part[8] = {};
        int64_t j = 0;
        for (; j + 8 <= count; j += 8)
            for (int q = 0; q < 8; q += W) store(part + q, load(part + q) + load_double(e + j + q));
        for (; j < count; ++j) part[j & 7] += e[j];
        sum[0] += ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
        return;
    }
    for (int64_t h = 0; h < heads; h += W) {
        VecD total = load(sum + h);
        for (int64_t j = 0; j < count; ++j) total += load_double(e + j * heads + h);
        const int c = int(least(int64_t(W), heads - h));
        if (c == W) store(sum + h, total);
        else store_n(sum + h, total, c);
    }
}

template <class A> inline void scale_heads(A* x, const A* factor, int64_t count, int64_t heads) {
    if (heads == 1) return scale_row(x, factor[0], count);
    for (int64_t j = 0; j < count; ++j)
        for (int64_t h = 0; h < heads; ++h) x[j * heads + h] *= factor[h];
}

// What attention leaves of a row v: `acc`, the sum of exp(logit - max) times features, over `sum`; and both of those.
// Of a hub's piece it leaves `acc` as it is.
template <class T, class Args>
inline void store_attention(const Args& a, int64_t v, bool empty, Acc<T>* acc, const Acc<T>* max, const double* sum) {
    using A = Acc<T>;
    const int64_t n = a.heads * a.dim;
    for (int64_t h = 0; h < a.heads; ++h) {
        if (!empty && !a.g.pieces) scale_row<A>(acc + h * a.dim, A(1 / sum[h]), a.dim);
        ((A*)a.max)[v * a.heads + h] = max[h];
        ((A*)a.sum)[v * a.heads + h] = A(sum[h]);
    }
    if (a.g.pieces) store_row((A*)a.out + v * n, (const A*)acc, n);
    else store_row((T*)a.out + v * n, (const A*)acc, n);
}

// Stores the attention of a hub from its pieces': their sums and maxima (kPieces, heads), and out (kPieces, heads, dim).
template <class T, class Args>
void merge_attention(const Args& a, int64_t hub, const Acc<T>* maxima, const Acc<T>* sums, Acc<T>* out) {
    using A = Acc<T>;
    const int64_t n = a.heads * a.dim;
    const Scratch<A> max(a.heads), acc(n);
    const Scratch<double> sum(a.heads);
    std::copy(maxima, maxima + a.heads, max.data);
    max_heads<A>(maxima, kPieces, a.heads, max);
    for (int64_t i = 0; i < kPieces * a.heads; ++i) {
        const int64_t h = i % a.heads;
        if (maxima[i] == -A(__builtin_inf())) continue;  // all of its logits are
        const A factor = std::exp(maxima[i] - max[h]);
        sum[h] += double(sums[i]) * factor;
        scale_row(out + i * a.dim, factor, a.dim);
        add_row<A>(acc + h * a.dim, out + i * a.dim, a.dim);
    }
    store_attention<T>(a, hub, false, acc, max, sum);
}

// The passes over a row's entries [k0, k1): the largest logit, the sums of exp(logit - max) and, with a gradient coming
// in, of those times it, and the result, which is the weight a, or a (grad - sum over the row of a grad), with a made
// anew from the logits: a rounded weight would leave its error in every gradient of the row.
template <class I, class T> class SoftmaxPasses {
    using A = Acc<T>;
    static constexpr int64_t kKept = 1 << 14;  // values of a row that are kept between the passes; those of longer rows are made twice
    const SoftmaxArgs& args;
    const View<I> g;
    const bool keeps;
    const int64_t heads, block;
    const Scratch<A> e, d, inverse, mean;

    void gather(const void* from, int64_t k, int64_t count, A* to) const {
        gather_edges(g, (const T*)from, heads, k, count, int64_t(g.indptr[args.g.rows]), to);
    }
    bool kept(int64_t k0, int64_t k1) const { return keeps && k1 - k0 <= block; }
    template <class F> void each_block(int64_t k0, int64_t k1, const F& f) const {
        for (int64_t k = k0; k < k1; k += block) f(k, least(block, k1 - k));
    }

  public:
    // `keep`: a row's passes come one after the other.
    SoftmaxPasses(const SoftmaxArgs& a, bool keep)
        : args(a), g(a.g), keeps(keep), heads(a.heads), block(most(kKept / a.heads, int64_t(1))), e(block * heads), d(a.grad ? block * heads : 0), inverse(heads), mean(heads) {}

    void find_max(int64_t k0, int64_t k1, A* max) const {
        std::fill(max, max + heads, -A(__builtin_inf()));
        each_block(k0, k1, [&](int64_t k, int64_t count) {
            gather(args.logits, k, count, e);
            max_heads<A>(e, count, heads, max);
        });
    }

    void add_up(int64_t k0, int64_t k1, const A* max, double* sum, double* dot) const {
        std::fill(sum, sum + heads, 0.0), std::fill(dot, dot + heads, 0.0);
        each_block(k0, k1, [&](int64_t k, int64_t count) {
            if (!kept(k0, k1)) gather(args.logits, k, count, e);
            exp_heads<A>(e, max, count, heads, e);
            sum_heads<A>(e, count, heads, sum);
            if (!args.grad) return;
            gather(args.grad, k, count, d);
            for (int64_t i = 0; i < count * heads; ++i) d[i] *= e[i];
            sum_heads<A>(d, count, heads, dot);
        });
    }

    void write(int64_t k0, int64_t k1, const A* max, const double* sum, const double* dot) const {
        for (int64_t h = 0; h < heads; ++h) inverse[h] = A(1 / sum[h]), mean[h] = A(dot[h] / sum[h]);
        each_block(k0, k1, [&](int64_t k, int64_t count) {
            if (!kept(k0, k1)) gather(args.logits, k, count, e), exp_heads<A>(e, max, count, heads, e);
            if (args.grad) {
                gather(args.grad, k, count, d);
                for (int64_t j = 0; j < count; ++j)
                    for (int64_t h = 0; h < heads; ++h) e[j * heads + h] *= d[j * heads + h] - mean[h];
            }
            scale_heads<A>(e, inverse, count, heads);
            scatter_edges(g, (const A*)e.data, heads, k, count, (T*)args.out);
        });
    }
};

template <class I, class T> void softmax_rows(const SoftmaxArgs& a) {
    const I* indptr = (const I*)a.g.indptr;
    for_rows<I>(a.g, a.heads * 8, a.threads, [&](int64_t first, int64_t end) {
        const SoftmaxPasses<I, T> passes(a, true);
        const Scratch<Acc<T>> max(a.heads);
        const Scratch<double> sum(a.heads), dot(a.heads);
        for (int64_t r = first; r < end; ++r) {
            const int64_t k0 = indptr[r], k1 = indptr[r + 1];
            passes.find_max(k0, k1, max);
            passes.add_up(k0, k1, max, sum, dot);
            passes.write(k0, k1, max, sum, dot);
        }
    });
}

template <class I, class T> void softmax_hub(SoftmaxArgs a, int64_t hub) {
    using A = Acc<T>;
    const Pieces<I> pieces(a.g, hub);
    a.g = pieces.rows;
    const int64_t heads = a.heads;
    const Scratch<A> max(kPieces * heads);
    const Scratch<double> sum(kPieces * heads), dot(kPieces * heads);
    const auto pass = [&](const auto& f) {
        for_rows<I>(a.g, heads * 8, a.threads, [&](int64_t first, int64_t end) {
            const SoftmaxPasses<I, T> passes(a, false);
            for (int64_t i = first; i < end; ++i) f(passes, pieces.first(i), pieces.first(i + 1), i * heads);
        });
    };
    pass([&](const auto& passes, int64_t k0, int64_t k1, int64_t at) { passes.find_max(k0, k1, max + at); });
    max_heads<A>(max, kPieces, heads, max);
    pass([&](const auto& passes, int64_t k0, int64_t k1, int64_t at) { passes.add_up(k0, k1, max, sum + at, dot + at); });
    add_pieces<double>(sum, heads), add_pieces<double>(dot, heads);
    pass([&](const auto& passes, int64_t k0, int64_t k1, int64_t) { passes.write(k0, k1, max, sum, dot); });
}

void edge_softmax(const SoftmaxArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        const auto others = [&](const Rows& rows, int64_t) {
            SoftmaxArgs of = a;
            of.g = rows;
            softmax_rows<I, T>(of);
        };
        around_hubs<I>(a.g, others, [&](int64_t hub) { softmax_hub<I, T>(a, hub); });
    });
}

}  // namespace
