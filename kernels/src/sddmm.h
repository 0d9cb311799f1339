// out[e] = op(lhs, rhs), each operand a row of the edge's source, destination or the edge itself.
#pragma once
#include "accumulate.h"
#include "dot.h"
#include "hubs.h"

namespace {

template <class T, Op O> void combine(const SddmmArgs& a, const T* l, const T* r, Acc<T> scale, T* out) {
    using A = Acc<T>;
    const Broadcast& b = a.b;
    for (int64_t o = 0; o < b.outer; ++o) {
        const T* lo = O == Op::copy_e ? nullptr : l + b.lhs_off[o];
        const T* ro = O == Op::copy_u ? nullptr : r + b.rhs_off[o];
        A dot = 0;
        for (int64_t i = 0; i < b.inner; ++i) {
            const A x = O == Op::copy_e ? A(0) : A(to_acc(lo[i * b.lhs_step]));
            const A y = O == Op::copy_u ? A(0) : A(to_acc(ro[i * b.rhs_step]));
            A z;
            switch (O) {
                case Op::copy_u: z = x; break;
                case Op::copy_e: z = y; break;
                case Op::add: z = x + y; break;
                case Op::sub: z = x - y; break;
                case Op::div: z = x / y; break;
                default: z = x * y;
            }
            if (O == Op::dot) dot += z;
            else out[o * b.inner + i] = Store<T>::from(scale * z);
        }
        if (O == Op::dot) out[o] = Store<T>::from(scale * dot);
    }
}

template <class T> using Combine = void (*)(const SddmmArgs&, const T*, const T*, Acc<T>, T*);
template <class T> Combine<T> combine_of(Op op) {
    switch (op) {
        case Op::copy_u: return combine<T, Op::copy_u>;
        case Op::copy_e: return combine<T, Op::copy_e>;
        case Op::add: return combine<T, Op::add>;
        case Op::sub: return combine<T, Op::sub>;
        case Op::mul: return combine<T, Op::mul>;
        case Op::dot: return combine<T, Op::dot>;
        default: return combine<T, Op::div>;
    }
}

// Plain heads of equal shape: no broadcasting.
inline bool heads_match(const Broadcast& b) {
    if ((b.lhs_step != 1 || b.rhs_step != 1) && b.inner != 1) return false;
    for (int64_t o = 0; o < b.outer; ++o)
        if (b.lhs_off[o] != o * b.inner || b.rhs_off[o] != o * b.inner) return false;
    return true;
}

template <class I> inline int64_t row_of(Target t, int64_t u, int64_t v, int64_t e) {
    return t == Target::u ? u : t == Target::v ? v : e;
}

template <class A> inline A scale_of(const SddmmArgs& a, int64_t u, int64_t v) {
    return (a.src_scale ? ((const A*)a.src_scale)[u] : A(1)) * (a.dst_scale ? ((const A*)a.dst_scale)[v] : A(1));
}

// dot with one operand at the row's own node, held for it, and the other at the entries' ends.
template <class I, class T> void sddmm_dot(const SddmmArgs& a) {
    using A = Acc<T>;
    const View<I> g(a.g);
    const bool left_is_row = a.lhs_target == Target::v;
    const T *row = (const T*)(left_is_row ? a.lhs : a.rhs), *far = (const T*)(left_is_row ? a.rhs : a.lhs);
    const int64_t row_stride = left_is_row ? a.lhs_stride : a.rhs_stride;
    const int64_t far_stride = left_is_row ? a.rhs_stride : a.lhs_stride;
    const bool far_is_edge = (left_is_row ? a.rhs_target : a.lhs_target) == Target::e;
    const int64_t heads = a.b.outer, dim = a.b.inner, n = heads * dim;
    const Tiling t = tiling_for(a.g, far, far_is_edge ? 0 : n * sizeof(T), n * sizeof(T));
    for_rows<I>(a.g, t, n, a.threads, [&](const Span& span) {
        Scratch<Dotted<T>> near(padded<A>(n));
        Scratch<A> d(kBlock * heads);
        Scratch<const T*> xs(kBlock);
        for_segments(
            g, t, span, {(const char*)a.out, heads * int64_t(sizeof(T))}, kNothing,
            [&](const Segment& s) {
                for (int64_t j = 0; j < s.count; ++j) {
                    g.prefetch_edge((const T*)a.out, heads, s.k + j + kEdgesAhead, s.stop);
                    xs[s.at + j] = far + (far_is_edge ? g.eid(s.k + j) : int64_t(g.indices[s.k + j])) * far_stride;
                }
            },
            [&](const Segment& s) {
                hold_row<T>(near, row + a.g.own(s.row) * row_stride, n);
                dots_by_head<T>(xs + s.at, s.count, s.ready, kAhead, near.data, heads, dim, d);
                if (a.src_scale || a.dst_scale)
                    for (int64_t j = 0; j < s.count; ++j) scale_row(d + j * heads, scale_of<A>(a, g.indices[s.k + j], a.g.own(s.row)), heads);
                scatter_edges(g, (const A*)d.data, heads, s.k, s.count, (T*)a.out);
            },
            kNothing);
    });
}

template <class I, class T> void sddmm_any(const SddmmArgs& a) {
    const View<I> g(a.g);
    const auto f = combine_of<T>(a.op);
    const int64_t n = a.op == Op::dot ? a.b.outer : a.b.outer * a.b.inner;
    for_rows<I>(a.g, a.b.outer * a.b.inner, a.threads, [&](int64_t first, int64_t end) {
        for (int64_t r = first; r < end; ++r)
            for (int64_t k = g.indptr[r]; k < int64_t(g.indptr[r + 1]); ++k) {
                const int64_t u = g.indices[k], v = a.g.own(r), e = g.eid(k);
                f(a, (const T*)a.lhs + row_of<I>(a.lhs_target, u, v, e) * a.lhs_stride,
                  (const T*)a.rhs + row_of<I>(a.rhs_target, u, v, e) * a.rhs_stride, scale_of<Acc<T>>(a, u, v),
                  (T*)a.out + e * n);
            }
    });
}

// Rows `first` and on of a.
template <class I, class T> void sddmm_rows(SddmmArgs a, const Rows& rows, int64_t first) {
    const bool one_is_row = (a.lhs_target == Target::v) != (a.rhs_target == Target::v);
    a.g = rows, a.dst_scale = row_at<Acc<T>>(a.dst_scale, first, 1);
    if (a.lhs_target == Target::v) a.lhs = row_at<T>(a.lhs, first, a.lhs_stride);
    if (a.rhs_target == Target::v) a.rhs = row_at<T>(a.rhs, first, a.rhs_stride);
    if (a.op == Op::dot && one_is_row && heads_match(a.b)) sddmm_dot<I, T>(a);
    else sddmm_any<I, T>(a);
}

void sddmm(const SddmmArgs& a) {
    with_types(a.g.wide, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        around_hubs<I>(
            a.g, [&](const Rows& rows, int64_t first) { sddmm_rows<I, T>(a, rows, first); },
            [&](int64_t hub) { sddmm_rows<I, T>(a, Pieces<I>(a.g, hub).rows, hub); });
    });
}

}  // namespace
