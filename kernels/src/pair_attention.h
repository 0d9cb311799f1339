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
void pair_logits(const PairArgs& a, const Kind& kind, const T* const* ends, int64_t count, int64_t ready, int64_t ahead,
                 const Acc<T>* near, Acc<T>* out) {
    const auto* factor = (const Acc<T>*)a.factor;
    sums_by_head<T>(ends, count, ready, ahead, a.heads, a.dim, out, [&](int64_t h, auto number, const T* const* rows, Acc<T>* d) {
        sums<T, number>(rows, a.dim, d, [&kind, here = near + h * a.dim, factors = factor + h * a.dim](Vec<Acc<T>> far, const auto& at) {
            return kind.pair(far, at(here), at(factors));
        });
    });
}

// What a thread keeps of its rows, destinations, in the forward pass: for each the softmax of the entries seen so far,
// rescaled when the largest logit grows, so that a source's row is gathered once, for the logit and for the sum.
template <class T, class Kind> struct PairForward {
    using A = Acc<T>;
    static constexpr A kLow = -A(__builtin_inf());
    const PairArgs& a;
    const Kind& kind;
    const int64_t heads, dim, n, stride, few;
    Scratch<A> acc, max, near, sum, e, shrink, kept;
    OnlineSoftmax<A> softmax;
    Scratch<double> total;
    Scratch<const T*> xs;

    PairForward(const PairArgs& args, const Kind& k, int64_t slots)
        : a(args), kind(k), heads(a.heads), dim(a.dim), n(heads * dim), stride(padded<A>(n)), few(cached_entries(n * sizeof(T))),
          acc(slots * stride), max(slots * heads), near(stride), sum(stride), e(few * heads), shrink(heads), kept(heads),
          softmax(heads), total(slots * heads), xs(kBlock) {}

    void begin(int64_t, int64_t slot) {
        memset(acc + slot * stride, 0, stride * sizeof(A));
        for (int64_t h = 0; h < heads; ++h) max[slot * heads + h] = kLow, total[slot * heads + h] = 0;
    }

    template <class I> void prepare(const I* ids, const Segment& s) {
        for (int64_t j = 0; j < s.count; ++j) xs[s.at + j] = (const T*)a.h + int64_t(ids[j]) * n;
    }

    __attribute__((noinline)) void consume(const Segment& s) {
        A *row = acc + s.slot * stride, *top = max + s.slot * heads;
        load_row<T>(near, (const T*)a.h_dst + a.g.own(s.row) * n, n);
        memset(sum, 0, stride * sizeof(A));
        for (int64_t h = 0; h < heads; ++h) kept[h] = 1;
        for (int64_t j0 = 0; j0 < s.count; j0 += few) {
            const T* const* ends = xs + s.at + j0;
            const int64_t count = least(few, s.count - j0);
            pair_logits<T>(a, kind, ends, count, s.ready - j0, few, near, e.data);
            softmax.add(e, count, top, total + s.slot * heads, shrink);
            shrink_heads<A>(sum, shrink, heads, dim);
            for (int64_t h = 0; h < heads; ++h) kept[h] *= shrink[h];
            accumulate_heads<T>({ends, e, nullptr, heads, count, count}, heads, dim, sum);
        }
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = h * dim; i < (h + 1) * dim; ++i) row[i] = row[i] * kept[h] + sum[i];
    }

    void finish(int64_t v, int64_t slot, bool empty) {
        store_attention<T>(a, v, empty, acc + slot * stride, max + slot * heads, total + slot * heads);
    }
};

// The attention weights a of a block of entries, and a (d - delta), d the dot products of the far and the near ends'
// rows of features and of gradients.
template <class T, class Kind> struct PairWeights {
    using A = Acc<T>;
    const PairArgs& args;
    const Kind& kind;
    const int64_t few;  // the most entries of a block
    Scratch<A> weight, centred, logits, d, max, inverse, delta;
    PairWeights(const PairArgs& a, const Kind& k, int64_t entries)
        : args(a), kind(k), few(entries), weight(few * a.heads), centred(few * a.heads), logits(few * a.heads), d(few * a.heads),
          max(few * a.heads), inverse(few * a.heads), delta(few * a.heads) {}

    // ends, near: the rows behind the logits; dotted, with: those behind d; dst: what args.dst has of the destinations.
    // Of `ready` entries those after `count` are fetched on the way.
    void make(const T* const* ends, const A* near, const T* const* dotted, const Dotted<T>* with, const A* const* dst, int64_t count,
              int64_t ready) const {
        const int64_t heads = args.heads;
        pair_logits<T>(args, kind, ends, count, ready, few, near, logits.data);
        dots_by_head<T>(dotted, count, dotted == ends ? count : ready, few, with, heads, args.dim, d);
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

// What a thread keeps of its rows in one of the backward passes: sums of two kinds over a row's entries, `own` of what
// comes through the logits.
template <class T, class Kind> struct PairBackward {
    using A = Acc<T>;
    const PairArgs& a;
    const Kind& kind;
    const int64_t heads, dim, n, stride, few;
    const PairWeights<T, Kind> weights;
    Scratch<A> own, other, near, sum_own, sum_other;
    Scratch<int64_t> share;  // of the rows that have entries

    PairBackward(const PairArgs& args, const Kind& k, int64_t slots, int64_t entries)
        : a(args), kind(k), heads(a.heads), dim(a.dim), n(heads * dim), stride(padded<A>(n)), few(entries), weights(a, k, few),
          own(slots * stride), other(slots * stride), near(stride), sum_own(stride), sum_other(stride), share(slots) {}

    A* record(int64_t v) const { return (A*)a.dst + v * heads * 3; }

    // Leaves the sums of a row, a piece of a hub.
    void leave(int64_t r, int64_t slot) const {
        memcpy((A*)a.own + r * n, own + slot * stride, n * sizeof(A));
        memcpy((A*)a.other + r * n, other + slot * stride, n * sizeof(A));
    }
    // Takes the sums of a hub, which its pieces left, for those of the only row.
    void take(A* pieces_own, A* pieces_other) const {
        memcpy(own, add_pieces(pieces_own, n), n * sizeof(A));
        memcpy(other, add_pieces(pieces_other, n), n * sizeof(A));
    }

    void begin(int64_t slot) {
        memset(own + slot * stride, 0, stride * sizeof(A));
        memset(other + slot * stride, 0, stride * sizeof(A));
    }

    void begin_segment(const Segment& s, const T* row) {
        share[s.slot] = s.share;
        load_row<T>(near, row, n);
        memset(sum_own, 0, stride * sizeof(A));
        memset(sum_other, 0, stride * sizeof(A));
    }

    void end_segment(const Segment& s) {
        add_row<A>(own + s.slot * stride, sum_own, n);
        add_row<A>(other + s.slot * stride, sum_other, n);
    }

    // Adds what a row gives to the gradient of the factors: `pair` without its factor is near * by_near, summed over both ends.
    void add_to_factors(int64_t slot, const T* row) {
        if (!a.grad_factor) return;
        double* sums = (double*)a.grad_factor + share[slot] * n;
        for (int64_t i = 0; i < n; ++i) sums[i] += double(to_acc(row[i])) * own[slot * stride + i];
    }
};

// Rows are destinations: the gradient of their own rows, and delta, the mean of d under the weights. It starts as the
// dot of grad and the stored output; how far that one's rounding puts it off, e = sum of a (d - delta), is found on the
// way and taken out again, for which `other` sums a by_near.
template <class T, class Kind> struct PairBackwardDestinations : PairBackward<T, Kind> {
    using Base = PairBackward<T, Kind>;
    using A = Acc<T>;
    using Base::a, Base::heads, Base::dim, Base::n, Base::stride, Base::few, Base::weights, Base::own, Base::other, Base::near;
    static constexpr bool kRounded = sizeof(T) < sizeof(A);
    Scratch<Dotted<T>> grad;
    Scratch<double> off;
    Scratch<const T*> xs;
    Scratch<const A*> records;

    PairBackwardDestinations(const PairArgs& args, const Kind& k, int64_t slots)
        : Base(args, k, slots, cached_entries(args.heads * args.dim * sizeof(T))), grad(stride), off(slots * heads), xs(kBlock), records(kBlock) {}

    void begin(int64_t v, int64_t slot) {
        Base::begin(slot);
        memset(off + slot * heads, 0, heads * sizeof(double));
        if (a.g.pieces) return;  // the hub's record is there
        A* r = this->record(v);
        for (int64_t h = 0; h < heads; ++h) {
            r[h] = ((const A*)a.max)[v * heads + h];
            r[heads + h] = 1 / ((const A*)a.sum)[v * heads + h];
        }
        const T* stored = (const T*)a.out + v * n;
        hold_row<T>(grad, (const T*)a.grad + v * n, n);
        dots_by_head<T>(&stored, 1, 1, 0, grad.data, heads, dim, r + 2 * heads);
    }

    template <class I> void prepare(const I* ids, const Segment& s) {
        for (int64_t j = 0; j < s.count; ++j)
            xs[s.at + j] = (const T*)a.h + int64_t(ids[j]) * n, records[s.at + j] = this->record(a.g.own(s.row));
    }

    __attribute__((noinline)) void consume(const Segment& s) {
        const int64_t v = a.g.own(s.row);
        this->begin_segment(s, (const T*)a.h_dst + v * n);
        hold_row<T>(grad, (const T*)a.grad + v * n, n);
        const auto by_near = this->kind.by_near(near);
        for (int64_t j0 = 0; j0 < s.count; j0 += few) {
            const T* const* ends = xs + s.at + j0;
            const int64_t count = least(few, s.count - j0);
            weights.make(ends, near, ends, grad, records + s.at + j0, count, s.ready - j0);
            accumulate_heads<T>({ends, weights.centred, nullptr, heads, count, count}, heads, dim, this->sum_own, by_near);
            if (!kRounded) continue;
            accumulate_heads<T>({ends, weights.weight, nullptr, heads, count, count}, heads, dim, this->sum_other, by_near);
            sum_heads<A>(weights.centred, count, heads, off + s.slot * heads);
        }
        this->end_segment(s);
    }

    void leave(int64_t r, int64_t slot) const {
        Base::leave(r, slot);
        memcpy((double*)a.off + r * heads, off + slot * heads, heads * sizeof(double));
    }
    void take(A* pieces_own, A* pieces_other, double* pieces_off) const {
        Base::take(pieces_own, pieces_other);
        memcpy(off, add_pieces(pieces_off, heads), heads * sizeof(double));
    }

    void finish(int64_t v, int64_t slot, bool empty) {
        if (a.g.pieces) return leave(v, slot);
        A *row = own + slot * stride, *delta = this->record(v) + 2 * heads;
        const A* mean = other + slot * stride;
        for (int64_t h = 0; kRounded && h < heads; ++h) {
            const A e = A(off[slot * heads + h]);
            delta[h] += e;
            for (int64_t i = h * dim; i < (h + 1) * dim; ++i) row[i] -= e * mean[i];
        }
        if (!empty) this->add_to_factors(slot, (const T*)a.h_dst + v * n);
        for (int64_t i = 0; i < n; ++i) row[i] *= ((const A*)a.factor)[i];
        store_row((T*)a.grad_h_dst + v * n, (const A*)row, n);
    }
};

// Rows are sources: the gradient of their rows through the logits and, in `other`, through the weighted sum.
template <class T, class Kind> struct PairBackwardSources : PairBackward<T, Kind> {
    using Base = PairBackward<T, Kind>;
    using A = Acc<T>;
    using Base::a, Base::heads, Base::dim, Base::n, Base::stride, Base::few, Base::weights, Base::own, Base::other, Base::near;
    Scratch<Dotted<T>> dotted;
    Scratch<const T*> ys, grads;
    Scratch<const A*> records;

    PairBackwardSources(const PairArgs& args, const Kind& k, int64_t slots)
        : Base(args, k, slots, cached_entries(2 * args.heads * args.dim * sizeof(T))), dotted(stride), ys(kBlock), grads(kBlock), records(kBlock) {}

    void begin(int64_t, int64_t slot) { Base::begin(slot); }

    template <class I> void prepare(const I* ids, const Segment& s) {
        for (int64_t j = 0; j < s.count; ++j) {
            const int64_t v = ids[j];
            ys[s.at + j] = (const T*)a.h_dst + v * n, grads[s.at + j] = (const T*)a.grad + v * n;
            records[s.at + j] = this->record(v);
        }
    }

    __attribute__((noinline)) void consume(const Segment& s) {
        const T* row = (const T*)a.h + a.g.own(s.row) * n;
        this->begin_segment(s, row);
        hold_row<T>(dotted, row, n);
        const auto by_near = this->kind.by_near(near);
        for (int64_t j0 = 0; j0 < s.count; j0 += few) {
            const T *const *ends = ys + s.at + j0, *const *gs = grads + s.at + j0;
            const A* const* dst = records + s.at + j0;
            const int64_t count = least(few, s.count - j0);
            for (int64_t j = count; j < least(count + few, s.ready - j0); ++j) prefetch(dst[j], heads * 3);
            weights.make(ends, near, gs, dotted, dst, count, s.ready - j0);
            accumulate_heads<T>({ends, weights.centred, nullptr, heads, count, count}, heads, dim, this->sum_own, by_near);
            accumulate_heads<T>({gs, weights.weight, nullptr, heads, count, count}, heads, dim, this->sum_other);
        }
        this->end_segment(s);
    }

    void take(A* pieces_own, A* pieces_other, double*) const { Base::take(pieces_own, pieces_other); }

    void finish(int64_t u, int64_t slot, bool empty) {
        if (a.g.pieces) return this->leave(u, slot);
        A* row = other + slot * stride;
        if (!empty) this->add_to_factors(slot, (const T*)a.h + u * n);
        for (int64_t i = 0; i < n; ++i) row[i] += ((const A*)a.factor)[i] * own[slot * stride + i];
        store_row((T*)a.grad_h + u * n, (const A*)row, n);
    }
};

// Calls f(I*, T*, kind).
template <class F> void with_pair(const PairArgs& a, const F& f) {
    with_types(a.g.wide, a.dtype, [&](auto* i, auto* t) {
        using A = Acc<AMPGNN_TYPE(t)>;
        if (a.product) f(i, t, Product<A>{});
        else f(i, t, LeakySum<A>{A(a.negative_slope)});
    });
}

// Walks the rows of `a` with a Pass for each thread. An entry gathers a row of each of `gathers` arrays, `gathered` is one of
// them; a row keeps `kept` rows of sums.
template <template <class, class> class Pass, class I, class T, class Kind>
void pair_rows(const PairArgs& a, const Kind& kind, const void* gathered, int64_t gathers, int64_t kept, int64_t shares) {
    const View<I> g(a.g);
    const int64_t n = a.heads * a.dim, bytes = n * sizeof(T);
    Tiling tiling = tiling_for(a.g, gathered, gathers * bytes, kept * padded<Acc<T>>(n) * sizeof(Acc<T>));
    if (tiling.shared()) tiling.bytes = bytes;
    const auto walk = [&](const Span& span) {
        Pass<T, Kind> pass(a, kind, span.slots(g.indptr, tiling.chunk));
        for_segments(
            g, tiling, span, {}, [&](int64_t r, int64_t slot) { pass.begin(r, slot); },
            [&](const Segment& s) { pass.prepare(g.indices + s.k, s); }, [&](const Segment& s) { pass.consume(s); },
            [&](int64_t r, int64_t slot) { pass.finish(r, slot, g.indptr[r] == g.indptr[r + 1]); });
    };
    for_rows<I>(a.g, tiling, 4 * n + a.heads * 8, a.threads, walk, shares);
}

// a, for the rows from `first` on: destinations, or sources in the last pass.
template <class T> PairArgs from_destination(PairArgs a, const Rows& rows, int64_t first) {
    using A = Acc<T>;
    const int64_t n = a.heads * a.dim;
    a.g = rows, a.h_dst = row_at<T>(a.h_dst, first, n), a.out = row_at<T>(a.out, first, n), a.grad = row_at<T>(a.grad, first, n);
    a.max = row_at<A>(a.max, first, a.heads), a.sum = row_at<A>(a.sum, first, a.heads);
    a.dst = row_at<A>(a.dst, first, a.heads * 3), a.grad_h_dst = row_at<T>(a.grad_h_dst, first, n);
    return a;
}
template <class T> PairArgs from_source(PairArgs a, const Rows& rows, int64_t first) {
    const int64_t n = a.heads * a.dim;
    a.g = rows, a.h = row_at<T>(a.h, first, n), a.grad_h = row_at<T>(a.grad_h, first, n);
    return a;
}

void pair_attention(const PairArgs& a) {
    with_pair(a, [&](auto* i, auto* t, auto kind) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        const auto run = [&](const PairArgs& of) { pair_rows<PairForward, I, T>(of, kind, of.h, 1, 1, 0); };
        around_hubs<I>(
            a.g, [&](const Rows& rows, int64_t first) { run(from_destination<T>(a, rows, first)); },
            [&](int64_t hub) {
                const Pieces<I> pieces(a.g, hub);
                attention_of_hub<T>(a, hub, from_destination<T>(a, pieces.rows, hub), run);
            });
    });
}

// A backward pass over `a`, where from(a, rows, first) is from_destination or from_source and gathered(a) what tiles hold.
template <template <class, class> class Pass, class From, class Gathered>
void pair_backward(const PairArgs& a, int64_t gathers, const From& from, const Gathered& gathered) {
    with_pair(a, [&](auto* i, auto* t, auto kind) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        using A = Acc<T>;
        const auto run = [&](const PairArgs& of) { pair_rows<Pass, I, T>(of, kind, gathered(of), gathers, 2, a.parts); };
        around_hubs<I>(
            a.g, [&](const Rows& rows, int64_t first) { run(from(t, a, rows, first)); },
            [&](int64_t hub) {
                const Pieces<I> pieces(a.g, hub);
                const int64_t n = a.heads * a.dim;
                const Scratch<A> own(kPieces * n), other(kPieces * n);
                const Scratch<double> off(kPieces * a.heads);
                Pass<T, decltype(kind)> whole(a, kind, 1);
                whole.begin(hub, 0);
                PairArgs of = from(t, a, pieces.rows, hub);
                of.own = own, of.other = other, of.off = off;
                run(of);
                whole.take(own, other, off);
                whole.finish(hub, 0, false);
            });
    });
}

void pair_backward_destinations(const PairArgs& a) {
    pair_backward<PairBackwardDestinations>(
        a, 1, [](auto* t, const auto&... rest) { return from_destination<AMPGNN_TYPE(t)>(rest...); }, [](const PairArgs& of) { return of.h; });
}
void pair_backward_sources(const PairArgs& a) {
    pair_backward<PairBackwardSources>(
        a, 2, [](auto* t, const auto&... rest) { return from_source<AMPGNN_TYPE(t)>(rest...); }, [](const PairArgs& of) { return of.grad; });
}

}  // namespace
