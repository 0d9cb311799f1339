// Fused attention whose logits read the whole rows of both ends: GATv2 (Brody et al., 2022) and dot products. A logit is
// a sum over a head's columns of `pair`, whose derivative by the near row is factor * by_near; both are symmetric in far
// and near. Nothing is kept per edge: the backward pass makes the weights anew from max and sum.
#pragma once
#include "accumulate.h"
#include "dot.h"
#include "edge_softmax.h"

namespace {

template <class A> struct LeakySum {  // factor * leaky_relu(far + near)
    A slope;
    struct Slope {
        A slope;
        const A* near;
        Vec<A> operator()(Vec<A> far, int64_t i) const { return far + load(near + i) > 0 ? splat(A(1)) : splat(slope); }
    };
    Vec<A> pair(Vec<A> far, Vec<A> near, Vec<A> factor) const {
        const Vec<A> z = far + near;
        return (z > 0 ? z : z * slope) * factor;
    }
    Slope by_near(const A* near) const { return {slope, near}; }
};

template <class A> struct Product {  // factor * far * near
    Vec<A> pair(Vec<A> far, Vec<A> near, Vec<A> factor) const { return far * (near * factor); }
    AsItIs by_near(const A*) const { return {}; }
};

// Entries whose rows, `bytes` each, stay in the first-level cache between their uses.
inline int64_t cached_entries(int64_t bytes) { return most(int64_t(4), least(int64_t(64), (16 << 10) / most(bytes, int64_t(1)) / 4 * 4)); }

template <class T, class Kind>
void pair_logits(const PairArgs& a, const Kind& kind, const T* const* ends, int64_t count, const Acc<T>* near, Acc<T>* out) {
    const auto* factor = (const Acc<T>*)a.factor;
    sums_by_head<T>(ends, count, a.heads, a.dim, out, [&](Vec<Acc<T>> far, int64_t i, int lanes) {
        return kind.pair(far, load_some(near + i, lanes), load_some(factor + i, lanes));
    });
}

// Rows are destinations. A source's row is gathered once, for the logit and for the sum: a row's softmax is made of the
// entries seen so far and rescaled when its largest logit grows.
template <class I, class T, class Kind> void pair_forward_rows(const PairArgs& a, const Kind& kind) {
    using A = Acc<T>;
    constexpr A low = -A(__builtin_inf());
    const View<I> g(a.g);
    const int64_t heads = a.heads, dim = a.dim, n = heads * dim, stride = padded<A>(n), few = cached_entries(n * sizeof(T));
    const Tiling t = tiling_for(a.g, a.h, n * sizeof(T), stride * sizeof(A));
    for_rows<I>(a.g, t, 2 * n + heads * 8, a.threads, [&](const Span& span) {
        const int64_t slots = least(t.chunk, span.end - span.first);
        Scratch<A> acc(slots * stride), max(slots * heads), near(stride), sum(stride), e(few * heads + kLanes<A>);
        Scratch<A> before(heads), base(heads), shrink(heads), kept(heads);
        Scratch<double> total(slots * heads);
        Scratch<const T*> xs(kBlock);
        for_segments(
            g, t, span, {},
            [&](int64_t, int64_t slot) {
                memset(acc + slot * stride, 0, stride * sizeof(A));
                for (int64_t h = 0; h < heads; ++h) max[slot * heads + h] = low, total[slot * heads + h] = 0;
            },
            [&](const Segment& s) {
                for (int64_t j = 0; j < s.count; ++j) xs[s.at + j] = (const T*)a.h + int64_t(g.indices[s.k + j]) * n;
            },
            [&](const Segment& s) {
                A* top = max + s.slot * heads;
                load_row<T>(near, (const T*)a.h_dst + s.row * n, n);
                memset(sum, 0, stride * sizeof(A));
                for (int64_t h = 0; h < heads; ++h) kept[h] = 1;
                for (int64_t j0 = 0; j0 < s.count; j0 += few) {
                    const T* const* ends = xs + s.at + j0;
                    const int64_t count = least(few, s.count - j0);
                    for (int64_t j = count; j < least(count + few, s.ready - j0); ++j) prefetch(ends[j], n);
                    pair_logits<T>(a, kind, ends, count, near, e.data);
                    memcpy(before, top, heads * sizeof(A));
                    max_heads<A>(e, count, heads, top);
                    for (int64_t h = 0; h < heads; ++h) base[h] = top[h] == low ? 0 : top[h];
                    exp_heads<A>(before, base, 1, heads, shrink);
                    for (int64_t h = 0; h < heads; ++h) {
                        if (top[h] == before[h]) continue;
                        total[s.slot * heads + h] *= shrink[h], kept[h] *= shrink[h];
                        scale_row<A>(sum + h * dim, shrink[h], dim);
                    }
                    exp_heads<A>(e, base, count, heads, e);
                    sum_heads<A>(e, count, heads, total + s.slot * heads);
                    accumulate_heads<T>({ends, e, nullptr, heads, count, count}, heads, dim, sum);
                }
                A* row = acc + s.slot * stride;
                for (int64_t h = 0; h < heads; ++h)
                    for (int64_t i = h * dim; i < (h + 1) * dim; ++i) row[i] = row[i] * kept[h] + sum[i];
            },
            [&](int64_t v, int64_t slot) {
                A* row = acc + slot * stride;
                for (int64_t h = 0; h < heads; ++h) {
                    const double whole = total[slot * heads + h];
                    if (g.indptr[v] < g.indptr[v + 1]) scale_row<A>(row + h * dim, A(1 / whole), dim);
                    ((A*)a.max)[v * heads + h] = max[slot * heads + h];
                    ((A*)a.sum)[v * heads + h] = A(whole);
                }
                store_row((T*)a.out + v * n, (const A*)row, n);
            });
    });
}

// The attention weights a of a block of entries, and a (d - delta), d the dot products of the far and the near ends'
// rows of features and of gradients.
template <class T, class Kind> struct PairWeights {
    using A = Acc<T>;
    const PairArgs& args;
    const Kind& kind;
    Scratch<const A*> dst;  // of each entry: what args.dst has of its destination
    Scratch<A> weight, centred, logits, d, max, inverse, delta;
    PairWeights(const PairArgs& a, const Kind& k, int64_t few)
        : args(a), kind(k), dst(few), weight(few * a.heads), centred(few * a.heads), logits(few * a.heads), d(few * a.heads),
          max(few * a.heads), inverse(few * a.heads), delta(few * a.heads) {}

    // ends, near: the rows behind the logits; dotted, with: those behind d.
    void make(const T* const* ends, const A* near, const T* const* dotted, const A* with, int64_t count) const {
        const int64_t heads = args.heads;
        pair_logits<T>(args, kind, ends, count, near, logits.data);
        dots_by_head<T>(dotted, count, with, heads, args.dim, d);
        for (int64_t j = 0; j < count; ++j) {
            memcpy(max + j * heads, dst[j], heads * sizeof(A));
            memcpy(inverse + j * heads, dst[j] + heads, heads * sizeof(A));
            memcpy(delta + j * heads, dst[j] + 2 * heads, heads * sizeof(A));
        }
        for (int64_t i = 0; i < count * heads; i += kLanes<A>) {
            const Vec<A> a = exp_difference(load(logits + i), load(max + i)) * load(inverse + i);
            store(weight + i, a);
            store(centred + i, a * (load(d + i) - load(delta + i)));
        }
    }
};

template <class A> inline void add_row(A* to, const A* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// Adds what a row gives to the gradient of the factors: `pair` without its factor is near * by_near, summed over both ends.
template <class T> inline void add_to_factors(const PairArgs& a, int64_t share, const T* near, const Acc<T>* own) {
    const int64_t n = a.heads * a.dim;
    double* sums = (double*)a.grad_factor + share * n;
    for (int64_t i = 0; i < n; ++i) sums[i] += double(to_acc(near[i])) * own[i];
}

// Rows are destinations: the gradient of their own rows, and delta, the mean of d under the weights. It starts as the
// dot of grad and the stored output; how far that one's rounding puts it off, e = sum of a (d - delta), is found on the
// way and taken out again.
template <class I, class T, class Kind> void pair_backward_destination_rows(const PairArgs& a, const Kind& kind) {
    using A = Acc<T>;
    constexpr bool rounded = sizeof(T) < sizeof(A);
    const View<I> g(a.g);
    const int64_t heads = a.heads, dim = a.dim, n = heads * dim, stride = padded<A>(n), few = cached_entries(n * sizeof(T));
    const A* factor = (const A*)a.factor;
    const Tiling t = tiling_for(a.g, a.h, n * sizeof(T), (rounded ? 2 : 1) * stride * sizeof(A));
    for_rows<I>(a.g, t, 4 * n + heads * 8, a.threads, [&](const Span& span) {
        const int64_t slots = least(t.chunk, span.end - span.first);
        const PairWeights<T, Kind> weights(a, kind, few);
        Scratch<A> acc(slots * stride), mean(rounded ? slots * stride : 0), near(stride), grad(stride), sum(stride), means(stride);
        Scratch<double> off(slots * heads);
        Scratch<const T*> xs(kBlock);
        Scratch<int64_t> share(slots);
        const auto record = [&](int64_t v) { return (A*)a.dst + v * heads * 3; };
        for_segments(
            g, t, span, {},
            [&](int64_t v, int64_t slot) {
                memset(acc + slot * stride, 0, stride * sizeof(A));
                if (rounded) memset(mean + slot * stride, 0, stride * sizeof(A));
                memset(off + slot * heads, 0, heads * sizeof(double));
                A* r = record(v);
                for (int64_t h = 0; h < heads; ++h) {
                    r[h] = ((const A*)a.max)[v * heads + h];
                    r[heads + h] = 1 / ((const A*)a.sum)[v * heads + h];
                }
                const T* stored = (const T*)a.out + v * n;
                load_row<T>(grad, (const T*)a.grad + v * n, n);
                dots_by_head<T>(&stored, 1, grad, heads, dim, r + 2 * heads);
            },
            [&](const Segment& s) {
                for (int64_t j = 0; j < s.count; ++j) xs[s.at + j] = (const T*)a.h + int64_t(g.indices[s.k + j]) * n;
            },
            [&](const Segment& s) {
                share[s.slot] = s.share;
                load_row<T>(near, (const T*)a.h_dst + s.row * n, n);
                load_row<T>(grad, (const T*)a.grad + s.row * n, n);
                memset(sum, 0, stride * sizeof(A));
                memset(means, 0, stride * sizeof(A));
                const auto by_near = kind.by_near(near);
                for (int64_t j0 = 0; j0 < s.count; j0 += few) {
                    const T* const* ends = xs + s.at + j0;
                    const int64_t count = least(few, s.count - j0);
                    for (int64_t j = count; j < least(count + few, s.ready - j0); ++j) prefetch(ends[j], n);
                    for (int64_t j = 0; j < count; ++j) weights.dst[j] = record(s.row);
                    weights.make(ends, near, ends, grad, count);
                    accumulate_heads<T>({ends, weights.centred, nullptr, heads, count, count}, heads, dim, sum, by_near);
                    if (!rounded) continue;
                    accumulate_heads<T>({ends, weights.weight, nullptr, heads, count, count}, heads, dim, means, by_near);
                    sum_heads<A>(weights.centred, count, heads, off + s.slot * heads);
                }
                add_row<A>(acc + s.slot * stride, sum, n);
                if (rounded) add_row<A>(mean + s.slot * stride, means, n);
            },
            [&](int64_t v, int64_t slot) {
                A* own = acc + slot * stride;
                for (int64_t h = 0; rounded && h < heads; ++h) {
                    const A e = A(off[slot * heads + h]);
                    record(v)[2 * heads + h] += e;
                    for (int64_t i = h * dim; i < (h + 1) * dim; ++i) own[i] -= e * mean[slot * stride + i];
                }
                if (a.grad_factor) add_to_factors<T>(a, share[slot], (const T*)a.h_dst + v * n, own);
                for (int64_t i = 0; i < n; ++i) own[i] *= factor[i];
                store_row((T*)a.grad_h_dst + v * n, (const A*)own, n);
            });
    }, a.parts);
}

// Rows are sources: the gradient of their rows through the weighted sum and through the logits.
template <class I, class T, class Kind> void pair_backward_source_rows(const PairArgs& a, const Kind& kind) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads, dim = a.dim, n = heads * dim, stride = padded<A>(n), few = cached_entries(2 * n * sizeof(T));
    const A* factor = (const A*)a.factor;
    const Tiling t = tiling_for(a.g, a.grad, n * sizeof(T), 2 * stride * sizeof(A));
    for_rows<I>(a.g, t, 4 * n + heads * 8, a.threads, [&](const Span& span) {
        const int64_t slots = least(t.chunk, span.end - span.first);
        const PairWeights<T, Kind> weights(a, kind, few);
        Scratch<A> acc(slots * stride), own(slots * stride), near(stride), sum(stride), sum_own(stride);
        Scratch<const T*> ys(kBlock), grads(kBlock);
        Scratch<int64_t> share(slots);
        for_segments(
            g, t, span, {},
            [&](int64_t, int64_t slot) {
                memset(acc + slot * stride, 0, stride * sizeof(A));
                memset(own + slot * stride, 0, stride * sizeof(A));
            },
            [&](const Segment& s) {
                for (int64_t j = 0; j < s.count; ++j) {
                    const int64_t v = g.indices[s.k + j];
                    ys[s.at + j] = (const T*)a.h_dst + v * n, grads[s.at + j] = (const T*)a.grad + v * n;
                }
            },
            [&](const Segment& s) {
                share[s.slot] = s.share;
                load_row<T>(near, (const T*)a.h + s.row * n, n);
                memset(sum, 0, stride * sizeof(A));
                memset(sum_own, 0, stride * sizeof(A));
                const auto by_near = kind.by_near(near);
                for (int64_t j0 = 0; j0 < s.count; j0 += few) {
                    const T *const *ends = ys + s.at + j0, *const *gs = grads + s.at + j0;
                    const int64_t count = least(few, s.count - j0);
                    for (int64_t j = count; j < least(count + few, s.ready - j0); ++j) prefetch(ends[j], n), prefetch(gs[j], n);
                    for (int64_t j = 0; j < count; ++j)
                        weights.dst[j] = (const A*)a.dst + int64_t(g.indices[s.k + j0 + j]) * heads * 3;
                    weights.make(ends, near, gs, near, count);
                    accumulate_heads<T>({gs, weights.weight, nullptr, heads, count, count}, heads, dim, sum);
                    accumulate_heads<T>({ends, weights.centred, nullptr, heads, count, count}, heads, dim, sum_own, by_near);
                }
                add_row<A>(acc + s.slot * stride, sum, n);
                add_row<A>(own + s.slot * stride, sum_own, n);
            },
            [&](int64_t u, int64_t slot) {
                A *row = acc + slot * stride, *through = own + slot * stride;
                if (a.grad_factor) add_to_factors<T>(a, share[slot], (const T*)a.h + u * n, through);
                for (int64_t i = 0; i < n; ++i) row[i] += factor[i] * through[i];
                store_row((T*)a.grad_h + u * n, (const A*)row, n);
            });
    }, a.parts);
}

// Calls f(I*, T*, kind).
template <class F> void with_pair(const PairArgs& a, const F& f) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) {
        using A = Acc<AMPGNN_TYPE(t)>;
        if (a.product) f(i, t, Product<A>{});
        else f(i, t, LeakySum<A>{A(a.negative_slope)});
    });
}

void pair_attention(const PairArgs& a) {
    with_pair(a, [&](auto* i, auto* t, auto kind) { pair_forward_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a, kind); });
}
void pair_backward_destinations(const PairArgs& a) {
    with_pair(a, [&](auto* i, auto* t, auto kind) { pair_backward_destination_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a, kind); });
}
void pair_backward_sources(const PairArgs& a) {
    with_pair(a, [&](auto* i, auto* t, auto kind) { pair_backward_source_rows<AMPGNN_TYPE(i), AMPGNN_TYPE(t)>(a, kind); });
}

}  // namespace
