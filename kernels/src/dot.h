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

// out[j * heads + h] = sum over head h of x[j], which of_head(h, number, rows, sums) finds for 4 rows or one. Of the `ready`
// rows from x on, those `ahead` are fetched on the way.
template <class T, class OfHead>
void sums_by_head(const T* const* x, int64_t count, int64_t ready, int64_t ahead, int64_t heads, int64_t dim, Acc<T>* out, const OfHead& of_head) {
    for (int64_t j = 0; j < count; j += 4) {
        const int64_t some = least(count - j, int64_t(4));
        for (int64_t q = j + ahead; q < least(j + ahead + some, ready); ++q) prefetch(x[q], heads * dim);
        for (int64_t h = 0; h < heads; ++h) {
            const T* rows[4];
            Acc<T> d[4];
            for (int q = 0; q < some; ++q) rows[q] = x[j + q] + h * dim;
            if (some == 4) of_head(h, std::integral_constant<int, 4>{}, rows, d);
            else for (int q = 0; q < some; ++q) of_head(h, std::integral_constant<int, 1>{}, rows + q, d + q);
            for (int q = 0; q < some; ++q) out[(j + q) * heads + h] = d[q];
        }
    }
}

#if defined(__AVX512BF16__)
// Multiplies pairs of bf16 and adds them up in fp32; values below 2^-126 count as zero, as in every matrix product that
// uses these instructions.
template <int N> inline void dots(const bf16* const* x, int64_t n, const bf16* y, float* out) {
    constexpr int W = 2 * kLanes<float>;
    const auto pairs = [](const bf16* p, __mmask32 lanes) { return (__m512bh)_mm512_maskz_loadu_epi16(lanes, p); };
    constexpr __mmask32 kAll = ~__mmask32(0);
    __m512 sum[N] = {}, more[N] = {};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        const __m512bh near = pairs(y + i, kAll), next = pairs(y + i + W, kAll);
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) {
            sum[j] = _mm512_dpbf16_ps(sum[j], pairs(x[j] + i, kAll), near);
            more[j] = _mm512_dpbf16_ps(more[j], pairs(x[j] + i + W, kAll), next);
        }
    }
    for (; i < n; i += W) {
        const __mmask32 lanes = n - i < W ? kAll >> (W - (n - i)) : kAll;
        const __m512bh near = pairs(y + i, lanes);
#pragma GCC unroll 4
        for (int j = 0; j < N; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], pairs(x[j] + i, lanes), near);
    }
    VecF sums[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sums[j] = (VecF)sum[j] + (VecF)more[j];
    lanes_sums<float, N>(sums, out);
}
inline VecF add_products(VecF sum, const bf16* x, const bf16* y) {
    return (VecF)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(x), (__m512bh)_mm512_loadu_si512(y));
}
#endif
template <int N, class T> inline void dots(const T* const* x, int64_t n, const Acc<T>* y, Acc<T>* out) {
    sums<T, N>(x, n, out, [y](Vec<Acc<T>> v, const auto& at) { return v * at(y); });
}

// What a row is held as for its dot products: wide, or as it is where bf16 is multiplied as such.
#if defined(__AVX512BF16__)
template <class T> using Dotted = std::conditional_t<std::is_same_v<T, bf16>, T, Acc<T>>;
#else
template <class T> using Dotted = Acc<T>;
#endif
template <class T> inline void hold_row(Dotted<T>* to, const T* row, int64_t n) {
    if constexpr (std::is_same_v<T, Dotted<T>>) memcpy(to, row, n * sizeof(T));
    else load_row<T>(to, row, n);
}

// out[j * heads + h] = dot of head h of x[j] and of y, which hold_row made or which is wide; `ready` and `ahead` as above.
template <class T, class Y>
void dots_by_head(const T* const* x, int64_t count, int64_t ready, int64_t ahead, const Y* y, int64_t heads, int64_t dim, Acc<T>* out) {
    sums_by_head<T>(x, count, ready, ahead, heads, dim, out,
                    [&](int64_t h, auto number, const T* const* rows, Acc<T>* d) { dots<number>(rows, dim, y + h * dim, d); });
}

void row_dot(const RowDotArgs& a) {
    with_dtype(a.dtype, [&](auto* t) {
        using T = AMPGNN_TYPE(t);
        using A = Acc<T>;
#pragma omp parallel num_threads(a.threads) if (a.rows * a.dim > 1 << 16)
        {
            Scratch<Dotted<T>> held(a.dim);
#pragma omp for schedule(static)
            for (int64_t r = 0; r < a.rows; ++r) {
                const T* row = (const T*)a.a + r * a.dim;
                hold_row<T>(held, (const T*)a.b + r * a.dim, a.dim);
                dots_by_head<T>(&row, 1, 1, 0, held.data, 1, a.dim, (A*)a.out + r);
            }
        }
    });
}

}  // namespace
