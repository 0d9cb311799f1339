// Fused GAT attention (Velickovic et al., 2018): a[u, v] = softmax over v's edges of leaky_relu(el[u] + er[v]),
// out[v] = sum of a[u, v] h[u]. Nothing is kept per edge: the backward pass recomputes a from max and sum.
#pragma once
#include "accumulate.h"
#include "dot.h"
#include "edge_softmax.h"

namespace {

// s (count, heads) = leaky_relu(far[indices] + near); s has room for whole vectors.
template <class I, class A>
inline void attention_logits(const I* ends, int64_t count, int64_t heads, const A* far, const A* near, A slope, A* s) {
    if (heads == 1) for (int64_t j = 0; j < count; ++j) s[j] = far[ends[j]] + near[0];
    else
        for (int64_t j = 0; j < count; ++j) {
            const A* x = far + int64_t(ends[j]) * heads;
            for (int64_t h = 0; h < heads; ++h) s[j * heads + h] = x[h] + near[h];
        }
    for (int64_t i = 0; i < count * heads; i += kLanes<A>) {
        const Vec<A> x = load(s + i);
        store(s + i, x > 0 ? x : x * slope);
    }
}

template <class I, class T> void attention_forward_rows(const AttentionArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads, dim = a.dim, n = heads * dim, stride = padded<A>(n);
    const A *el = (const A*)a.el, *er = (const A*)a.er, slope = A(a.negative_slope);
    const Tiling t = tiling_for(a.g, a.h, n * sizeof(T), stride * sizeof(A));
    for_rows<I>(a.g, t, n + heads * 8, a.threads, [&](const Span& span) {
        const int64_t slots = span.slots(g.indptr, t.chunk);
        const OnlineSoftmax<A> softmax(heads);
        Scratch<A> acc(slots * stride), max(slots * heads), s(kBlock * heads + kLanes<A>), shrink(kBlock * heads);
        Scratch<double> sum(slots * heads);
        Scratch<const T*> xs(kBlock);
        for_segments(
            g, t, span, {},
            [&](int64_t, int64_t slot) {
                memset(acc + slot * stride, 0, stride * sizeof(A));
                for (int64_t h = 0; h < heads; ++h) max[slot * heads + h] = -A(__builtin_inf()), sum[slot * heads + h] = 0;
            },
            [&](const Segment& run) {
                prefetch(acc + run.slot * stride, n);
                A* e = s + run.at * heads;
                attention_logits(g.indices + run.k, run.count, heads, el, er + a.g.own(run.row) * heads, slope, e);
                softmax.add(e, run.count, max + run.slot * heads, sum + run.slot * heads, shrink + run.at * heads);
                for (int64_t j = 0; j < run.count; ++j) xs[run.at + j] = (const T*)a.h + int64_t(g.indices[run.k + j]) * n;
            },
            [&](const Segment& run) {
                shrink_heads<A>(acc + run.slot * stride, shrink + run.at * heads, heads, dim);
                accumulate_heads<T>({xs + run.at, s + run.at * heads, nullptr, heads, run.count, run.ready}, heads, dim,
                                    acc + run.slot * stride);
            },
            [&](int64_t v, int64_t slot) {
                const bool empty = g.indptr[v] == g.indptr[v + 1];
                store_attention<T>(a, v, empty, acc + slot * stride, max + slot * heads, sum + slot * heads);
            });
    });
}

// Four values of a destination and head, beside those of its other heads. The backward pass reads one such record, er, max,
// 1 / sum and delta, and adds up another over the edges: a (d - delta) slope, a (d - delta), a slope and nothing.
constexpr int64_t kRecord = 4;

// to = f(to, from) for the records of a destination's heads.
template <class A, class F> inline void for_records(int64_t heads, A* to, const A* from, const F& f) {
    typedef A Record __attribute__((vector_size(kRecord * sizeof(A))));
    const int64_t n = heads * kRecord;
    int64_t i = 0;
    for (; i + kLanes<A> <= n; i += kLanes<A>) store(to + i, f(load(to + i), load(from + i)));
    for (; i < n; i += kRecord) {
        Record x, y;
        memcpy(&x, to + i, sizeof x), memcpy(&y, from + i, sizeof y);
        x = f(x, y);
        memcpy(to + i, &x, sizeof x);
    }
}
template <class A> inline void copy_records(int64_t heads, A* to, const A* from) {
    for_records(heads, to, from, [](auto, auto y) { return y; });
}
template <class A> inline void add_records(int64_t heads, A* to, const A* from) {
    for_records(heads, to, from, [](auto x, auto y) { return x + y; });
}

// What the backward pass needs of the entries of a source u, (count, heads) each: their attention weights, made anew from
// what the forward pass kept, the slopes of the leaky ReLU, and delta. Room for whole vectors.
template <class A> struct Weights {
    const AttentionArgs& args;
    Scratch<A> read, weight, slope, delta;
    Weights(const AttentionArgs& x, int64_t n) : args(x), read(n * kRecord), weight(n), slope(n), delta(n) {}
    explicit Weights(const AttentionArgs& x) : Weights(x, kBlock * x.heads + kLanes<A>) {}

    template <class I> void make(int64_t u, const I* ends, int64_t count) {
        const int64_t heads = args.heads, n = count * heads, width = heads * kRecord;
        const A* dst = (const A*)args.dst;
        if (heads == 1) for (int64_t j = 0; j < count; ++j) copy_records(1, read + j * kRecord, dst + int64_t(ends[j]) * kRecord);
        else for (int64_t j = 0; j < count; ++j) copy_records(heads, read + j * width, dst + int64_t(ends[j]) * width);
        HeadLanes<A> el((const A*)args.el + u * heads, heads);
        const Vec<A> one = splat(A(1)), negative = splat(A(args.negative_slope));
        for (int64_t i = 0; i < n; i += kLanes<A>) {
            const Quad<A> v = load_transposed<A>(read + i * kRecord);
            const Vec<A> x = v.a + el.from(i), s = x > 0 ? one : negative;
            store(slope + i, s);
            store(weight + i, exp_difference(x * s, v.b) * v.c);
            store(delta + i, v.d);
        }
    }
};

// Whether a row is gathered once for its dot product and for the sum: columns of both are loaded in the same order, and the
// registers hold both.
template <class T> constexpr bool kOnePass = kVectorBytes == 64 && (!std::is_same_v<T, bf16> || std::is_same_v<Dotted<T>, bf16>);

// acc += the sum of b.w x, and d += x . near for each entry, as far apart as its weight; over NV vectors of columns from col
// on, of which the last holds `tail` where Tail.
template <class T, int NV, bool Tail>
void sum_and_dot_columns(const Block<T>& b, int64_t col, int tail, const Dotted<T>* near, Acc<T>* acc, Acc<T>* d) {
    using A = Acc<T>;
    constexpr int W = kLanes<A>;
    constexpr bool kPairs = std::is_same_v<Dotted<T>, bf16> && NV % 2 == 0 && !Tail;
    Vec<A> sum[NV] = {}, dot[4] = {};
    for (int64_t k = 0; k < b.count; ++k) {
        if (k + kAhead < b.ready) prefetch(b.row(k + kAhead) + col, NV * W);
        const T* x = b.row(k) + col;
        const A weight = b.scalar(k);
        Vec<A> part[2] = {};
        if constexpr (kPairs) {
#pragma GCC unroll 8
            for (int i = 0; i < NV; i += 2) {
                const Pair<A> v = Paired<T>::load_pair(x + i * W);
                sum[i] += v.first * weight, sum[i + 1] += v.second * weight;
                part[i / 2 % 2] = add_products(part[i / 2 % 2], x + i * W, near + col + i * W);
            }
        } else {
#pragma GCC unroll 16
            for (int i = 0; i < NV; ++i) {
                const int lanes = Tail && i == NV - 1 ? tail : W;
                const Vec<A> value = load_some(x + i * W, lanes);
                sum[i] += value * weight;
                part[i % 2] += value * load_some(near + col + i * W, lanes);
            }
        }
        dot[k % 4] = part[0] + part[1];
        if (k % 4 == 3 || k + 1 == b.count) {
            A sums[4];
            lanes_sums<A, 4>(dot, sums);
            for (int64_t q = k / 4 * 4; q <= k; ++q) d[q * b.w_stride] += sums[q % 4];
        }
    }
    add_columns<T, NV, kPairs>(sum, acc + col);
}

// acc (heads, dim) += the sum of b.w x, and d (count, heads) = x . near by head. `sum` is room for a row.
template <class T>
void sum_and_dot_heads(const Block<T>& b, int64_t heads, int64_t dim, const Dotted<T>* near, Acc<T>* sum, Acc<T>* acc,
                       Acc<T>* d) {
    using A = Acc<T>;
    constexpr int64_t kFew = 16;  // entries whose rows stay cached between their two uses
    if constexpr (kOnePass<T>)
        if (heads == 1 || (dim >= 4 * kLanes<A> && dim % kLanes<A> == 0)) {  // whole vectors, or a NaN's would reach the next head
            memset(d, 0, b.count * heads * sizeof(A));
            for (int64_t h = 0; h < heads; ++h) {
                const Block<T> head{b.x, b.w + h, nullptr, heads, b.count, b.ready};
                for_columns<A, 16>(h * dim, (h + 1) * dim, [&](auto vectors, auto tailed, int64_t col, int tail) {
                    sum_and_dot_columns<T, vectors, tailed>(head, col, tail, near, acc, d + h);
                });
            }
            return;
        }
    const auto few = [&](int64_t j, int64_t count, A* to) {
        dots_by_head<T>(b.x + j, count, b.ready - j, kFew, near, heads, dim, d + j * heads);
        accumulate_heads<T>({b.x + j, b.w + j * heads, nullptr, heads, count, count}, heads, dim, to);
    };
    if (b.count <= kFew) return few(0, b.count, acc);
    memset(sum, 0, padded<A>(heads * dim) * sizeof(A));
    for (int64_t j = 0; j < b.count; j += kFew) few(j, least(kFew, b.count - j), sum);
    add_row<A>(acc, sum, heads * dim);
}

// Rows are sources: each gathers grad[v] of its destinations once, for the weighted sum and for the dot products
// d = grad[v] . h[u]. The gradient of a logit is a (d - D) slope, D the row's mean of d. `delta`, from the stored
// output, is D but for that output's rounding; how far it is off, e = sum of a (d - delta), is found on the way and
// taken out again: from grad_er by the caller, from grad_el by correct_grad_el. Sums over sources go into one part per
// range of rows, so that their order is fixed.
template <class I, class T> void attention_backward_rows(const AttentionArgs& a) {
    using A = Acc<T>;
    constexpr int64_t kRecordsAhead = 24;  // entries between the fetching and the use of a destination's records
    const View<I> g(a.g);
    const int64_t heads = a.heads, dim = a.dim, n = heads * dim, stride = padded<A>(n);
    const Tiling t = tiling_for(a.g, a.grad, n * sizeof(T), stride * sizeof(A), 2 * heads * kRecord * sizeof(A));
    for_rows<I>(a.g, t, n, a.threads, [&](const Span& span) {
        const int64_t slots = span.slots(g.indptr, t.chunk), most_values = kBlock * heads + kLanes<A>;
        Weights<A> weights(a);
        Scratch<Dotted<T>> near(stride);
        Scratch<A> acc(slots * stride), sum(stride), d(most_values), terms(most_values * kRecord);
        Scratch<double> grad_el(slots * heads);
        Scratch<const T*> ys(kBlock);
        Scratch<int64_t> places(kBlock);
        int64_t fetched = 0;  // entries of a batch whose destinations' records are on their way
        const auto fetch = [&](int64_t stop, const A* sums) {
            for (; fetched < stop; ++fetched) prefetch((const A*)a.dst + places[fetched], heads * kRecord), prefetch(sums + places[fetched], heads * kRecord);
        };
        const auto sums_of = [&](const Segment& s) { return (A*)a.sums + s.share * a.num_dst * heads * kRecord; };
        for_segments(
            g, t, span, {},
            [&](int64_t, int64_t slot) {
                memset(acc + slot * stride, 0, stride * sizeof(A));
                memset(grad_el + slot * heads, 0, heads * sizeof(double));
            },
            [&](const Segment& s) {
                prefetch(acc + s.slot * stride, n), prefetch((const T*)a.h + a.g.own(s.row) * n, n);
                for (int64_t j = 0; j < s.count; ++j) {
                    const int64_t v = g.indices[s.k + j];
                    ys[s.at + j] = (const T*)a.grad + v * n;
                    places[s.at + j] = v * heads * kRecord;
                }
                if (s.at == 0) fetched = 0, fetch(s.count, sums_of(s));
            },
            [&](const Segment& s) {
                A *sums = sums_of(s), *weight = weights.weight;
                const int64_t values = s.count * heads;
                fetch(s.at + least(s.count + kRecordsAhead, s.ready), sums);
                weights.make(a.g.own(s.row), g.indices + s.k, s.count);
                hold_row<T>(near, (const T*)a.h + a.g.own(s.row) * n, n);
                sum_and_dot_heads<T>({ys + s.at, weight, nullptr, heads, s.count, s.ready}, heads, dim, near, sum, acc + s.slot * stride, d);
                for (int64_t i = 0; i < values; i += kLanes<A>) {
                    const Vec<A> w = load(weight + i), slope = load(weights.slope + i);
                    const Vec<A> centred = w * (load(d + i) - load(weights.delta + i)), sloped = centred * slope;
                    store(d + i, sloped);
                    store_transposed<A>(terms + i * kRecord, {sloped, centred, w * slope, Vec<A>{}});
                }
                sum_heads<A>(d, s.count, heads, grad_el + s.slot * heads);
                const int64_t* at = places + s.at;
                if (heads == 1) for (int64_t j = 0; j < s.count; ++j) add_records(1, sums + at[j], terms + j * kRecord);
                else for (int64_t j = 0; j < s.count; ++j) add_records(heads, sums + at[j], terms + j * heads * kRecord);
            },
            [&](int64_t u, int64_t slot) {
                store_result<T>(a.g, a.grad_h, u, acc + slot * stride, n);
                for (int64_t h = 0; h < heads; ++h) ((A*)a.grad_el)[u * heads + h] = A(grad_el[slot * heads + h]);
            });
    }, a.parts);
}

// grad_el[u] -= sum over u's edges of a slope e[v].
template <class I, class T> void correct_grad_el_rows(const AttentionArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const int64_t heads = a.heads;
    for_rows<I>(a.g, heads * 8, a.threads, [&](int64_t first, int64_t end) {
        Weights<A> weights(a);
        Scratch<double> sum(heads);
        for (int64_t u = first; u < end; ++u) {
            memset(sum, 0, heads * sizeof(double));
            for (int64_t k = g.indptr[u], k1 = g.indptr[u + 1]; k < k1; k += kBlock) {
                const int64_t count = least(kBlock, k1 - k);
                weights.make(a.g.own(u), g.indices + k, count);
                A *e = weights.delta;
                for (int64_t i = 0; i < count * heads; i += kLanes<A>) store(e + i, load(e + i) * load(weights.weight + i) * load(weights.slope + i));
                sum_heads<A>(e, count, heads, sum);
            }
            for (int64_t h = 0; h < heads; ++h) ((A*)a.grad_el)[u * heads + h] -= A(sum[h]);
        }
    });
}

// a, for the rows from `first` on: destinations in the forward pass, sources in the backward one.
template <class T> AttentionArgs from_destination(AttentionArgs a, const Rows& rows, int64_t first) {
    using A = Acc<T>;
    a.g = rows, a.er = row_at<A>(a.er, first, a.heads), a.out = row_at<T>(a.out, first, a.heads * a.dim);
    a.max = row_at<A>(a.max, first, a.heads), a.sum = row_at<A>(a.sum, first, a.heads);
    return a;
}
template <class T> AttentionArgs from_source(AttentionArgs a, const Rows& rows, int64_t first) {
    using A = Acc<T>;
    a.g = rows, a.h = row_at<T>(a.h, first, a.heads * a.dim), a.el = row_at<A>(a.el, first, a.heads);
    a.grad_h = row_at<T>(a.grad_h, first, a.heads * a.dim), a.grad_el = row_at<A>(a.grad_el, first, a.heads);
    return a;
}

template <class I, class T> void attention_backward_hub(const AttentionArgs& a, int64_t hub) {
    using A = Acc<T>;
    const int64_t n = a.heads * a.dim;
    const Pieces<I> pieces(a.g, hub);
    const Scratch<A> grad_h(kPieces * n), grad_el(kPieces * a.heads);
    AttentionArgs of = from_source<T>(a, pieces.rows, hub);
    of.grad_h = grad_h, of.grad_el = grad_el;
    attention_backward_rows<I, T>(of);
    store_row((T*)a.grad_h + hub * n, (const A*)add_pieces<A>(grad_h, n), n);
    std::copy_n(add_pieces<A>(grad_el, a.heads), a.heads, (A*)a.grad_el + hub * a.heads);
}

template <class I, class T> void correct_grad_el_hub(const AttentionArgs& a, int64_t hub) {
    using A = Acc<T>;
    const Pieces<I> pieces(a.g, hub);
    const Scratch<A> grad_el(kPieces * a.heads);
    AttentionArgs of = from_source<T>(a, pieces.rows, hub);
    of.grad_el = grad_el;
    correct_grad_el_rows<I, T>(of);
    add_row<A>((A*)a.grad_el + hub * a.heads, add_pieces<A>(grad_el, a.heads), a.heads);
}

void attention(const AttentionArgs& a) {
    with_types(a.g.wide, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        around_hubs<I>(
            a.g, [&](const Rows& rows, int64_t first) { attention_forward_rows<I, T>(from_destination<T>(a, rows, first)); },
            [&](int64_t hub) {
                const Pieces<I> pieces(a.g, hub);
                attention_of_hub<T>(a, hub, from_destination<T>(a, pieces.rows, hub), attention_forward_rows<I, T>);
            });
    });
}
void attention_backward(const AttentionArgs& a) {
    with_types(a.g.wide, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        around_hubs<I>(
            a.g, [&](const Rows& rows, int64_t first) { attention_backward_rows<I, T>(from_source<T>(a, rows, first)); },
            [&](int64_t hub) { attention_backward_hub<I, T>(a, hub); });
    });
}
void correct_grad_el(const AttentionArgs& a) {
    with_types(a.g.wide, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        around_hubs<I>(
            a.g, [&](const Rows& rows, int64_t first) { correct_grad_el_rows<I, T>(from_source<T>(a, rows, first)); },
            [&](int64_t hub) { correct_grad_el_hub<I, T>(a, hub); });
    });
}

}  // namespace
