// out[v] = reduce over the edges (u, e, v) of op(x[u], w[e]).
#pragma once
#include "accumulate.h"
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

template <class T> struct Extremes {
    const T* const* x;  // a row for each of `count` entries
    const typename Traits<Acc<T>>::Bits* ids;
    int64_t count, ready, first;
    Acc<T>* acc;
    typename Traits<Acc<T>>::Bits *arg, *arg_id;
};

// acc = the extreme of acc and of a block of rows x; arg = the position in its row, `first` and on, of the entry it came
// from. Of equal values the one with the smallest id wins where Ids, else the first; a NaN wins over everything, as in
// torch.amax. NV vectors of columns from `col`.
template <class T, bool Max, bool Ids, int NV, bool Tail>
void extreme_columns(const Extremes<T>& b, int64_t col, int tail) {
    using A = Acc<T>;
    using Int = typename Traits<A>::Int;
    using Bits = typename Traits<A>::Bits;
    constexpr int W = kLanes<A>;
    Vec<A> best[NV];
    Int from[NV], id[NV];
    for (int i = 0; i < NV; ++i) {
        best[i] = load(b.acc + col + i * W);
        memcpy(&from[i], b.arg + col + i * W, sizeof(Int));
        if (Ids) memcpy(&id[i], b.arg_id + col + i * W, sizeof(Int));
    }
    for (int64_t k = 0; k < b.count; ++k) {
        if (k + kAhead < b.ready) prefetch(b.x[k + kAhead] + col, NV * W);
        const Int number = Int{} + Bits(b.first + k), its = Ids ? Int{} + b.ids[k] : Int{};
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) {
            const T* row = b.x[k] + col + i * W;
            const Vec<A> v = Tail && i == NV - 1 ? load_n(row, tail) : load(row);
            Int take = ~(Max ? v <= best[i] : v >= best[i]);
            if (Ids) take |= (v == best[i]) & (its < id[i]);
            take &= best[i] == best[i];
            best[i] = take ? v : best[i];
            from[i] = take ? number : from[i];
            if (Ids) id[i] = take ? its : id[i];
        }
    }
    for (int i = 0; i < NV; ++i) {
        store(b.acc + col + i * W, best[i]);
        memcpy(b.arg + col + i * W, &from[i], sizeof(Int));
        if (Ids) memcpy(b.arg_id + col + i * W, &id[i], sizeof(Int));
    }
}

template <class T, bool Max, bool Ids> void take_extremes(const Extremes<T>& b, int64_t n) {
    constexpr int W = kLanes<Acc<T>>, NV = Ids ? 4 : 8;
    int64_t col = 0;
    for (; col + NV * W <= n; col += NV * W) extreme_columns<T, Max, Ids, NV, false>(b, col, 0);
    for (; col + W <= n; col += W) extreme_columns<T, Max, Ids, 1, false>(b, col, 0);
    if (col < n) extreme_columns<T, Max, Ids, 1, true>(b, col, int(n - col));
}

// A NaN's first entry stays: nothing replaces it, so that among NaNs the order of the walk decides.
template <class I, class T, bool Max, bool Ids> void spmm_extreme(const SpmmArgs& a) {
    using A = Acc<T>;
    using B = typename Traits<A>::Bits;
    const View<I> g(a.g);
    const T *x = (const T*)a.x, *w = (const T*)a.w;
    const int64_t n = a.b.outer * a.b.inner, stride = padded<A>(n);
    const A start = Max ? -A(__builtin_inf()) : A(__builtin_inf());
    const bool copies = a.op == Op::copy_u || a.op == Op::copy_e;
    const auto msg = message_of<T>(a.op);
    const Tiling t = tiling_for(a.g, a.x, a.op == Op::copy_e ? 0 : n * sizeof(T), stride * (sizeof(A) + sizeof(B) * (Ids ? 2 : 1)));
    for_rows<I>(a.g, t, n, a.threads, [&](const Span& span) {
        const int64_t slots = span.slots(g.indptr, t.chunk);
        Scratch<A> acc(slots * stride), m(stride);
        Scratch<B> arg(slots * stride), arg_id(Ids ? slots * stride : 0), ids(kBlock);
        Scratch<const T*> xs(kBlock);
        for_segments(
            g, t, span, {(const char*)w, a.w_stride * int64_t(sizeof(T))},
            [&](int64_t r, int64_t slot) {
                const A init = g.indptr[r] < g.indptr[r + 1] ? start : A(0);
                for (int64_t i = 0; i < n; ++i) acc[slot * stride + i] = init;
                memset(arg + slot * stride, 0, n * sizeof(B));
                if (Ids)  // the first entry of all -inf takes any id's place
                    for (int64_t i = 0; i < n; ++i) arg_id[slot * stride + i] = B((uint64_t(1) << (8 * sizeof(B) - 1)) - 1);
            },
            [&](const Segment& s) {
                for (int64_t j = 0; j < s.count; ++j) {
                    if (w) g.prefetch_edge(w, a.w_stride, s.k + j + kEdgesAhead, s.stop);
                    xs[s.at + j] = a.op == Op::copy_e ? w + g.eid(s.k + j) * a.w_stride : x + int64_t(g.indices[s.k + j]) * a.x_stride;
                    if (Ids) ids[s.at + j] = B(g.eid(s.k + j));
                }
            },
            [&](const Segment& s) {
                A* to = acc + s.slot * stride;
                B *from = arg + s.slot * stride, *id = arg_id + (Ids ? s.slot * stride : 0);
                const int64_t position = s.k - int64_t(g.indptr[s.row]);
                if (copies) return take_extremes<T, Max, Ids>({xs + s.at, ids + s.at, s.count, s.ready, position, to, from, id}, n);
                const A* const row = m;
                for (int64_t j = 0; j < s.count; ++j) {
                    msg(a, xs[s.at + j], w + g.eid(s.k + j) * a.w_stride, m);
                    take_extremes<A, Max, Ids>({&row, ids + s.at + j, 1, 1, position + j, to, from, id}, n);
                }
            },
            [&](int64_t r, int64_t slot) {
                store_result<T>(a.g, a.out, r, acc + slot * stride, n);
                const int64_t k0 = g.indptr[r], k1 = g.indptr[r + 1];
                if (a.arg)
                    for (int64_t i = 0; i < n; ++i) ((I*)a.arg)[r * n + i] = k0 < k1 ? I(k0 + arg[slot * stride + i]) : I(-1);
            });
    });
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
    const bool ids = a.arg && a.g.eids;  // else entries come in the order of their ids, or nobody asks which one won
    if (a.reduce == Reduce::max) ids ? spmm_extreme<I, T, true, true>(a) : spmm_extreme<I, T, true, false>(a);
    else if (a.reduce == Reduce::min) ids ? spmm_extreme<I, T, false, true>(a) : spmm_extreme<I, T, false, false>(a);
    else spmm_sum<I, T>(a);
}

// Whether a later piece's extreme v, of entry k, takes the place of `best`, as in extreme_columns.
template <class I, class A> bool replaces(const SpmmArgs& a, A v, I k, A best, I best_k) {
    if (best != best) return false;
    if (a.arg && a.g.eids && v == best) return ((const I*)a.g.eids)[k] < ((const I*)a.g.eids)[best_k];
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
    if (a.arg) std::copy(arg.data, arg.data + n, (I*)a.arg + hub * n);
}

void spmm(const SpmmArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) {
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

// Each thread owns a block of columns, so every output element has one writer, in row order.
void arg_scatter(const ArgScatterArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        using A = Acc<T>;
        constexpr int64_t kColumns = 16, kRows = 16;  // of a batch
        const View<I> g(a.g);
        const T* grad = (const T*)a.grad;
        T* out = (T*)a.out;
        const int64_t blocks = (a.width + kColumns - 1) / kColumns;
        const bool to_edges = a.target == Target::e;
        const I* ids = to_edges ? g.eids : g.indices;
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (a.g.rows * a.width > 1 << 15)
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t c0 = block * kColumns, c = least(kColumns, a.width - c0);
            Scratch<A> sum(to_edges ? 0 : a.out_rows * c);
            int64_t to[kRows * kColumns];
            const auto each = [&](int64_t r0, const auto& f) {  // f(row, column, entry, number) for a batch's entries
                for (int64_t r = r0; r < least(r0 + kRows, a.g.rows); ++r)
                    for (int64_t j = 0; j < c; ++j) {
                        const int64_t k = ((const I*)a.arg)[r * a.width + c0 + j];
                        if (k >= 0) f(r, j, k, (r - r0) * kColumns + j);
                    }
            };
            // An entry's id and what it points to are a cache miss each: both are fetched ahead.
            const auto fetch_ids = [&](int64_t r0) {
                if (ids) each(r0, [&](int64_t, int64_t, int64_t k, int64_t) { __builtin_prefetch(ids + k); });
            };
            fetch_ids(0);
            for (int64_t r0 = 0; r0 < a.g.rows; r0 += kRows) {
                fetch_ids(r0 + kRows);
                each(r0, [&](int64_t, int64_t j, int64_t k, int64_t i) {
                    to[i] = to_edges ? g.eid(k) * a.width + c0 + j : int64_t(g.indices[k]) * c + j;
                    __builtin_prefetch(to_edges ? (const void*)(out + to[i]) : (const void*)(sum + to[i]), 1);
                });
                each(r0, [&](int64_t r, int64_t j, int64_t, int64_t i) {
                    const T value = grad[r * a.width + c0 + j];
                    if (to_edges) out[to[i]] = value;
                    else sum[to[i]] += A(to_acc(value));
                });
            }
            if (!to_edges)
                for (int64_t u = 0; u < a.out_rows; ++u) store_row(out + u * a.width + c0, (const A*)sum + u * c, c);
        }
    });
}

}  // namespace
