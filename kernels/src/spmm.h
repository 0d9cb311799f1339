// out[v] = reduce over the edges (u, e, v) of op(x[u], w[e]).
#pragma once
#include "extreme.h"
#include "hubs.h"

namespace {

// How the message of an edge becomes a row of floats: any op under any broadcasting.
template <class T, Op O> void message(const SpmmArgs& a, const T* x, const T* w, Acc<T>* m) {
    using A = Acc<T>;
    const Broadcast& b = a.b;
    for (int64_t o = 0; o < b.outer; ++o, m += b.inner) {
        const T* xo = O == Op::copy_e ? nullptr : x + b.lhs_off[o];
        const T* wo = O == Op::copy_u ? nullptr : w + b.rhs_off[o];
        const auto value = [&](int64_t i, int64_t xs, int64_t ws) {
            const A l = O == Op::copy_e ? A(0) : A(to_acc(xo[i * xs])), r = O == Op::copy_u ? A(0) : A(to_acc(wo[i * ws]));
            switch (O) {
                case Op::copy_u: return l;
                case Op::copy_e: return r;
                case Op::add: return A(l + r);
                case Op::sub: return A(l - r);
                case Op::mul: return A(l * r);
                default: return A(l / r);
            }
        };
        if (b.lhs_step == 1 && b.rhs_step == 1) for (int64_t i = 0; i < b.inner; ++i) m[i] = value(i, 1, 1);
        else if (b.lhs_step == 1) for (int64_t i = 0; i < b.inner; ++i) m[i] = value(i, 1, 0);
        else if (b.rhs_step == 1) for (int64_t i = 0; i < b.inner; ++i) m[i] = value(i, 0, 1);
        else for (int64_t i = 0; i < b.inner; ++i) m[i] = value(i, 0, 0);
    }
}

template <class T> using Message = void (*)(const SpmmArgs&, const T*, const T*, Acc<T>*);
template <class T> Message<T> message_of(Op op) {
    switch (op) {
        case Op::copy_u: return message<T, Op::copy_u>;
        case Op::copy_e: return message<T, Op::copy_e>;
        case Op::add: return message<T, Op::add>;
        case Op::sub: return message<T, Op::sub>;
        case Op::mul: return message<T, Op::mul>;
        default: return message<T, Op::div>;
    }
}

inline bool copies(Op op) { return op == Op::copy_u || op == Op::copy_e; }

// Makes of entries, or -1, what `arg` holds of them.
template <class I> void name_chosen(const SpmmArgs& a, I* arg, int64_t n) {
    const void* ids = a.op == Op::copy_u ? a.g.indices : a.op == Op::copy_e ? a.g.eids : nullptr;
    if (!ids) return;
    for (int64_t i = 0; i < n; ++i) arg[i] = arg[i] < 0 ? arg[i] : ((const I*)ids)[arg[i]];
}

template <class I, class T, class Running> void spmm_extreme(const SpmmArgs& a) {
    using A = Acc<T>;
    using Bits = typename Traits<A>::Bits;
    const View<I> g(a.g);
    const T *x = (const T*)a.x, *w = (const T*)a.w;
    const int64_t n = a.b.outer * a.b.inner;
    const auto msg = message_of<T>(a.op);
    const auto row_of = [&](int64_t k) {
        return a.op == Op::copy_e ? w + g.eid(k) * a.w_stride : x + int64_t(g.indices[k]) * a.x_stride;
    };
    const Tiling t = tiling_for(a.g, a.x, a.op == Op::copy_e ? 0 : n * sizeof(T), padded<A>(n) * Running::kKept);
    for_rows<I>(a.g, t, n, a.threads, [&](const Span& span) {
        Running running(n, span.slots(g.indptr, t.chunk));
        Scratch<A> m(padded<A>(n));
        Scratch<int64_t> position(n);
        Scratch<Bits> ids(kBlock);
        Scratch<const T*> xs(kBlock);
        for_segments(
            g, t, span, {(const char*)w, a.w_stride * int64_t(sizeof(T))}, [&](int64_t, int64_t slot) { running.begin(slot); },
            [&](const Segment& s) {
                for (int64_t j = 0; j < s.count; ++j) {
                    if (w) g.prefetch_edge(w, a.w_stride, s.k + j + kEdgesAhead, s.stop);
                    xs[s.at + j] = row_of(s.k + j);
                    if (Running::kIds) ids[s.at + j] = Bits(g.eid(s.k + j));
                }
            },
            [&](const Segment& s) {
                const int64_t first = s.k - int64_t(g.indptr[s.row]);
                if (copies(a.op)) return running.take(Candidates<T>{xs + s.at, ids + s.at, s.count, s.ready, first}, s.slot);
                if constexpr (Running::kMessages) {
                    const A* const row = m;
                    for (int64_t j = 0; j < s.count; ++j) {
                        msg(a, xs[s.at + j], w + g.eid(s.k + j) * a.w_stride, m);
                        running.take(Candidates<A>{&row, ids + s.at + j, 1, 1, first + j}, s.slot);
                    }
                }
            },
            [&](int64_t r, int64_t slot) {
                const int64_t k0 = g.indptr[r], k1 = g.indptr[r + 1];
                if (k0 < k1) running.finish(slot, [&](int64_t p) { return row_of(k0 + p); }, m, position);
                else std::fill_n(m.data, n, A(0)), std::fill_n(position.data, n, -1 - k0);
                store_result<T>(a.g, a.out, r, m, n);
                if (!a.arg) return;
                I* arg = (I*)a.arg + r * n;
                for (int64_t i = 0; i < n; ++i) arg[i] = I(k0 + position[i]);
                if (!a.g.pieces) name_chosen(a, arg, n);
            });
    });
}

template <class I> int64_t longest_row(const Rows& g) {
    const I* indptr = (const I*)g.indptr;
    int64_t longest = 0;
    for (int64_t r = 0; r < g.rows; ++r) longest = most(longest, int64_t(indptr[r + 1]) - int64_t(indptr[r]));
    return longest;
}

template <class I, class T, bool Max> void spmm_extreme(const SpmmArgs& a) {
    if (a.by_id) return spmm_extreme<I, T, Extremes<T, Max, true>>(a);
    if constexpr (sizeof(T) == 2)
        if (copies(a.op) && longest_row<I>(a.g) <= HalfExtremes<T, Max>::kPositions)
            return spmm_extreme<I, T, HalfExtremes<T, Max>>(a);
    spmm_extreme<I, T, Extremes<T, Max, false>>(a);
}

// A product with a weight shared by all columns, by each head's columns, or none: the SIMD path.
template <class T> bool weights_are_heads(const SpmmArgs& a) {
    if (a.op == Op::copy_u) return true;
    if (a.op != Op::mul || a.b.rhs_step != 0 || (a.b.lhs_step != 1 && a.b.inner != 1)) return false;
    for (int64_t o = 0; o < a.b.outer; ++o)
        if (a.b.lhs_off[o] != o * a.b.inner || a.b.rhs_off[o] != o) return false;
    return true;
}

template <class T> bool weights_are_columns(const SpmmArgs& a) {
    return a.op == Op::mul && a.b.outer == 1 && a.b.lhs_step == 1 && a.b.rhs_step == 1;
}

// Stores a row's sum as the result of row r; that of a piece as it is.
template <class T> void finish_sum(const SpmmArgs& a, int64_t r, int64_t degree, int64_t n, Acc<T>* sum) {
    using A = Acc<T>;
    if (a.reduce == Reduce::mean && degree > 0 && !a.g.pieces)
        for (int64_t i = 0; i < n; ++i) sum[i] /= A(degree);
    if (a.dst_scale && !a.g.pieces) scale_row<A>(sum, ((const A*)a.dst_scale)[r], n);
    store_result<T>(a.g, a.out, r, sum, n);
}

// A block of entries whose rows and weights are looked up as they are used.
template <class I, class T> struct LookedUp {
    const SpmmArgs& a;
    const View<I>& g;
    int64_t k, count, ready;
    const T* row(int64_t j) const { return (const T*)a.x + int64_t(g.indices[k + j]) * a.x_stride; }
    Acc<T> scalar(int64_t j) const {
        const T* w = (const T*)a.w;
        if (w) g.prefetch_edge(w, a.w_stride, k + j + kEdgesAhead, k + ready);
        const Acc<T> weight = w ? Acc<T>(to_acc(w[g.eid(k + j) * a.w_stride])) : Acc<T>(1);
        return a.src_scale ? weight * ((const Acc<T>*)a.src_scale)[g.indices[k + j]] : weight;
    }
};

// The sum of a block's only column, of as many entries at once as a vector has lanes.
template <class T, Weight M, class B> Acc<T> add_column(const B& b) {
    using A = Acc<T>;
    constexpr int64_t W = kLanes<A>;
    Vec<A> sum = {};
    for (int64_t j = 0; j < b.count; j += W) {
        A term[W] = {};
        for (int64_t q = 0; q < least(W, b.count - j); ++q) term[q] = to_acc(*b.row(j + q)) * (M == Weight::none ? A(1) : b.scalar(j + q));
        sum += load(term);
    }
    return lanes_sum<A>(sum);
}

// One weight an entry, or none, and no tiles: rows of few entries cost little beside them.
template <class I, class T, Weight M> void spmm_short(const SpmmArgs& a, int64_t n) {
    const View<I> g(a.g);
    const int64_t all = g.indptr[a.g.rows], stride = padded<Acc<T>>(n);
    for_rows<I>(a.g, n, a.threads, [&](int64_t first, int64_t end) {
        const Scratch<Acc<T>> sum(stride);
        for (int64_t r = first; r < end; ++r) {
            const int64_t k0 = g.indptr[r], k1 = g.indptr[r + 1];
            std::fill_n(sum.data, stride, Acc<T>(0));
            for (int64_t k = k0; k < k1; k += kBlock) {
                const LookedUp<I, T> block{a, g, k, least(kBlock, k1 - k), all - k};
                if (n == 1) sum[0] += add_column<T, M>(block);
                else accumulate<T, M>(block, n, n, sum);
            }
            finish_sum<T>(a, r, k1 - k0, n, sum);
        }
    });
}

template <class I, class T> void spmm_sum(const SpmmArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const T *x = (const T*)a.x, *w = (const T*)a.w;
    const A* src_scale = (const A*)a.src_scale;
    const int64_t n = a.b.outer * a.b.inner, stride = padded<A>(n), heads = a.op == Op::copy_u ? 1 : a.b.outer;
    const int64_t x_stride = a.x_stride, w_stride = a.w_stride;
    const bool by_head = weights_are_heads<T>(a), by_column = !by_head && weights_are_columns<T>(a) && !a.src_scale;
    const bool plain = a.op == Op::copy_u && !a.src_scale;
    const auto msg = message_of<T>(a.op);
    const Tiling t = tiling_for(a.g, a.x, a.op == Op::copy_e ? 0 : n * sizeof(T), stride * sizeof(A));
    if (!t.shared() && plain) return spmm_short<I, T, Weight::none>(a, n);
    if (!t.shared() && by_head && heads == 1) return spmm_short<I, T, Weight::scalar>(a, n);
    for_rows<I>(a.g, t, n, a.threads, [&](const Span& span) {
        Scratch<A> acc(span.slots(g.indptr, t.chunk) * stride), m(n), sum(n), weight(kBlock * heads + kLanes<A>);
        Scratch<const T*> xs(kBlock), ws(kBlock);
        for_segments(
            g, t, span, {(const char*)w, a.w_stride * int64_t(sizeof(T))}, [&](int64_t, int64_t slot) { memset(acc + slot * stride, 0, stride * sizeof(A)); },
            [&](const Segment& s) {
                prefetch(acc + s.slot * stride, n);
                const I* ends = g.indices + s.k;
                const T **rows = xs + s.at, **edges = ws + s.at;
                A* to = weight + s.at * heads;
                for (int64_t j = 0; j < s.count; ++j) rows[j] = x + int64_t(ends[j]) * x_stride;
                if (w)
                    for (int64_t j = 0; j < s.count; ++j) {
                        g.prefetch_edge(w, w_stride, s.k + j + kEdgesAhead, s.stop);
                        edges[j] = w + g.eid(s.k + j) * w_stride;
                    }
                if (!by_head || plain) return;
                if (w && heads == 1) for (int64_t j = 0; j < s.count; ++j) to[j] = A(to_acc(*edges[j]));
                else if (w) for (int64_t j = 0; j < s.count; ++j) load_row<T>(to + j * heads, edges[j], heads);
                else for (int64_t j = 0; j < s.count; ++j) to[j] = A(1);
                if (src_scale)
                    for (int64_t i = 0; i < s.count * heads; ++i) to[i] *= src_scale[ends[i / heads]];
            },
            [&](const Segment& s) {
                A* to = acc + s.slot * stride;
                const Block<T> block{xs + s.at, weight + s.at * heads, ws + s.at, heads, s.count, s.ready};
                if (by_column) return accumulate<T, Weight::per_column>(block, n, 1, to);
                if (plain) return accumulate<T, Weight::none>(block, n, n, to);
                if (by_head) return accumulate_heads<T>(block, heads, n / heads, to);
                memset(sum, 0, n * sizeof(A));
                for (int64_t j = 0; j < s.count; ++j) {
                    msg(a, block.x[j], block.wx[j], m);
                    const A scale = src_scale ? src_scale[g.indices[s.k + j]] : A(1);
                    for (int64_t i = 0; i < n; ++i) sum[i] += scale * m[i];
                }
                add_row<A>(to, sum, n);
            },
            [&](int64_t r, int64_t slot) {
                finish_sum<T>(a, r, int64_t(g.indptr[r + 1]) - int64_t(g.indptr[r]), n, acc + slot * stride);
            });
    });
}

template <class I, class T> void spmm_rows(const SpmmArgs& a) {
    if (a.reduce == Reduce::max) spmm_extreme<I, T, true>(a);
    else if (a.reduce == Reduce::min) spmm_extreme<I, T, false>(a);
    else spmm_sum<I, T>(a);
}

// Whether a later piece's extreme v, of entry k, takes the place of `best`, as in Extremes.
template <class I, class A> bool replaces(const SpmmArgs& a, A v, I k, A best, I best_k) {
    if (best != best) return false;
    if (a.by_id && v == best) return ((const I*)a.g.eids)[k] < ((const I*)a.g.eids)[best_k];
    return a.reduce == Reduce::max ? !(v <= best) : !(v >= best);
}

template <class I, class T> void spmm_hub(const SpmmArgs& a, int64_t hub) {
    using A = Acc<T>;
    const int64_t n = a.b.outer * a.b.inner;
    const Pieces<I> pieces(a.g, hub);
    const Scratch<A> out(kPieces * n);
    const Scratch<I> arg(a.arg ? kPieces * n : 0);
    SpmmArgs of = a;
    of.g = pieces.rows, of.out = out, of.arg = a.arg ? arg.data : nullptr;
    spmm_rows<I, T>(of);
    if (a.reduce == Reduce::sum || a.reduce == Reduce::mean)
        return finish_sum<T>(a, hub, pieces.rows.nnz, n, add_pieces<A>(out, n));
    for (int64_t i = n; i < kPieces * n; ++i) {
        const int64_t j = i % n, k = a.arg ? i : 0, best = a.arg ? j : 0;
        if (replaces<I>(a, out[i], arg[k], out[j], arg[best])) out[j] = out[i], arg[best] = arg[k];
    }
    store_row((T*)a.out + hub * n, (const A*)out, n);
    if (!a.arg) return;
    name_chosen(a, arg.data, n);
    std::copy_n(arg.data, n, (I*)a.arg + hub * n);
}

void spmm(const SpmmArgs& a) {
    with_types(a.g.wide, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        const int64_t n = a.b.outer * a.b.inner;
        const auto others = [&](const Rows& rows, int64_t first) {
            SpmmArgs of = a;
            of.g = rows, of.out = row_at<T>(a.out, first, n), of.arg = row_at<I>(a.arg, first, n);
            of.dst_scale = row_at<Acc<T>>(a.dst_scale, first, 1);
            spmm_rows<I, T>(of);
        };
        around_hubs<I>(a.g, others, [&](int64_t hub) { spmm_hub<I, T>(a, hub); });
    });
}

}  // namespace
