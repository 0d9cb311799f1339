// Python's way in: every array is an address (0 for none), checked by the caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "coo.h"
#include "dispatch.h"

namespace nb = nanobind;
using namespace ampgnn;
using Address = uintptr_t;

namespace {

template <class T = void> T* at(Address a) { return reinterpret_cast<T*>(a); }

Rows rows_of(Address indptr, Address indices, Address eids, int64_t rows, int64_t cols, int64_t nnz, bool wide) {
    return {at(indptr), at(indices), at(eids), rows, nnz, cols, wide};
}

Broadcast broadcast_of(int64_t outer, int64_t inner, Address lhs_off, Address rhs_off, int64_t lhs_step, int64_t rhs_step) {
    return {outer, inner, at<int64_t>(lhs_off), at<int64_t>(rhs_off), lhs_step, rhs_step};
}

bool rise(Address indptr, Address ids, int64_t rows, bool wide) {
    return wide ? ids_rise(at<int64_t>(indptr), at<int64_t>(ids), rows) : ids_rise(at<int32_t>(indptr), at<int32_t>(ids), rows);
}

void spmm(Address indptr, Address indices, Address eids, int64_t rows, int64_t cols, int64_t nnz, bool wide, int dtype, int op,
          int reduce, int64_t outer, int64_t inner, Address lhs_off, Address rhs_off, int64_t lhs_step, int64_t rhs_step,
          Address x, int64_t x_stride, Address w, int64_t w_stride, Address src_scale, Address dst_scale, Address out,
          Address arg, int threads) {
    const bool by_id = arg && eids && !rise(indptr, eids, rows, wide);
    kernels().spmm({rows_of(indptr, indices, eids, rows, cols, nnz, wide), DType(dtype), Op(op), Reduce(reduce),
                    broadcast_of(outer, inner, lhs_off, rhs_off, lhs_step, rhs_step), at(x), x_stride, at(w), w_stride,
                    at(src_scale), at(dst_scale), at(out), at(arg), by_id, threads});
}

void sddmm(Address indptr, Address indices, Address eids, int64_t rows, int64_t cols, int64_t nnz, bool wide, int dtype, int op,
           int64_t outer, int64_t inner, Address lhs_off, Address rhs_off, int64_t lhs_step, int64_t rhs_step, Address lhs,
           int64_t lhs_stride, int lhs_target, Address rhs, int64_t rhs_stride, int rhs_target, Address src_scale,
           Address dst_scale, Address out, int threads) {
    kernels().sddmm({rows_of(indptr, indices, eids, rows, cols, nnz, wide), DType(dtype), Op(op),
                     broadcast_of(outer, inner, lhs_off, rhs_off, lhs_step, rhs_step), at(lhs), at(rhs), lhs_stride,
                     rhs_stride, Target(lhs_target), Target(rhs_target), at(src_scale), at(dst_scale),
                     at(out), threads});
}

void edge_softmax(Address indptr, Address indices, Address eids, int64_t rows, int64_t cols, int64_t nnz, bool wide, int dtype,
                  int64_t heads, Address logits, Address grad, Address out, int threads) {
    kernels().edge_softmax(
        {rows_of(indptr, indices, eids, rows, cols, nnz, wide), DType(dtype), heads, at(logits), at(grad), at(out), threads});
}

void attention(Address indptr, Address indices, int64_t rows, int64_t cols, int64_t nnz, bool wide, int dtype, int64_t heads, int64_t dim,
               double negative_slope, Address h, Address el, Address er, Address out, Address max, Address sum, int threads) {
    AttentionArgs a{};
    a.g = rows_of(indptr, indices, 0, rows, cols, nnz, wide);
    a.dtype = DType(dtype), a.heads = heads, a.dim = dim, a.negative_slope = negative_slope;
    a.h = at(h), a.el = at(el), a.er = at(er), a.out = at(out), a.max = at(max), a.sum = at(sum), a.threads = threads;
    kernels().attention(a);
}

void attention_backward(Address indptr, Address indices, int64_t rows, int64_t cols, int64_t nnz, bool wide, int dtype, int64_t heads,
                        int64_t dim, double negative_slope, Address h, Address el, Address dst, Address grad, Address grad_h, Address grad_el, Address sums, int64_t num_dst,
                        int64_t parts, int threads) {
    AttentionArgs a{};
    a.g = rows_of(indptr, indices, 0, rows, cols, nnz, wide);
    a.dtype = DType(dtype), a.heads = heads, a.dim = dim, a.negative_slope = negative_slope;
    a.h = at(h), a.el = at(el), a.dst = at(dst), a.grad = at(grad);
    a.grad_h = at(grad_h), a.grad_el = at(grad_el), a.sums = at(sums);
    a.num_dst = num_dst, a.parts = parts, a.threads = threads;
    kernels().attention_backward(a);
}

void correct_grad_el(Address indptr, Address indices, int64_t rows, int64_t cols, int64_t nnz, bool wide, int dtype, int64_t heads,
                     double negative_slope, Address el, Address dst, Address grad_el, int threads) {
    AttentionArgs a{};
    a.g = rows_of(indptr, indices, 0, rows, cols, nnz, wide);
    a.dtype = DType(dtype), a.heads = heads, a.negative_slope = negative_slope, a.threads = threads;
    a.el = at(el), a.dst = at(dst), a.grad_el = at(grad_el);
    kernels().correct_grad_el(a);
}

void pair_attention(Address indptr, Address indices, int64_t rows, int64_t cols, int64_t nnz, bool wide, int dtype, int64_t heads,
                    int64_t dim, bool product, double negative_slope, Address factor, Address h, Address h_dst, Address out,
                    Address max, Address sum, int threads) {
    PairArgs a{};
    a.g = rows_of(indptr, indices, 0, rows, cols, nnz, wide);
    a.dtype = DType(dtype), a.heads = heads, a.dim = dim, a.product = product, a.negative_slope = negative_slope;
    a.factor = at(factor), a.h = at(h), a.h_dst = at(h_dst), a.out = at(out), a.max = at(max), a.sum = at(sum);
    a.threads = threads;
    kernels().pair_attention(a);
}

// rindptr, rindices: the edges grouped by source, `cols` of them.
void pair_attention_backward(Address indptr, Address indices, int64_t rows, int64_t cols, int64_t nnz, bool wide, Address rindptr,
                             Address rindices, int dtype, int64_t heads, int64_t dim, bool product, double negative_slope,
                             Address factor, Address h, Address h_dst, Address out, Address max, Address sum, Address grad,
                             Address dst, Address grad_h, Address grad_h_dst, Address grad_factor, int64_t parts, int threads) {
    PairArgs a{};
    a.g = rows_of(indptr, indices, 0, rows, cols, nnz, wide);
    a.dtype = DType(dtype), a.heads = heads, a.dim = dim, a.product = product, a.negative_slope = negative_slope;
    a.factor = at(factor), a.h = at(h), a.h_dst = at(h_dst), a.out = at(out), a.max = at(max), a.sum = at(sum);
    a.grad = at(grad), a.dst = at(dst), a.grad_h = at(grad_h), a.grad_h_dst = at(grad_h_dst);
    a.grad_factor = at(grad_factor), a.parts = parts, a.threads = threads;
    kernels().pair_backward_destinations(a);
    a.g = rows_of(rindptr, rindices, 0, cols, rows, nnz, wide);
    kernels().pair_backward_sources(a);
}

void arg_scatter(int dtype, bool wide, bool unique, int64_t rows, int64_t width, Address grad, Address arg, Address out, int64_t out_rows,
                 int threads) {
    kernels().arg_scatter({DType(dtype), wide, unique, rows, width, at(grad), at(arg), at(out), out_rows, threads});
}

void row_dot(int dtype, int64_t rows, int64_t dim, Address a, Address b, Address out, int threads) {
    kernels().row_dot({DType(dtype), rows, dim, at(a), at(b), at(out), threads});
}

void head_dot(int dtype, int64_t vectors, int64_t rows, int64_t heads, int64_t dim, Address h, Address a, Address out, int threads) {
    kernels().head_dot({DType(dtype), vectors, rows, heads, dim, at(h), at(a), at(out), nullptr, nullptr, nullptr, 0, threads});
}

void head_dot_backward(int dtype, int64_t vectors, int64_t rows, int64_t heads, int64_t dim, Address h, Address a, Address grad,
                       Address grad_h, Address sums, int64_t parts, int threads) {
    kernels().head_dot_backward(
        {DType(dtype), vectors, rows, heads, dim, at(h), at(a), nullptr, at(grad), at(grad_h), at(sums), parts, threads});
}

int64_t find_bad_edge(Address row, Address col, int64_t edges, int64_t rows, int64_t cols, bool wide) {
    return wide ? first_bad_edge(at<int64_t>(row), at<int64_t>(col), edges, rows, cols)
                : first_bad_edge(at<int32_t>(row), at<int32_t>(col), edges, rows, cols);
}

bool coo_to_rows(Address row, Address col, int64_t edges, int64_t rows, Address indptr, Address indices, Address eids, bool wide) {
    return wide ? group_by_row(at<int64_t>(row), at<int64_t>(col), edges, rows, at<int64_t>(indptr),
                                      at<int64_t>(indices), at<int64_t>(eids))
                : group_by_row(at<int32_t>(row), at<int32_t>(col), edges, rows, at<int32_t>(indptr),
                                      at<int32_t>(indices), at<int32_t>(eids));
}

bool transposed(Address indptr, Address indices, Address eids, int64_t rows, int64_t cols, Address to_indptr,
                Address to_indices, Address to_eids, bool wide) {
    return wide ? transpose(at<int64_t>(indptr), at<int64_t>(indices), at<int64_t>(eids), rows, cols, at<int64_t>(to_indptr),
                            at<int64_t>(to_indices), at<int64_t>(to_eids))
                : transpose(at<int32_t>(indptr), at<int32_t>(indices), at<int32_t>(eids), rows, cols, at<int32_t>(to_indptr),
                            at<int32_t>(to_indices), at<int32_t>(to_eids));
}


void sort(Address indptr, int64_t rows, Address indices, Address eids, bool wide) {
    if (wide) sort_rows(at<int64_t>(indptr), rows, at<int64_t>(indices), at<int64_t>(eids));
    else sort_rows(at<int32_t>(indptr), rows, at<int32_t>(indices), at<int32_t>(eids));
}

}  // namespace

NB_MODULE(_C, m) {
    using Unlocked = nb::call_guard<nb::gil_scoped_release>;
    m.def("spmm", &spmm, Unlocked());
    m.def("sddmm", &sddmm, Unlocked());
    m.def("edge_softmax", &edge_softmax, Unlocked());
    m.def("attention", &attention, Unlocked());
    m.def("attention_backward", &attention_backward, Unlocked());
    m.def("correct_grad_el", &correct_grad_el, Unlocked());
    m.def("pair_attention", &pair_attention, Unlocked());
    m.def("pair_attention_backward", &pair_attention_backward, Unlocked());
    m.def("arg_scatter", &arg_scatter, Unlocked());
    m.def("row_dot", &row_dot, Unlocked());
    m.def("head_dot", &head_dot, Unlocked());
    m.def("head_dot_backward", &head_dot_backward, Unlocked());
    m.def("find_bad_edge", &find_bad_edge, Unlocked());
    m.def("coo_to_rows", &coo_to_rows, Unlocked());
    m.def("transpose", &transposed, Unlocked());
    m.def("indices_rise", &rise, Unlocked());
    m.def("sort_rows", &sort, Unlocked());
    m.def("isa", [] { return std::string(kernels().isa); });
    m.def("supported_isas", &supported_isas);
    m.def("set_isa", &set_isa);
}
