// What the bindings hand to a kernel: raw addresses, sizes and choices, with no type behind them.
#pragma once
#include <cstdint>

namespace ampgnn {

enum class DType : int { f64, f32, f16, bf16 };
enum class Op : int { copy_u, copy_e, add, sub, mul, div, dot };
enum class Reduce : int { sum, mean, max, min };
enum class Target : int { u, v, e };

// Compressed rows: entry k of row r, indptr[r] <= k < indptr[r + 1], is the edge eids[k] (k where eids is null)
// whose other end is indices[k], one of `cols`. Rows whose indices rise are the fastest; any order is right.
struct Rows {
    const void* indptr;
    const void* indices;
    const void* eids;
    int64_t rows;
    int64_t nnz;
    int64_t cols;
    bool wide;  // 64-bit ids, else 32-bit
    // Rows are parts of one row (see hubs.h): all of them read its data, and results are as wide as sums are, and unfinished.
    bool pieces = false;
    int64_t own(int64_t row) const { return pieces ? 0 : row; }  // whose data a row reads
};

// NumPy broadcasting of two operands' feature dimensions, flattened to `outer` blocks of `inner` columns. Column
// (o, i) reads element lhs_off[o] + i * lhs_step of one operand and rhs_off[o] + i * rhs_step of the other; a step
// is 0 or 1.
struct Broadcast {
    int64_t outer, inner;
    const int64_t *lhs_off, *rhs_off;
    int64_t lhs_step, rhs_step;
};

struct SpmmArgs {
    Rows g;
    DType dtype;
    Op op;
    Reduce reduce;
    Broadcast b;
    const void* x;  // (num_src, x_width), rows x_stride elements apart
    int64_t x_stride;
    const void* w;  // (num_edges, w_width) in edge-id order
    int64_t w_stride;
    const void* src_scale;  // (num_src,) float, double for f64, or null
    const void* dst_scale;  // (rows,) the same
    void* out;               // (rows, outer * inner)
    void* arg;               // the same shape, ids as wide as the graph's, or null: of the extreme edge, or -1, the source
                             // (copy_u), the id (copy_e), else the entry
    bool by_id;              // of equal extremes the one with the smallest id wins, else the first, which is that one too
    int threads;
};

struct SddmmArgs {
    Rows g;
    DType dtype;
    Op op;
    Broadcast b;  // for dot: outer = results an edge, inner = length of the product
    const void *lhs, *rhs;
    int64_t lhs_stride, rhs_stride;
    Target lhs_target, rhs_target;
    const void* src_scale;
    const void* dst_scale;
    void* out;  // (num_edges, outer * inner), for dot (num_edges, outer), in edge-id order
    int threads;
};

struct SoftmaxArgs {
    Rows g;
    DType dtype;
    int64_t heads;
    const void* logits;  // (num_edges, heads)
    const void* grad;    // gradient of the result, then out is that of the logits; or null
    void* out;
    int threads;
};

// el, er, max, sum, dst, grad_el, sums are float, double where dtype is f64.
struct AttentionArgs {
    Rows g;  // forward: rows are destinations; backward: rows are sources
    DType dtype;
    int64_t heads, dim;
    double negative_slope;
    const void* h;   // (num_src, heads, dim)
    const void* el;  // (num_src, heads)
    const void* er;  // (num_dst, heads)
    void* out;       // (num_dst, heads, dim)
    void* max;       // (num_dst, heads): largest logit of a destination
    void* sum;       // (num_dst, heads): sum of exp(logit - max)
    const void* grad;   // backward: gradient of out
    // backward and correction: (num_dst, heads, 4), er, max, 1 / sum and delta: the dot of grad and out, or how far it is off
    const void* dst;
    void* grad_h;
    void* grad_el;
    void* sums;  // backward: (parts, num_dst, heads, 4), zeroed, see kRecord; the caller adds the parts up in order
    int64_t num_dst;
    int64_t parts;
    int threads;
};

// GATv2 and dot-product attention. factor, max, sum, dst are float, double where dtype is f64.
struct PairArgs {
    Rows g;  // rows are destinations; for the sources' gradient sources
    DType dtype;
    int64_t heads, dim;
    bool product;           // dot products, else GATv2
    double negative_slope;  // GATv2
    const void* factor;     // (heads, dim): GATv2's vector, or the scale of dot products everywhere
    const void* h;          // (num_src, heads, dim)
    const void* h_dst;      // (num_dst, heads, dim)
    void* out;              // (num_dst, heads, dim)
    void* max;              // (num_dst, heads): largest logit of a destination
    void* sum;              // (num_dst, heads): sum of exp(logit - max)
    const void* grad;       // backward: gradient of out
    void* dst;              // backward, from destinations to sources: (num_dst, 3, heads), max, 1 / sum, mean of grad . h
    void* grad_h_dst;
    void* grad_h;
    void* grad_factor;  // backward: (parts, heads, dim) double, zeroed, the caller adds them up in order; or null
    int64_t parts;      // 0 where grad_factor is null
    void *own, *other, *off;  // backward, of pieces: (rows, heads, dim) twice and (rows, heads) double, see PairBackward
    int threads;
};

// out[arg[r, c], c] += grad[r, c] where arg is not negative; sums are float, double for f64.
struct ArgScatterArgs {
    DType dtype;
    bool wide;    // 64-bit arg, else 32-bit
    bool unique;  // no place is named twice
    int64_t rows, width;
    const void* grad;
    const void* arg;
    void* out;  // (out_rows, width), zeroed
    int64_t out_rows;
    int threads;
};

struct RowDotArgs {  // out[r] = dot(a[r], b[r]) in float (double for f64)
    DType dtype;
    int64_t rows, dim;
    const void *a, *b;
    void* out;
    int threads;
};

// a, out, grad are float, double where dtype is f64.
struct HeadDotArgs {
    DType dtype;
    int64_t vectors, rows, heads, dim;
    const void* h;     // (rows, heads, dim)
    const void* a;     // (vectors, heads, dim)
    void* out;         // (vectors, rows, heads)
    const void* grad;  // backward: gradient of out
    void* grad_h;
    void* sums;        // backward: (parts, vectors, heads, dim) double, zeroed, the caller adds them up in order
    int64_t parts;
    int threads;
};

struct Kernels {
    const char* isa;
    void (*spmm)(const SpmmArgs&);
    void (*sddmm)(const SddmmArgs&);
    void (*edge_softmax)(const SoftmaxArgs&);
    void (*attention)(const AttentionArgs&);
    void (*attention_backward)(const AttentionArgs&);
    void (*correct_grad_el)(const AttentionArgs&);
    void (*pair_attention)(const PairArgs&);
    void (*pair_backward_destinations)(const PairArgs&);
    void (*pair_backward_sources)(const PairArgs&);
    void (*arg_scatter)(const ArgScatterArgs&);
    void (*row_dot)(const RowDotArgs&);
    void (*head_dot)(const HeadDotArgs&);
    void (*head_dot_backward)(const HeadDotArgs&);
};

const Kernels& generic_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512bf16_kernels();
#endif

}  // namespace ampgnn
