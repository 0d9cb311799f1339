// Dot products of rows, and sums like them, in fp32.
#pragma once
#include "rows.h"

namespace {

// Reads, from a row of wide values, the columns that a vector of `sums` holds: those from i on, the first `lanes` of
// them, or the first or second half of a pair.
template <class A> struct Columns {
    int64_t i;
    int lanes;
    Vec<A> operator()(const A* row) const { return load_some(row + i, lanes); }
};
template <class T, bool Second> struct HalfOfPair {
    using A = Acc<T>;
    int64_t i;
    Vec<A> operator()(const A* row) const {
        const Pair<A> p = Paired<T>::paired({load(row + i), load(row + i + kLanes<A>)});
        return Second ? p.second : p.first;
    }
};

// out[j] = sum over i of term(x[j][i], at) for a few rows x at once; at(row) is what a row of wide values has in the same
// columns. Lanes behind a row's end are 0 and must remain so.
template <class T, int N, class Term> inline void sums(const T* const* x, int64_t n, Acc<T>* out, const Term& term) {
    using A = Acc<T>;
    constexpr int W = kLanes<A>;
    Vec<A> sum[N] = {}, more[N] = {};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) {
            const Pair<A> v = Paired<T>::load_pair(x[j] + i);
            sum[j] += term(v.first, HalfOfPair<T, false>{i}), more[j] += term(v.second, HalfOfPair<T, true>{i});
        }
    }
    if (i + W <= n) {
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) sum[j] += term(load(x[j] + i), Columns<A>{i, W});
        i += W;
    }
    if (i < n) {
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) more[j] += term(load_n(x[j] + i, int(n - i)), Columns<A>{i, int(n - i)});
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sum[j] += more[j];
    lanes_sums<A, N>(sum, out);
}

// out[j * heads + h] = sum over head h of x[j] of term(h), a term for `sums`. Of the `ready` rows from x on, those `ahead` are
// fetched on the way.
template <class T, class Term>
void sums_by_head(const T* const* x, int64_t count, int64_t ready, int64_t ahead, int64_t heads, int64_t dim, Acc<T>* out, const Term& term) {
    for (int64_t j = 0; j < count; j += 4) {
        const int64_t some = least(count - j, int64_t(4));
        for (int64_t q = j + ahead; q < least(j + ahead + some, ready); ++q) prefetch(x[q], heads * dim);
        for (int64_t h = 0; h < heads; ++h) {
            const auto of_head = term(h);
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
                    [&](int64_t h) { return [row = y + h * dim](Vec<Acc<T>> v, const auto& at) { return v * at(row); }; });
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
