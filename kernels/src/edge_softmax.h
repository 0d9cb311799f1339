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

// The softmax of entries whose largest logit is not known yet (Milakov and Gimelshein, 2018).
template <class A> class OnlineSoftmax {
    static constexpr A kLow = -A(__builtin_inf());
    int64_t heads;
    Scratch<A> before, base;
  public:
    explicit OnlineSoftmax(int64_t number) : heads(number), before(number), base(number) {}

    // Raises max (heads,) to that of the logits e (count, heads), makes of them exp(e - max), adds those to total, and
    // leaves in shrink (heads,) what sums of earlier entries must be multiplied by.
    void add(A* e, int64_t count, A* max, double* total, A* shrink) const {
        memcpy(before, max, heads * sizeof(A));
        max_heads<A>(e, count, heads, max);
        for (int64_t h = 0; h < heads; ++h) {
            base[h] = max[h] == kLow ? 0 : max[h];
            shrink[h] = 1;
            if (max[h] == before[h] || before[h] == kLow) continue;
            shrink[h] = exp_difference(splat(before[h]), splat(max[h]))[0];
            total[h] *= shrink[h];
        }
        exp_heads<A>(e, base, count, heads, e);
        sum_heads<A>(e, count, heads, total);
    }
};

// acc (heads, dim), a sum of earlier entries, brought to the largest logit of later ones.
template <class A> inline void shrink_heads(A* acc, const A* shrink, int64_t heads, int64_t dim) {
    for (int64_t h = 0; h < heads; ++h)
        if (shrink[h] != 1) scale_row<A>(acc + h * dim, shrink[h], dim);
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
    for (int64_t h = 0; h < a.heads; ++h) {
        if (!empty && !a.g.pieces) scale_row<A>(acc + h * a.dim, A(1 / sum[h]), a.dim);
        ((A*)a.max)[v * a.heads + h] = max[h];
        ((A*)a.sum)[v * a.heads + h] = A(sum[h]);
    }
    store_result<T>(a.g, a.out, v, acc, a.heads * a.dim);
}

// The attention of a hub: `run`s its pieces, for which `of` is made of a, and brings their sums to one maximum.
template <class T, class Args, class Run> void attention_of_hub(const Args& a, int64_t hub, Args of, const Run& run) {
    using A = Acc<T>;
    const int64_t n = a.heads * a.dim;
    const Scratch<A> out(kPieces * n), maxima(kPieces * a.heads), sums(kPieces * a.heads), max(a.heads), acc(n);
    const Scratch<double> sum(a.heads);
    of.out = out, of.max = maxima, of.sum = sums;
    run(of);
    std::copy_n(maxima.data, a.heads, max.data);
    max_heads<A>(maxima, kPieces, a.heads, max);
    for (int64_t i = 0; i < kPieces * a.heads; ++i) {
        const int64_t h = i % a.heads;
        if (maxima[i] == -A(__builtin_inf())) continue;  // all of its logits are
        const A factor = std::exp(maxima[i] - max[h]);
        sum[h] += double(sums[i]) * factor;
        scale_row<A>(out + i * a.dim, factor, a.dim);
        add_row<A>(acc + h * a.dim, out + i * a.dim, a.dim);
    }
    store_attention<T>(a, hub, false, acc, max, sum);
}

// The result for an entry is its weight a or, with a gradient coming in, a (grad - sum over the row of a grad), with a made
// anew from the logits: a rounded weight would leave its error in every gradient of the row.

// One thread's work on rows whose entries are contiguous.
template <class I, class T> class Softmax {
    using A = Acc<T>;
    // Values: of rows that are taken together, of such rows in all, and of a row that is kept between its passes.
    static constexpr int64_t kShort = 64, kTogether = 1 << 10, kKept = 1 << 14;
    const SoftmaxArgs& args;
    const View<I> g;
    const int64_t heads, block;
    const Scratch<A> e, d, ed, of_row, max;
    const Scratch<double> sum, dot;

    int64_t values(int64_t r0, int64_t r1) const { return (int64_t(g.indptr[r1]) - int64_t(g.indptr[r0])) * heads; }
    void gather(const void* from, int64_t k, int64_t count, A* to) const {
        gather_edges(g, (const T*)from, heads, k, count, int64_t(g.indptr[args.g.rows]), to);
    }
    template <class F> void each_block(int64_t k0, int64_t k1, const F& f) const {
        for (int64_t k = k0; k < k1; k += block) f(k, least(block, k1 - k));
    }
    // f(number of the row's first value, its entries) for the rows [r0, r1), whose values are numbered from 0 on.
    template <class F> void each_row(int64_t r0, int64_t r1, const F& f) const {
        for (int64_t r = r0; r < r1; ++r) f(values(r0, r), int64_t(g.indptr[r + 1]) - int64_t(g.indptr[r]));
    }
    // to (count, heads) = f(h) for every entry.
    template <class F> void spread(A* to, int64_t count, const F& f) const {
        for (int64_t h = 0; h < heads; ++h) {
            const A value = f(h);
            for (int64_t j = 0; j < count; ++j) to[j * heads + h] = value;
        }
    }

    // Short rows: what is done to every value is done to all of theirs at once.
    void together(int64_t r0, int64_t r1) const {
        const int64_t k = g.indptr[r0], count = int64_t(g.indptr[r1]) - k, n = count * heads;
        gather(args.logits, k, count, e);
        each_row(r0, r1, [&](int64_t at, int64_t entries) {
            std::fill_n(max.data, heads, -A(__builtin_inf()));
            max_heads<A>(e + at, entries, heads, max);
            spread(of_row + at, entries, [&](int64_t h) { return max[h]; });
        });
        for (int64_t i = 0; i < n; i += kLanes<A>) store(e + i, exp_difference(load(e + i), load(of_row + i)));
        if (args.grad) {
            gather(args.grad, k, count, d);
            for (int64_t i = 0; i < n; ++i) ed[i] = e[i] * d[i];
        }
        each_row(r0, r1, [&](int64_t at, int64_t entries) {
            std::fill_n(sum.data, heads, 0.0), std::fill_n(dot.data, heads, 0.0);
            sum_heads<A>(e + at, entries, heads, sum);
            spread(of_row + at, entries, [&](int64_t h) { return A(1 / sum[h]); });
            if (!args.grad) return;
            sum_heads<A>(ed + at, entries, heads, dot);
            spread(ed + at, entries, [&](int64_t h) { return A(dot[h] / sum[h]); });
        });
        if (args.grad) for (int64_t i = 0; i < n; ++i) e[i] *= d[i] - ed[i];
        for (int64_t i = 0; i < n; ++i) e[i] *= of_row[i];
        scatter_edges(g, (const A*)e.data, heads, k, count, (T*)args.out);
    }

    void alone(int64_t k0, int64_t k1) const {
        const bool kept = k1 - k0 <= block;
        find_max(k0, k1, max);
        add_up(k0, k1, kept, max, sum, dot);
        write(k0, k1, kept, max, sum, dot);
    }

    int64_t room() const {
        const int64_t all = values(0, args.g.rows);
        return most(least(kKept, all), heads) + kLanes<A>;
    }

  public:
    explicit Softmax(const SoftmaxArgs& a)
        : args(a), g(a.g), heads(a.heads), block(most(kKept / a.heads, int64_t(1))), e(room()), d(a.grad ? room() : 0),
          ed(a.grad ? room() : 0), of_row(room()), max(heads), sum(heads), dot(heads) {}

    void rows(int64_t first, int64_t end) const {
        for (int64_t r0 = first, r1; r0 < end; r0 = r1) {
            for (r1 = r0; r1 < end && values(r1, r1 + 1) <= kShort && values(r0, r1 + 1) <= kTogether;) ++r1;
            if (r0 < r1) together(r0, r1);
            else alone(g.indptr[r0], g.indptr[r0 + 1]), ++r1;
        }
    }

    // The passes over the entries [k0, k1) of a row or of a part of one. Values that were not kept are made again.
    void find_max(int64_t k0, int64_t k1, A* to) const {
        std::fill_n(to, heads, -A(__builtin_inf()));
        each_block(k0, k1, [&](int64_t k, int64_t count) {
            gather(args.logits, k, count, e);
            max_heads<A>(e, count, heads, to);
        });
    }

    void add_up(int64_t k0, int64_t k1, bool kept, const A* top, double* to, double* to_dot) const {
        std::fill_n(to, heads, 0.0), std::fill_n(to_dot, heads, 0.0);
        each_block(k0, k1, [&](int64_t k, int64_t count) {
            if (!kept) gather(args.logits, k, count, e);
            exp_heads<A>(e, top, count, heads, e);
            sum_heads<A>(e, count, heads, to);
            if (!args.grad) return;
            gather(args.grad, k, count, d);
            for (int64_t i = 0; i < count * heads; ++i) d[i] *= e[i];
            sum_heads<A>(d, count, heads, to_dot);
        });
    }

    void write(int64_t k0, int64_t k1, bool kept, const A* top, const double* total, const double* total_dot) const {
        each_block(k0, k1, [&](int64_t k, int64_t count) {
            if (!kept) gather(args.logits, k, count, e), exp_heads<A>(e, top, count, heads, e);
            if (args.grad) {
                gather(args.grad, k, count, d);
                for (int64_t h = 0; h < heads; ++h) of_row[h] = A(total_dot[h] / total[h]);
                for (int64_t j = 0; j < count; ++j)
                    for (int64_t h = 0; h < heads; ++h) e[j * heads + h] *= d[j * heads + h] - of_row[h];
            }
            for (int64_t h = 0; h < heads; ++h) of_row[h] = A(1 / total[h]);
            scale_heads<A>(e, of_row, count, heads);
            scatter_edges(g, (const A*)e.data, heads, k, count, (T*)args.out);
        });
    }
};

template <class I, class T> void softmax_rows(const SoftmaxArgs& a) {
    for_rows<I>(a.g, a.heads * 8, a.threads, [&](int64_t first, int64_t end) { Softmax<I, T>(a).rows(first, end); });
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
            const Softmax<I, T> softmax(a);
            for (int64_t i = first; i < end; ++i) f(softmax, pieces.first(i), pieces.first(i + 1), i * heads);
        });
    };
    pass([&](const auto& softmax, int64_t k0, int64_t k1, int64_t at) { softmax.find_max(k0, k1, max + at); });
    max_heads<A>(max, kPieces, heads, max);
    pass([&](const auto& softmax, int64_t k0, int64_t k1, int64_t at) { softmax.add_up(k0, k1, false, max, sum + at, dot + at); });
    add_pieces<double>(sum, heads), add_pieces<double>(dot, heads);
    pass([&](const auto& softmax, int64_t k0, int64_t k1, int64_t) { softmax.write(k0, k1, false, max, sum, dot); });
}

void edge_softmax(const SoftmaxArgs& a) {
    with_types(a.g.wide, a.dtype, [&](auto* i, auto* t) {
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
