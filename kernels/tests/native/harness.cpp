// The kernels of one instruction set without Python: checks them against plain loops in double, or, with a number of
// repetitions as argument, runs one weighted sum that often, for a count of its instructions.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../../src/args.h"

using namespace ampgnn;

namespace {

constexpr int kRows = 40, kCols = 50, kDegree = 24;

struct Graph {
    std::vector<int32_t> indptr{0}, indices;
    Graph() {
        uint32_t state = 1;
        for (int r = 0; r < kRows; ++r) {
            for (int k = 0; k < kDegree; ++k) indices.push_back((state = state * 1664525u + 1013904223u) % kCols);
            indptr.push_back(int32_t(indices.size()));
        }
    }
    Rows rows() const { return {indptr.data(), indices.data(), nullptr, kRows, int64_t(indices.size()), kCols, false}; }
};

// Values that every type holds exactly.
float value(int i) { return float((i * 37 + 11) % 64 - 32) / 16; }
uint16_t bits_of(float x, DType t) {
    uint32_t b;
    __builtin_memcpy(&b, &x, 4);
    if (t == DType::bf16) return uint16_t(b >> 16);
    return x == 0 ? uint16_t(b >> 16 & 0x8000) : uint16_t((b >> 16 & 0x8000) | ((b & 0x7fffffff) - 0x38000000) >> 13);
}
float value_of(uint16_t h, DType t) {
    if (t == DType::bf16) {
        const uint32_t b = uint32_t(h) << 16;
        float x;
        __builtin_memcpy(&x, &b, 4);
        return x;
    }
    const int e = h >> 10 & 31, m = h & 1023;
    const float x = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(1024.f + m, e - 25) : std::ldexp(float(m), -24);
    return h & 0x8000 ? -x : x;
}

template <class T> std::vector<T> fill(int n, DType t, int shift) {
    std::vector<T> x(n);
    for (int i = 0; i < n; ++i)
        if constexpr (sizeof(T) == 2) x[i] = bits_of(value(i + shift), t);
        else x[i] = T(value(i + shift));
    return x;
}
template <class T> double read(T x, DType t) {
    if constexpr (sizeof(T) == 2) return value_of(x, t);
    else return x;
}

template <class T> std::vector<T> weighted_sum(const Kernels& k, const Graph& g, DType t, int width, const std::vector<T>& x,
                                               const std::vector<T>& w) {
    std::vector<T> out(kRows * width);
    const int64_t zero = 0;
    SpmmArgs a{g.rows(), t, Op::mul, Reduce::sum, {1, width, &zero, &zero, 1, 0}, x.data(), width, w.data(), 1,
               nullptr, nullptr, out.data(), nullptr, 1};
    k.spmm(a);
    return out;
}

template <class T> void check(const Kernels& k, DType t, const char* name) {
    const Graph g;
    const double unit = t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-11 : 0x1p-20;
    for (int width : {1, 3, 16, 41, 64, 100, 256}) {
        const auto x = fill<T>(kCols * width, t, 0), w = fill<T>(kRows * kDegree, t, 5);
        const auto out = weighted_sum(k, g, t, width, x, w);
        for (int r = 0; r < kRows; ++r)
            for (int i = 0; i < width; ++i) {
                double sum = 0;
                for (int e = g.indptr[r]; e < g.indptr[r + 1]; ++e)
                    sum += read(x[g.indices[e] * width + i], t) * read(w[e], t);
                if (std::fabs(read(out[r * width + i], t) - sum) > unit * std::fabs(sum) + 1e-5) {
                    std::printf("%s %s width %d row %d column %d: %g, not %g\n", k.isa, name, width, r, i,
                                read(out[r * width + i], t), sum);
                    std::exit(1);
                }
            }
    }
    std::printf("%s %s right\n", k.isa, name);
}

}  // namespace

int main(int count, char** argument) {
    const Kernels& k = HARNESS_KERNELS();
    if (count > 1) {
        const Graph g;
        const int width = 64;
        const auto x = fill<uint16_t>(kCols * width, DType::bf16, 0), w = fill<uint16_t>(kRows * kDegree, DType::bf16, 5);
        for (int i = 0; i < std::atoi(argument[1]); ++i) weighted_sum(k, g, DType::bf16, width, x, w);
        return 0;
    }
    check<double>(k, DType::f64, "float64");
    check<float>(k, DType::f32, "float32");
    check<uint16_t>(k, DType::f16, "float16");
    check<uint16_t>(k, DType::bf16, "bfloat16");
}
