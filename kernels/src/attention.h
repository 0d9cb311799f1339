// Fused GAT attention (Velickovic et al., 2018): a[u, v] = softmax over v's edges of leaky_relu(el[u] + er[v]),
// out[v] = sum of a[u, v] h[u]. Nothing is kept per edge: the backward pass recomputes a from max and sum.
#pragma once
#include "accumulate.h"
#include "dot.h"
#include "edge_softmax.h"

namespace {

template <class A> inline A leaky(A x, A slope) { return x >= 0 ? x : (x < 0 ? x * slope : x); }

// s (count, heads) = leaky_relu(far[indices] + near)
template <class I, class A>
inline void attention_logits(const I* ends, int64_t count, int64_t heads, const A* far, const A* near, A slope, A* s) {
    if (heads == 1) {
        const A y = near[0];
        for (int64_t j = 0; j < count; ++j) s[j] = leaky(far[ends[j]] + y, slope);
        return;
    }
    for (int64_t j = 0; j < count; ++j) {
        const A* x = far + int64_t(ends[j]) * heads;
        for (int64_t h = 0; h < heads; ++h) s[j * heads + h] = leaky(x[h] + near[h], slope);
    }
}

template <class I, class T> void attention_forward_rows(const AttentionArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads, dim = a.dim, n = heads * dim;
    const A *el = (const A*)a.el, *er = (const A*)a.er, slope = A(a.negative_slope);
    for_rows<I>(a.g, n + heads * 8, a.threads, [&](int64_t first, int64_t end) {
        RowSum<A> row(n);
        Scratch<A> s(kBlock * heads), max(heads);
        Scratch<double> sum(heads);
        Scratch<const T*> xs(kBlock);
        for (int64_t v = first; v < end; ++v) {
            const int64_t k0 = g.indptr[v], k1 = g.indptr[v + 1];
            row.clear();
            for (int64_t h = 0; h < heads; ++h) max[h] = -A(__builtin_inf()), sum[h] = 0;
            for (int64_t k = k0; k < k1; k += kBlock) {
                const int64_t count = least(kBlock, k1 - k);
                attention_logits(g.indices + k, count, heads, el, er + v * heads, slope, s.data);
                max_heads<A>(s, count, heads, max);
            }
            for (int64_t k = k0; k < k1; k += kBlock) {
                const int64_t count = least(kBlock, k1 - k);
                if (k1 - k0 > kBlock) attention_logits(g.indices + k, count, heads, el, er + v * heads, slope, s.data);
                exp_heads<A>(s, max, count, heads, s);
                sum_heads<A>(s, count, heads, sum);
                for (int64_t j = 0; j < count; ++j) xs[j] = (const T*)a.h + int64_t(g.indices[k + j]) * n;
                accumulate_heads<T>({xs, s, nullptr, heads, count}, heads, dim, row.block);
                row.close_block();
            }
            A* acc = row.all;
            for (int64_t h = 0; h < heads; ++h) {
                if (k1 > k0) scale_row<A>(acc + h * dim, A(1 / sum[h]), dim);
                ((A*)a.max)[v * heads + h] = max[h];
                ((A*)a.sum)[v * heads + h] = A(sum[h]);
            }
            store_row((T*)a.out + v * n, (const A*)acc, n);
        }
    });
}

constexpr int64_t kFew = 16;  // entries whose rows of grad stay cached between their two uses

// The attention weights a of the entries of a source u, made anew from what the forward pass kept.
template <class A> struct Weights {
    const AttentionArgs& args;
    Scratch<A> logits, max, inverse, a;
    explicit Weights(const AttentionArgs& x)
        : args(x), logits(kFew * x.heads), max(kFew * x.heads), inverse(kFew * x.heads), a(kFew * x.heads) {}

    template <class I> void make(int64_t u, const I* ends, int64_t count) {
        const int64_t heads = args.heads, n = count * heads;
        attention_logits(ends, count, heads, (const A*)args.er, (const A*)args.el + u * heads, A(args.negative_slope), logits.data);
        for (int64_t j = 0; j < count; ++j) {
            const int64_t v = ends[j];
            for (int64_t h = 0; h < heads; ++h) {
                max[j * heads + h] = ((const A*)args.max)[v * heads + h];
                inverse[j * heads + h] = A(1) / ((const A*)args.sum)[v * heads + h];
            }
        }
        constexpr int W = kLanes<A>;
        for (int64_t i = 0; i < n; i += W) {
            const int c = int(least(int64_t(W), n - i));
            if (c == W) store(a + i, exp_difference(load(logits + i), load(max + i)) * load(inverse + i));
            else store_n(a + i, exp_difference(load_n(logits + i, c), load_n(max + i, c)) * load_n(inverse + i, c), c);
        }
    }

    A slope(int64_t u, int64_t v, int64_t h) const {
        const int64_t heads = args.heads;
        const A x = ((const A*)args.er)[v * heads + h] + ((const A*)args.el)[u * heads + h];
        return x >= 0 ? A(1) : A(args.negative_slope);
    }
};

// Rows are sources: each gathers grad[v] of its destinations once, for the weighted sum and for the dot products
// d = grad[v] . h[u]. The gradient of a logit is a (d - D) slope, D the row's mean of d. `delta`, from the stored
// output, is D but for that output's rounding; how far it is off, e = sum of a (d - delta), is found on the way and
// taken out again: from grad_er by the caller, from grad_el by correct_grad_el. Sums over sources go into one part per
// range of rows, so that their order is fixed; a part holds, for a destination and head, the sums of a (d - delta)
// slope, of a (d - delta), and of a slope.
template <class I, class T> void attention_backward_rows(const AttentionArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads, dim = a.dim, n = heads * dim;
    const A* delta = (const A*)a.delta;
    for_ranges<I>(a.g, a.parts, a.threads, [&](int64_t first, int64_t end, int64_t part) {
        A* sums = (A*)a.sums + part * a.num_dst * heads * 3;
        RowSum<A> row(n);
        Weights<A> weights(a);
        Scratch<A> wide(n + kLanes<A>), d(kFew * heads), grad_el(heads);
        Scratch<const T*> ys(kFew);
        for (int64_t u = first; u < end; ++u) {
            const int64_t k0 = g.indptr[u], k1 = g.indptr[u + 1];
            row.clear();
            for (int64_t h = 0; h < heads; ++h) grad_el[h] = 0;
            load_row<T>(wide, (const T*)a.h + u * n, n);
            for (int64_t k = k0; k < k1; k += kFew) {
                const int64_t count = least(kFew, k1 - k);
                const I* ends = g.indices + k;
                for (int64_t j = 0; j < least(kFew, k1 - k - count); ++j)
                    prefetch((const T*)a.grad + int64_t(ends[count + j]) * n, n);
                for (int64_t j = 0; j < count; ++j) ys[j] = (const T*)a.grad + int64_t(ends[j]) * n;
                weights.make(u, ends, count);
                dots_by_head<T>(ys, count, wide, heads, dim, d);
                for (int64_t j = 0; j < count; ++j)
                    for (int64_t h = 0; h < heads; ++h) {
                        const int64_t i = j * heads + h, at = int64_t(ends[j]) * heads + h;
                        const A slope = weights.slope(u, ends[j], h), centred = weights.a[i] * (d[i] - delta[at]);
                        grad_el[h] += centred * slope;
                        sums[at * 3] += centred * slope;
                        sums[at * 3 + 1] += centred;
                        sums[at * 3 + 2] += weights.a[i] * slope;
                    }
                accumulate_heads<T>({ys, weights.a, nullptr, heads, count}, heads, dim, row.block);
                if ((k - k0) % kBlock == kBlock - kFew || k + kFew >= k1) row.close_block();
            }
            store_row((T*)a.grad_h + u * n, (const A*)row.all, n);
            for (int64_t h = 0; h < heads; ++h) ((A*)a.grad_el)[u * heads + h] = grad_el[h];
        }
    });
}

// grad_el[u] -= sum over u's edges of a slope e[v].
template <class I, class T> void correct_grad_el_rows(const AttentionArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads;
    for_rows<I>(a.g, heads * 8, a.threads, [&](int64_t first, int64_t end) {
        Weights<A> weights(a);
        Scratch<A> sum(heads);
        for (int64_t u = first; u < end; ++u) {
            const int64_t k0 = g.indptr[u], k1 = g.indptr[u + 1];
            for (int64_t h = 0; h < heads; ++h) sum[h] = 0;
            for (int64_t k = k0; k < k1; k += kFew) {
                const int64_t count = least(kFew, k1 - k);
                const I* ends = g.indices + k;
                weights.make(u, ends, count);
                for (int64_t j = 0; j < count; ++j)
                    for (int64_t h = 0; h < heads; ++h)
                        sum[h] += weights.a[j * heads + h] * weights.slope(u, ends[j], h) *
                                  ((const A*)a.delta)[int64_t(ends[j]) * heads + h];
            }
            for (int64_t h = 0; h < heads; ++h) ((A*)a.grad_el)[u * heads + h] -= sum[h];
        }
    });
}

void attention(const AttentionArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) { attention_forward_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a); });
}
void attention_backward(const AttentionArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) { attention_backward_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a); });
}
void correct_grad_el(const AttentionArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) { correct_grad_el_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a); });
}

}  // namespace
