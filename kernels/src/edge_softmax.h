// Softmax of the logits of each row's edges. Sums are kept in double: a hub's million terms lose nothing.
#pragma once
#include "rows.h"

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
template <class T, class Args>
inline void store_attention(const Args& a, int64_t v, bool empty, Acc<T>* acc, const Acc<T>* max, const double* sum) {
    using A = Acc<T>;
    const int64_t n = a.heads * a.dim;
    for (int64_t h = 0; h < a.heads; ++h) {
        if (!empty) scale_row<A>(acc + h * a.dim, A(1 / sum[h]), a.dim);
        ((A*)a.max)[v * a.heads + h] = max[h];
        ((A*)a.sum)[v * a.heads + h] = A(sum[h]);
    }
    store_row((T*)a.out + v * n, (const A*)acc, n);
}

// Longest row (logits) whose exponentials are kept between the passes; those of longer rows are computed twice.
constexpr int64_t kKept = 1 << 14;

template <class I, class T> void edge_softmax_rows(const SoftmaxArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads;
    const T* logits = (const T*)a.logits;
    for_rows<I>(a.g, heads * 8, a.threads, [&](int64_t first, int64_t end) {
        const int64_t block = most(kKept / heads, int64_t(1));
        Scratch<A> e(block * heads), max(heads), inverse(heads);
        Scratch<double> sum(heads);
        const auto gather = [&](int64_t k, int64_t count) { gather_edges(g, logits, heads, k, count, a.g.nnz, e.data); };
        for (int64_t r = first; r < end; ++r) {
            const int64_t k0 = g.indptr[r], k1 = g.indptr[r + 1];
            const bool kept = k1 - k0 <= block;
            for (int64_t h = 0; h < heads; ++h) max[h] = -A(__builtin_inf()), sum[h] = 0;
            for (int64_t k = k0; k < k1; k += block) {
                const int64_t count = least(block, k1 - k);
                gather(k, count);
                max_heads<A>(e, count, heads, max);
            }
            for (int64_t k = k0; k < k1; k += block) {
                const int64_t count = least(block, k1 - k);
                if (!kept) gather(k, count);
                exp_heads<A>(e, max, count, heads, e);
                sum_heads<A>(e, count, heads, sum);
            }
            for (int64_t k = k0; k < k1; k += block) {
                const int64_t count = least(block, k1 - k);
                if (!kept) gather(k, count), exp_heads<A>(e, max, count, heads, e);
                for (int64_t h = 0; h < heads; ++h) inverse[h] = A(1 / sum[h]);
                scale_heads<A>(e, inverse, count, heads);
                scatter_edges(g, (const A*)e.data, heads, k, count, (T*)a.out);
            }
        }
    });
}

// grad_logit = a (grad - sum over the row of a * grad), with a made anew from the logits: a rounded weight would leave
// its error in every gradient of the row.
template <class I, class T> void edge_softmax_backward_rows(const SoftmaxArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads;
    const T *logits = (const T*)a.logits, *grads = (const T*)a.grad;
    for_rows<I>(a.g, heads * 8, a.threads, [&](int64_t first, int64_t end) {
        const int64_t block = most(kKept / heads, int64_t(1));
        Scratch<A> e(block * heads), d(block * heads), max(heads), inverse(heads), mean(heads);
        Scratch<double> sum(heads), dot(heads);
        const auto gather = [&](const T* from, int64_t k, int64_t count, A* to) { gather_edges(g, from, heads, k, count, a.g.nnz, to); };
        for (int64_t r = first; r < end; ++r) {
            const int64_t k0 = g.indptr[r], k1 = g.indptr[r + 1];
            const bool kept = k1 - k0 <= block;
            for (int64_t h = 0; h < heads; ++h) max[h] = -A(__builtin_inf()), sum[h] = dot[h] = 0;
            for (int64_t k = k0; k < k1; k += block) {
                const int64_t count = least(block, k1 - k);
                gather(logits, k, count, e);
                max_heads<A>(e, count, heads, max);
            }
            for (int64_t k = k0; k < k1; k += block) {
                const int64_t count = least(block, k1 - k);
                if (!kept) gather(logits, k, count, e);
                exp_heads<A>(e, max, count, heads, e);
                sum_heads<A>(e, count, heads, sum);
                gather(grads, k, count, d);
                for (int64_t i = 0; i < count * heads; ++i) d[i] *= e[i];
                sum_heads<A>(d, count, heads, dot);
            }
            for (int64_t h = 0; h < heads; ++h) inverse[h] = A(1 / sum[h]), mean[h] = A(dot[h] / sum[h]);
            for (int64_t k = k0; k < k1; k += block) {
                const int64_t count = least(block, k1 - k);
                if (!kept) gather(logits, k, count, e), exp_heads<A>(e, max, count, heads, e);
                gather(grads, k, count, d);
                for (int64_t j = 0; j < count; ++j)
                    for (int64_t h = 0; h < heads; ++h) e[j * heads + h] *= d[j * heads + h] - mean[h];
                scale_heads<A>(e, inverse, count, heads);
                scatter_edges(g, (const A*)e.data, heads, k, count, (T*)a.out);
            }
        }
    });
}

void edge_softmax(const SoftmaxArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) { edge_softmax_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a); });
}
void edge_softmax_backward(const SoftmaxArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) { edge_softmax_backward_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a); });
}

}  // namespace
