// Every row times a few vectors, head by head: the halves of GAT's logits, out[k, r, h] = h[r, h, :] . a[k, h, :].
#pragma once
#include "dot.h"

namespace {

constexpr int64_t kRows = 16;  // handled at once: they stay cached from one vector to the next

template <class T> void head_dot_rows(const HeadDotArgs& a, int64_t first, int64_t count) {
    using A = Acc<T>;
    const int64_t n = a.heads * a.dim;
    const T* x[kRows];
    for (int64_t j = 0; j < count; ++j) x[j] = (const T*)a.h + (first + j) * n;
    for (int64_t k = 0; k < a.vectors; ++k)
        dots_by_head<T>(x, count, count, 0, (const A*)a.a + k * n, a.heads, a.dim, (A*)a.out + (k * a.rows + first) * a.heads);
}

// grad_h of a row, the sum of grad a, and what it adds to the sums (vectors, heads, dim) of grad h.
template <class T> void head_dot_backward_row(const HeadDotArgs& a, int64_t r, Acc<T>* sums) {
    using A = Acc<T>;
    constexpr int W = kLanes<A>;
    const int64_t n = a.heads * a.dim;
    for (int64_t head = 0; head < a.heads; ++head)
        for (int64_t i = head * a.dim, end = i + a.dim; i < end; i += W) {
            const int lanes = int(least(int64_t(W), end - i));
            const Vec<A> x = load_some((const T*)a.h + r * n + i, lanes);
            Vec<A> total = {};
            for (int64_t k = 0; k < a.vectors; ++k) {
                const A grad = ((const A*)a.grad)[(k * a.rows + r) * a.heads + head];
                total += load_some((const A*)a.a + k * n + i, lanes) * grad;
                store_some(sums + k * n + i, load_some(sums + k * n + i, lanes) + x * grad, lanes);
            }
            store_some((T*)a.grad_h + r * n + i, total, lanes);
        }
}

template <class T> void head_dot_backward_part(const HeadDotArgs& a, int64_t first, int64_t end, double* to) {
    using A = Acc<T>;
    const int64_t n = a.vectors * a.heads * a.dim;
    const Scratch<A> sums(n);
    for (int64_t block = first; block < end; block += kBlock) {
        memset(sums, 0, n * sizeof(A));
        for (int64_t r = block; r < least(block + kBlock, end); ++r) head_dot_backward_row<T>(a, r, sums);
        for (int64_t i = 0; i < n; ++i) to[i] += sums[i];
    }
}

void head_dot(const HeadDotArgs& a) {
    with_dtype(a.dtype, [&](auto* t) {
        using T = AMPGNN_TYPE(t);
#pragma omp parallel for schedule(static) num_threads(a.threads) if (a.rows * a.heads * a.dim > 1 << 16)
        for (int64_t r = 0; r < a.rows; r += kRows) head_dot_rows<T>(a, r, least(kRows, a.rows - r));
    });
}

void head_dot_backward(const HeadDotArgs& a) {
    with_dtype(a.dtype, [&](auto* t) {
        using T = AMPGNN_TYPE(t);
        const int64_t n = a.vectors * a.heads * a.dim;
#pragma omp parallel for schedule(static) num_threads(a.threads) if (a.parts > 1)
        for (int64_t i = 0; i < a.parts; ++i)
            head_dot_backward_part<T>(a, a.rows * i / a.parts, a.rows * (i + 1) / a.parts, (double*)a.sums + i * n);
    });
}

}  // namespace
