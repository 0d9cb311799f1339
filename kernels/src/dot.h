// Dot products of rows, and sums like them, in fp32.
#pragma once
#include "rows.h"

namespace {

// out[j] = sum over i of term(x[j][i], i) for a few rows x at once. term(v, i, lanes) is of the columns from i on; the
// lanes of v behind the first `lanes` are 0 and must remain so.
template <class T, int N, class Term> inline void sums(const T* const* x, int64_t n, Acc<T>* out, const Term& term) {
    using A = Acc<T>;
    constexpr int W = kLanes<A>;
    Vec<A> sum[N] = {}, more[N] = {};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) sum[j] += term(load(x[j] + i), i, W), more[j] += term(load(x[j] + i + W), i + W, W);
    }
    if (i + W <= n) {
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) sum[j] += term(load(x[j] + i), i, W);
        i += W;
    }
    if (i < n) {
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) more[j] += term(load_n(x[j] + i, int(n - i)), i, int(n - i));
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sum[j] += more[j];
    lanes_sums<A, N>(sum, out);
}

// out[j * heads + h] = sum over head h of x[j] of term, which is given columns of the whole row. Of the `ready` rows from
// x on, those `ahead` are fetched on the way.
template <class T, class Term>
void sums_by_head(const T* const* x, int64_t count, int64_t ready, int64_t ahead, int64_t heads, int64_t dim, Acc<T>* out, const Term& term) {
    for (int64_t j = 0; j < count; j += 4) {
        const int64_t some = least(count - j, int64_t(4));
        for (int64_t q = j + ahead; q < least(j + ahead + some, ready); ++q) prefetch(x[q], heads * dim);
        for (int64_t h = 0; h < heads; ++h) {
            const auto of_head = [&](Vec<Acc<T>> v, int64_t i, int lanes) { return term(v, h * dim + i, lanes); };
            const T* rows[4];
            Acc<T> d[4];
            for (int q = 0; q < some; ++q) rows[q] = x[j + q] + h * dim;
            if (some == 4) sums<T, 4>(rows, dim, d, of_head);
            else for (int q = 0; q < some; ++q) sums<T, 1>(rows + q, dim, d + q, of_head);
            for (int q = 0; q < some; ++q) out[(j + q) * heads + h] = d[q];
        }
    }
}

// out[j * heads + h] = dot of head h of x[j] and of y, which is already wide; `ready` and `ahead` as above.
template <class T>
void dots_by_head(const T* const* x, int64_t count, int64_t ready, int64_t ahead, const Acc<T>* y, int64_t heads, int64_t dim, Acc<T>* out) {
    sums_by_head<T>(x, count, ready, ahead, heads, dim, out,
                    [&](Vec<Acc<T>> v, int64_t i, int lanes) { return v * load_some(y + i, lanes); });
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
                dots_by_head<T>(&row, 1, 1, 0, wide, 1, a.dim, (A*)a.out + r);
            }
        }
    });
}

}  // namespace
