// Dot products of rows in fp32, and the logits' gradients of attention that rest on them.
#pragma once
#include "rows.h"

namespace {

// out[j] = dot(x[j], y) for a few rows x at once; y is already wide.
template <class T, int N> inline void dots(const T* const* x, const Acc<T>* y, int64_t n, Acc<T>* out) {
    using A = Acc<T>;
    constexpr int W = kLanes<A>;
    Vec<A> sum[N] = {}, more[N] = {};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        const Vec<A> y0 = load(y + i), y1 = load(y + i + W);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) sum[j] += load(x[j] + i) * y0, more[j] += load(x[j] + i + W) * y1;
    }
    if (i + W <= n) {
        const Vec<A> last = load(y + i);
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) sum[j] += load(x[j] + i) * last;
        i += W;
    }
    if (i < n) {
        const Vec<A> last = load_n(y + i, int(n - i));
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) more[j] += load_n(x[j] + i, int(n - i)) * last;
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sum[j] += more[j];
    lanes_sums<A, N>(sum, out);
}

// out[j * heads + h] = dot of head h of x[j] and of y. Of the `ready` rows from x on, those `ahead` are fetched on the way.
template <class T>
void dots_by_head(const T* const* x, int64_t count, int64_t ready, int64_t ahead, const Acc<T>* y, int64_t heads, int64_t dim, Acc<T>* out) {
    for (int64_t j = 0; j < count; j += 4) {
        const int64_t some = least(count - j, int64_t(4));
        for (int64_t q = j + ahead; q < least(j + ahead + some, ready); ++q) prefetch(x[q], heads * dim);
        for (int64_t h = 0; h < heads; ++h) {
            const T* rows[4];
            Acc<T> d[4];
            for (int q = 0; q < some; ++q) rows[q] = x[j + q] + h * dim;
            if (some == 4) dots<T, 4>(rows, y + h * dim, dim, d);
            else for (int q = 0; q < some; ++q) dots<T, 1>(rows + q, y + h * dim, dim, d + q);
            for (int q = 0; q < some; ++q) out[(j + q) * heads + h] = d[q];
        }
    }
}

void row_dot(const RowDotArgs& a) {
    with_dtype(a.dtype, [&](auto* t) {
        using T = AMPGNN_TYPE(t);
        using A = Acc<T>;
#pragma omp parallel num_threads(a.threads) if (a.rows * a.dim > 1 << 16)
        {
            Scratch<A> wide(a.dim);
#pragma omp for schedule(static)
            for (int64_t r = 0; r < a.rows; ++r) {
                const T* row = (const T*)a.a + r * a.dim;
                load_row<T>(wide, (const T*)a.b + r * a.dim, a.dim);
                dots<T, 1>(&row, wide, a.dim, (A*)a.out + r);
            }
        }
    });
}

}  // namespace
