// Vectors of float and double in the widest registers of the instruction set this file is compiled for.
// Arithmetic is GCC's vector extension; only conversions to and from the half types are written by hand.
// Everything has internal linkage: two instruction sets must never share a symbol.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

typedef float VecF __attribute__((vector_size(kVectorBytes)));
typedef double VecD __attribute__((vector_size(kVectorBytes)));
typedef int32_t VecI __attribute__((vector_size(kVectorBytes)));
typedef int64_t VecL __attribute__((vector_size(kVectorBytes)));
typedef int16_t VecS __attribute__((vector_size(kVectorBytes)));
typedef float VecHalfF __attribute__((vector_size(kVectorBytes / 2)));

template <class A> struct Traits;
template <> struct Traits<float> { using Vec = VecF; using Int = VecI; using Bits = int32_t; };
template <> struct Traits<double> { using Vec = VecD; using Int = VecL; using Bits = int64_t; };
template <> struct Traits<int16_t> { using Vec = VecS; using Int = VecS; using Bits = int16_t; };
template <class A> using Vec = typename Traits<A>::Vec;
template <class A> constexpr int kLanes = kVectorBytes / int(sizeof(A));

// The type values are worked with in: float for every type but double, and for integers, which stay.
template <class T> struct AccOf { using type = float; };
template <> struct AccOf<double> { using type = double; };
template <> struct AccOf<int16_t> { using type = int16_t; };
template <class T> using Acc = typename AccOf<T>::type;

template <class A> inline A least(A a, A b) { return b < a ? b : a; }
template <class A> inline A most(A a, A b) { return a < b ? b : a; }

template <class To, class From> inline To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

// ---- one element

inline float to_acc(float x) { return x; }
inline double to_acc(double x) { return x; }
inline float to_acc(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }
inline float to_acc(f16 x) {
#if defined(__F16C__)
    return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
    return float(bit_cast<__fp16>(x.bits));
#else
    const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, magnitude = x.bits & 0x7fff;
    if (magnitude >= 0x7c00) return bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return bit_cast<float>(sign | ((magnitude << 13) + (uint32_t(127 - 15) << 23)));
    return bit_cast<float>(sign | bit_cast<uint32_t>(float(magnitude) * 0x1p-24f));
#endif
}

template <class T> struct Store;
template <> struct Store<float> { static float from(float x) { return x; } };
template <> struct Store<double> { static double from(double x) { return x; } };
template <> struct Store<bf16> {  // to nearest even; a NaN stays one
    static bf16 from(float x) {
        const uint32_t b = bit_cast<uint32_t>(x);
        if (x != x) return {uint16_t(b >> 16 | 0x40)};
        return {uint16_t((b + 0x7fff + (b >> 16 & 1)) >> 16)};
    }
};
template <> struct Store<f16> {
    static f16 from(float x) {
#if defined(__F16C__)
        return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
#elif defined(__aarch64__)
        return {bit_cast<uint16_t>(__fp16(x))};
#else
        const uint32_t b = bit_cast<uint32_t>(x), sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
        if (magnitude > 0x7f800000) return {uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff))};
        if (magnitude >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // 65520 and more
        if (magnitude < 0x38800000)  // subnormal: adding 0.5 leaves the rounded bits in the mantissa's end
            return {uint16_t(sign | (bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000))};
        return {uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13))};
#endif
    }
};

// ---- a whole vector

template <class A> inline Vec<A> splat(A x) { return x - Vec<A>{}; }
template <class A> inline Vec<A> load(const A* p) {
    Vec<A> v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class A> inline void store(A* p, Vec<A> v) { memcpy(p, &v, sizeof v); }
inline VecD load_double(const double* p) { return load(p); }
inline VecD load_double(const float* p) {
    VecHalfF v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, VecD);
}

#if defined(__AVX512F__)
inline VecF widen(__m256i h, bf16) { return (VecF)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16); }
inline VecF widen(__m256i h, f16) { return (VecF)_mm512_cvtph_ps(h); }
template <class T> inline VecF load_half(const T* p) { return widen(_mm256_loadu_si256((const __m256i*)p), T{}); }
inline __m256i narrow(VecF v, bf16) {
#if defined(__AVX512BF16__)
    constexpr int kSubnormal = 0x20;  // which the instruction takes for zero
    if (!_mm512_fpclass_ps_mask((__m512)v, kSubnormal)) return (__m256i)_mm512_cvtneps_pbh((__m512)v);
#endif
    const __m512i b = (__m512i)v;
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, b, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
inline __m256i narrow(VecF v, f16) { return _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
template <class T> inline void store_half(T* p, VecF v) { _mm256_storeu_si256((__m256i*)p, narrow(v, T{})); }
#elif defined(__AVX2__)
inline VecF widen(__m128i h, bf16) { return (VecF)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16); }
inline VecF widen(__m128i h, f16) { return (VecF)_mm256_cvtph_ps(h); }
template <class T> inline VecF load_half(const T* p) { return widen(_mm_loadu_si128((const __m128i*)p), T{}); }
inline __m128i narrow(VecF v, bf16) {
    const __m256i b = (__m256i)v;
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = (__m256i)_mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q);
    const __m256i kept = _mm256_blendv_epi8(rounded, _mm256_or_si256(b, _mm256_set1_epi32(0x400000)), nan);
    const __m256i high = _mm256_srli_epi32(kept, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
inline __m128i narrow(VecF v, f16) { return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
template <class T> inline void store_half(T* p, VecF v) { _mm_storeu_si128((__m128i*)p, narrow(v, T{})); }
#else
template <class T> inline VecF load_half(const T* p) {
    VecF v;
    for (int i = 0; i < kLanes<float>; ++i) v[i] = to_acc(p[i]);
    return v;
}
template <class T> inline void store_half(T* p, VecF v) {
    for (int i = 0; i < kLanes<float>; ++i) p[i] = Store<T>::from(v[i]);
}
#endif
inline VecF load(const bf16* p) { return load_half(p); }
inline VecF load(const f16* p) { return load_half(p); }
inline void store(bf16* p, VecF v) { store_half(p, v); }
inline void store(f16* p, VecF v) { store_half(p, v); }

// ---- the first n lanes of a vector, 0 < n < kLanes; the rest of a load is 0

#if defined(__AVX512F__)
inline VecF load_n(const float* p, int n) { return (VecF)_mm512_maskz_loadu_ps((1u << n) - 1, p); }
inline VecD load_n(const double* p, int n) { return (VecD)_mm512_maskz_loadu_pd((1u << n) - 1, p); }
inline VecS load_n(const int16_t* p, int n) { return (VecS)_mm512_maskz_loadu_epi16((1u << n) - 1, p); }
inline VecF load_n(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16((1u << n) - 1, p), bf16{}); }
inline VecF load_n(const f16* p, int n) { return widen(_mm256_maskz_loadu_epi16((1u << n) - 1, p), f16{}); }
#else
template <class T> inline Vec<Acc<T>> load_n(const T* p, int n) {
    T lanes[kLanes<Acc<T>>] = {};
    memcpy(lanes, p, n * sizeof(T));
    return load(lanes);
}
#endif
// _some: the first n lanes, or, where n is kLanes, all of them.
template <class T> inline Vec<Acc<T>> load_some(const T* p, int n) {
    return n == kLanes<Acc<T>> ? Vec<Acc<T>>(load(p)) : Vec<Acc<T>>(load_n(p, n));
}
template <class T> inline void store_n(T* p, Vec<Acc<T>> v, int n) {
    T lanes[kLanes<Acc<T>>];
    store(lanes, v);
    memcpy(p, lanes, n * sizeof(T));
}
template <class T> inline void store_some(T* p, Vec<Acc<T>> v, int n) {
    if (n == kLanes<Acc<T>>) store(p, v);
    else store_n(p, v, n);
}

// ---- two vectors of columns at once, in the order in which they are loaded fastest

// For bf16 the even columns, then the odd ones: the halves of 32-bit words need no widening. in_order undoes that order,
// and paired makes it of two vectors of columns.
template <class A> struct Pair { Vec<A> first, second; };

template <class A> using Lanes = std::make_integer_sequence<int, kLanes<A>>;
template <class A, int... I> inline Pair<A> evens_and_odds(Vec<A> a, Vec<A> b, std::integer_sequence<int, I...>) {
    using Int = typename Traits<A>::Int;
    return {__builtin_shuffle(a, b, Int{2 * I...}), __builtin_shuffle(a, b, Int{2 * I + 1 ...})};
}
template <class A, int... I> inline Pair<A> interleaved(Vec<A> a, Vec<A> b, std::integer_sequence<int, I...>) {
    using Int = typename Traits<A>::Int;
    constexpr int W = kLanes<A>;
    return {__builtin_shuffle(a, b, Int{I / 2 + I % 2 * W...}), __builtin_shuffle(a, b, Int{(I + W) / 2 + I % 2 * W...})};
}

template <class T> struct Paired {
    using A = Acc<T>;
    static Pair<A> load_pair(const T* p) { return {load(p), load(p + kLanes<A>)}; }
    static Pair<A> paired(Pair<A> x) { return x; }
    static Pair<A> in_order(Pair<A> x) { return x; }
};
template <> struct Paired<bf16> {
    static Pair<float> load_pair(const bf16* p) {
        VecI words;
        memcpy(&words, p, sizeof words);
        return {(VecF)(words << 16), (VecF)(words & int32_t(0xffff0000))};
    }
    static Pair<float> paired(Pair<float> x) { return evens_and_odds<float>(x.first, x.second, Lanes<float>{}); }
    static Pair<float> in_order(Pair<float> x) { return interleaved<float>(x.first, x.second, Lanes<float>{}); }
};

// ---- kLanes records of four values: the first of each, the second of each, and so on

template <class A> struct Quad { Vec<A> a, b, c, d; };
template <class A> inline Quad<A> load_transposed(const A* p) {
    constexpr int W = kLanes<A>;
    const Pair<A> low = evens_and_odds<A>(load(p), load(p + W), Lanes<A>{}), high = evens_and_odds<A>(load(p + 2 * W), load(p + 3 * W), Lanes<A>{});
    const Pair<A> ac = evens_and_odds<A>(low.first, high.first, Lanes<A>{}), bd = evens_and_odds<A>(low.second, high.second, Lanes<A>{});
    return {ac.first, bd.first, ac.second, bd.second};
}
template <class A> inline void store_transposed(A* p, const Quad<A>& v) {
    constexpr int W = kLanes<A>;
    const Pair<A> ac = interleaved<A>(v.a, v.c, Lanes<A>{}), bd = interleaved<A>(v.b, v.d, Lanes<A>{});
    const Pair<A> low = interleaved<A>(ac.first, bd.first, Lanes<A>{}), high = interleaved<A>(ac.second, bd.second, Lanes<A>{});
    store(p, low.first), store(p + W, low.second), store(p + 2 * W, high.first), store(p + 3 * W, high.second);
}

// ---- sums of lanes: halves added to each other until one lane is left, always the same tree

template <int Half, class A, int... I> inline Vec<A> add_across(Vec<A> v, std::integer_sequence<int, I...>) {
    return v + __builtin_shuffle(v, typename Traits<A>::Int{(I ^ Half)...});
}
// Half of the lanes in each group of 2 * Half, added up: Half = kLanes / 2 for all of them.
template <class A, int Half> inline Vec<A> sum_groups(Vec<A> v) {
    if constexpr (Half == 0) return v;
    else return sum_groups<A, Half / 2>(add_across<Half, A>(v, Lanes<A>{}));
}
template <class A> inline A lanes_sum(Vec<A> v) { return sum_groups<A, kLanes<A> / 2>(v)[0]; }

// Where lane i of add_halves comes from in its first or, with `high`, second summand; lanes W and on are b's.
constexpr int half_of(int W, int width, int i, bool high) {
    const int half = width / 2, group = i / half, groups = W / width;
    return (group >= groups ? W + (group - groups) * width : group * width) + i % half + (high ? half : 0);
}
// The halves of each group of `Width` lanes added to each other: a's groups, then b's.
template <int Width, class A, int... I> inline Vec<A> add_halves(Vec<A> a, Vec<A> b, std::integer_sequence<int, I...>) {
    using Int = typename Traits<A>::Int;
    return __builtin_shuffle(a, b, Int{half_of(kLanes<A>, Width, I, false)...}) +
           __builtin_shuffle(a, b, Int{half_of(kLanes<A>, Width, I, true)...});
}
// out[j] = lanes_sum(v[j]), to the bit; four at once cost little more than one.
template <class A, int N> __attribute__((always_inline)) inline void lanes_sums(const Vec<A>* v, A* out) {
    constexpr int W = kLanes<A>;
    if constexpr (N == 4 && W >= 4) {
        const Vec<A> ab = add_halves<W, A>(v[0], v[1], Lanes<A>{}), cd = add_halves<W, A>(v[2], v[3], Lanes<A>{});
        const Vec<A> sums = sum_groups<A, W / 8>(add_halves<W / 2, A>(ab, cd, Lanes<A>{}));
        for (int j = 0; j < 4; ++j) out[j] = sums[j * (W / 4)];
    } else {
        for (int j = 0; j < N; ++j) out[j] = lanes_sum<A>(v[j]);
    }
}

// ---- exponential of x <= 0 (or NaN), for softmax: within 2^-22 relative, exactly 0 below the smallest subnormal.
// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by its Taylor series. `rest` is what x lost to
// rounding: exp(x + rest) = exp(x) (1 + rest).

inline VecF exp_nonpositive(VecF x, VecF rest) {
    const VecF floor = splat(-104.f), magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
    const VecF y = x < floor ? floor : x;
    const VecF shifted = y * 1.44269504f + magic, n = shifted - magic;
    const VecF r = (y - n * 0.693145752f) - n * 1.42860677e-6f;
    VecF p = splat(1.f / 5040);
    p = p * r + 1.f / 720;
    p = p * r + 1.f / 120;
    p = p * r + 1.f / 24;
    p = p * r + 1.f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    p += p * rest;
    // 2^n in two factors, so that results below 2^-126 are rounded once, as subnormals.
    const VecI k = __builtin_convertvector(n, VecI), k1 = k / 2, k2 = k - k1;
    const VecF scaled = p * (VecF)((k1 + 127) << 23) * (VecF)((k2 + 127) << 23);
    return x != x ? x : scaled;
}

inline VecD exp_nonpositive(VecD x, VecD rest) {
    VecD y;
    for (int i = 0; i < kLanes<double>; ++i) y[i] = __builtin_exp(x[i]);
    return y + y * rest;
}

// exp(x - max), the difference taken without rounding error.
template <class V> inline V exp_difference(V x, V max) {
    const V d = x - max, b = d - x, rest = (x - (d - b)) - (max + b);
    return exp_nonpositive(d, rest == rest ? rest : V{});
}

}  // namespace
