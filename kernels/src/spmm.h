// out[v] = reduce over the edges (u, e, v) of op(x[u], w[e]).
#pragma once
#include "accumulate.h"

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

// acc = the extreme of acc and of `count` rows x; arg = the number, from `first` on, of the row it came from. The first
// extreme wins, and the first NaN over everything, as in torch.amax. NV vectors of columns from `col`.
template <class T, bool Max, int NV, bool Tail>
void extreme_columns(const T* const* x, int64_t count, int64_t first, int64_t col, int tail, Acc<T>* acc,
                     typename Traits<Acc<T>>::Bits* arg) {
    using A = Acc<T>;
    using Int = typename Traits<A>::Int;
    constexpr int W = kLanes<A>;
    Vec<A> best[NV];
    Int from[NV];
    for (int i = 0; i < NV; ++i) best[i] = load(acc + col + i * W), memcpy(&from[i], arg + col + i * W, sizeof(Int));
    for (int64_t k = 0; k < count; ++k) {
        if (k + kAhead < count) prefetch(x[k + kAhead] + col, NV * W);
        const Int number = Int{} + typename Traits<A>::Bits(first + k);
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) {
            const T* row = x[k] + col + i * W;
            const Vec<A> v = Tail && i == NV - 1 ? load_n(row, tail) : load(row);
            const Int take = ~(Max ? v <= best[i] : v >= best[i]) & (best[i] == best[i]);
            best[i] = take ? v : best[i];
            from[i] = take ? number : from[i];
        }
    }
    for (int i = 0; i < NV; ++i) store(acc + col + i * W, best[i]), memcpy(arg + col + i * W, &from[i], sizeof(Int));
}

template <class T, bool Max>
void take_extremes(const T* const* x, int64_t count, int64_t first, int64_t n, Acc<T>* acc, typename Traits<Acc<T>>::Bits* arg) {
    constexpr int W = kLanes<Acc<T>>;
    int64_t col = 0;
    for (; col + 8 * W <= n; col += 8 * W) extreme_columns<T, Max, 8, false>(x, count, first, col, 0, acc, arg);
    for (; col + W <= n; col += W) extreme_columns<T, Max, 1, false>(x, count, first, col, 0, acc, arg);
    if (col < n) extreme_columns<T, Max, 1, true>(x, count, first, col, int(n - col), acc, arg);
}

template <class I, class T, bool Max> void spmm_extreme(const SpmmArgs& a) {
    using A = Acc<T>;
    using B = typename Traits<A>::Bits;
    const View<I> g(a.g);
    const int64_t n = a.b.outer * a.b.inner, room = n + kLanes<A>;
    const A start = Max ? -A(__builtin_inf()) : A(__builtin_inf());
    const auto msg = message_of<T>(a.op);
    for_rows<I>(a.g, n, a.threads, [&](int64_t first, int64_t end) {
        Scratch<A> acc(room), m(room);
        Scratch<B> arg(room);
        Scratch<const T*> xs(kBlock);
        const A* const row = m;
        for (int64_t r = first; r < end; ++r) {
            const int64_t k0 = g.indptr[r], k1 = g.indptr[r + 1];
            const A init = k0 < k1 ? start : A(0);
            for (int64_t i = 0; i < n; ++i) acc[i] = init, arg[i] = 0;
            for (int64_t k = k0; k < k1; k += kBlock) {
                const int64_t count = least(kBlock, k1 - k);
                for (int64_t j = 0; j < count; ++j) {
                    const int64_t u = g.indices[k + j];
                    if (a.op == Op::copy_u) xs[j] = (const T*)a.x + u * a.x_stride;
                    else if (a.op == Op::copy_e) xs[j] = (const T*)a.w + g.eid(k + j) * a.w_stride;
                    else {
                        msg(a, (const T*)a.x + u * a.x_stride, (const T*)a.w + g.eid(k + j) * a.w_stride, m);
                        take_extremes<A, Max>(&row, 1, k + j - k0, n, acc, arg);
                    }
                }
                if (a.op == Op::copy_u || a.op == Op::copy_e) take_extremes<T, Max>(xs, count, k - k0, n, acc, arg);
            }
            store_row((T*)a.out + r * n, (const A*)acc, n);
            if (a.arg)
                for (int64_t i = 0; i < n; ++i) ((I*)a.arg)[r * n + i] = k0 < k1 ? I(k0 + arg[i]) : I(-1);
        }
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

template <class I, class T> void spmm_sum(const SpmmArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const T *x = (const T*)a.x, *w = (const T*)a.w;
    const A *src_scale = (const A*)a.src_scale, *dst_scale = (const A*)a.dst_scale;
    const int64_t n = a.b.outer * a.b.inner, heads = a.op == Op::copy_u ? 1 : a.b.outer;
    const bool by_head = weights_are_heads<T>(a), by_column = !by_head && weights_are_columns<T>(a) && !a.src_scale;
    const bool plain = a.op == Op::copy_u && !a.src_scale;
    const auto msg = message_of<T>(a.op);
    for_rows<I>(a.g, n, a.threads, [&](int64_t first, int64_t end) {
        RowSum<A> row(n);
        Scratch<A> m(n), weight(kBlock * heads);
        Scratch<const T*> xs(kBlock), ws(kBlock);
        for (int64_t r = first; r < end; ++r) {
            const int64_t k0 = g.indptr[r], k1 = g.indptr[r + 1];
            row.clear();
            for (int64_t k = k0; k < k1; k += kBlock) {
                const int64_t count = least(kBlock, k1 - k);
                A* acc = row.block;
                if (!by_head && !by_column) {
                    for (int64_t j = 0; j < count; ++j) {
                        const int64_t u = g.indices[k + j];
                        msg(a, x + u * a.x_stride, w + g.eid(k + j) * a.w_stride, m);
                        const A s = src_scale ? src_scale[u] : 1;
                        for (int64_t i = 0; i < n; ++i) acc[i] += s * m[i];
                    }
                    row.close_block();
                    continue;
                }
                for (int64_t j = 0; j < count; ++j) {
                    const int64_t u = g.indices[k + j];
                    xs[j] = x + u * a.x_stride;
                    if (w) g.prefetch_edge(w, a.w_stride, k + j, a.g.nnz);
                    if (by_column) ws[j] = w + g.eid(k + j) * a.w_stride;
                    else if (!plain) {
                        const T* we = a.op == Op::copy_u ? nullptr : w + g.eid(k + j) * a.w_stride;
                        const A s = src_scale ? src_scale[u] : 1;
                        for (int64_t o = 0; o < heads; ++o) weight[j * heads + o] = we ? s * A(to_acc(we[o])) : s;
                    }
                }
                const Block<T> block{xs, weight, ws, heads, count};
                if (by_column) accumulate<T, Weight::per_lane>(block, n, 1, acc);
                else if (plain) accumulate<T, Weight::none>(block, n, n, acc);
                else accumulate_heads<T>(block, heads, n / heads, acc);
                row.close_block();
            }
            A* acc = row.all;
            if (a.reduce == Reduce::mean && k1 > k0)
                for (int64_t i = 0; i < n; ++i) acc[i] /= A(k1 - k0);
            if (dst_scale) scale_row<A>(acc, dst_scale[r], n);
            store_row((T*)a.out + r * n, (const A*)acc, n);
        }
    });
}

void spmm(const SpmmArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        if (a.reduce == Reduce::max) spmm_extreme<I, T, true>(a);
        else if (a.reduce == Reduce::min) spmm_extreme<I, T, false>(a);
        else spmm_sum<I, T>(a);
    });
}

// Each thread owns a block of columns, so every output element has one writer, in row order.
void arg_scatter(const ArgScatterArgs& a) {
    with_types(a.g, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        using A = Acc<T>;
        constexpr int64_t kColumns = 16;
        const View<I> g(a.g);
        const I* arg = (const I*)a.arg;
        const T* grad = (const T*)a.grad;
        T* out = (T*)a.out;
        const int64_t blocks = (a.width + kColumns - 1) / kColumns;
        const bool to_edges = a.target == Target::e;
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads) if (a.g.rows * a.width > 1 << 15)
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t c0 = block * kColumns, c = least(kColumns, a.width - c0);
            Scratch<A> sum(to_edges ? 0 : a.out_rows * c);
            for (int64_t r = 0; r < a.g.rows; ++r)
                for (int64_t j = 0; j < c; ++j) {
                    const int64_t k = arg[r * a.width + c0 + j];
                    if (k < 0) continue;
                    const T value = grad[r * a.width + c0 + j];
                    if (to_edges) out[g.eid(k) * a.width + c0 + j] = value;
                    else sum[int64_t(g.indices[k]) * c + j] += A(to_acc(value));
                }
            if (!to_edges)
                for (int64_t u = 0; u < a.out_rows; ++u) store_row(out + u * a.width + c0, (const A*)sum + u * c, c);
        }
    });
}

}  // namespace
