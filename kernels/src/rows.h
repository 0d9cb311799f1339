// Walking compressed rows: ranges of rows of equal work, and blocks of a row's entries.
#pragma once
#include <sys/mman.h>

#include <cstdlib>

#include "args.h"
#include "simd/vec.h"

namespace {
using namespace ampgnn;

// Entries of a row handled at once: their ids and addresses stay in the first-level cache.
constexpr int64_t kBlock = 256;

// Entries between the fetching and the use of an edge's data.
constexpr int64_t kEdgesAhead = 64;

template <class I> struct View {
    const I *indptr, *indices, *eids;
    explicit View(const Rows& g) : indptr((const I*)g.indptr), indices((const I*)g.indices), eids((const I*)g.eids) {}
    int64_t eid(int64_t k) const { return eids ? int64_t(eids[k]) : k; }

    // Starts fetching the edge features of entry k, if it lies before stop: edge ids in any order make each a cache miss of its own.
    template <class T> void prefetch_edge(const T* w, int64_t stride, int64_t k, int64_t stop) const {
        if (eids && k < stop) __builtin_prefetch(w + int64_t(eids[k]) * stride);
    }
};

constexpr int kAhead = 8;  // entries between the fetching and the use of a row of features

template <class T> inline void prefetch(const T* p, int64_t n) {
    for (int64_t byte = 0; byte < n * int64_t(sizeof(T)); byte += 64) __builtin_prefetch((const char*)p + byte);
}

// The width of a row of n values with room for whole vectors.
template <class A> inline int64_t padded(int64_t n) { return (n + kLanes<A> - 1) / kLanes<A> * kLanes<A>; }

// Zeroed scratch memory of one thread, freed with it; in huge pages as far as it fills them, or each of its rows would
// cost a miss of the address cache.
template <class A> struct Scratch {
    A* data;
    explicit Scratch(int64_t n) {
        constexpr size_t kHugePage = 2 << 20, kLine = 64;
        const size_t bytes = (size_t(n) * sizeof(A) / kLine + 1) * kLine, huge = bytes / kHugePage * kHugePage;
        data = (A*)aligned_alloc(huge ? kHugePage : kLine, bytes);
#if defined(MADV_HUGEPAGE)
        if (data && huge) madvise(data, huge, MADV_HUGEPAGE);
#endif
        if (data) memset(data, 0, bytes);
    }
    ~Scratch() { free(data); }
    Scratch(const Scratch&) = delete;
    operator A*() const { return data; }
    A& operator[](int64_t i) const { return data[i]; }
};

// Where rows [first, end) are cut so that `parts` parts hold equal numbers of rows + entries: the first row of part i.
template <class I> int64_t cut(const I* indptr, int64_t first, int64_t end, int64_t i, int64_t parts) {
    if (i >= parts) return end;
    const int64_t start = first + int64_t(indptr[first]), work = (end + int64_t(indptr[end]) - start) * i / parts;
    int64_t lo = first, hi = end;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (mid + int64_t(indptr[mid]) - start < work) lo = mid + 1; else hi = mid;
    }
    return lo;
}

// Calls body(first_row, end_row, range) on `ranges` ranges of rows; each range runs on one thread, in row order.
template <class I, class Body> void for_ranges(const Rows& g, int64_t ranges, int threads, const Body& body) {
    const I* indptr = (const I*)g.indptr;
    const auto one = [&](int64_t range) {
        const int64_t first = cut(indptr, 0, g.rows, range, ranges), end = cut(indptr, 0, g.rows, range + 1, ranges);
        if (first < end) body(first, end, range);
    };
    if (threads <= 1 || ranges <= 1) {
        for (int64_t range = 0; range < ranges; ++range) one(range);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t range = 0; range < ranges; ++range) one(range);
}

// As for_ranges, for kernels whose rows are independent: `width` is the cost of an entry.
template <class I, class Body> void for_rows(const Rows& g, int64_t width, int threads, const Body& body) {
    constexpr int64_t kWorthAThread = 1 << 15, kRangesAThread = 32;
    const int64_t work = (g.rows + g.nnz) * (width + 8);
    const int64_t ranges = least(most(work / kWorthAThread, int64_t(1)), threads * kRangesAThread);
    for_ranges<I>(g, threads <= 1 ? 1 : ranges, threads, [&](int64_t a, int64_t b, int64_t) { body(a, b); });
}

template <class P> struct PointeeOf;
template <class P> struct PointeeOf<P*> { using type = P; };
#define AMPGNN_TYPE(tag) typename PointeeOf<decltype(tag)>::type

// Calls f with a null pointer of the type that `dtype` names: a tag, read by AMPGNN_TYPE.
template <class F> void with_dtype(DType dtype, const F& f) {
    switch (dtype) {
        case DType::f64: return f((double*)nullptr);
        case DType::f32: return f((float*)nullptr);
        case DType::f16: return f((f16*)nullptr);
        case DType::bf16: return f((bf16*)nullptr);
    }
}
template <class F> void with_index(bool wide, const F& f) {
    if (wide) f((int64_t*)nullptr); else f((int32_t*)nullptr);
}
// Calls f(I*, T*) with the types of ids and of features.
template <class F> void with_types(bool wide, DType dtype, const F& f) {
    with_index(wide, [&](auto* i) { with_dtype(dtype, [&](auto* t) { f(i, t); }); });
}

template <class T> inline void store_row(T* to, const Acc<T>* from, int64_t n) {
    constexpr int W = kLanes<Acc<T>>;
    int64_t i = 0;
    for (; i + W <= n; i += W) store(to + i, load(from + i));
    if (i < n) store_n(to + i, load_n(from + i, int(n - i)), int(n - i));
}
// Row r of a result: rounded to T, or wide where rows are pieces.
template <class T> inline void store_result(const Rows& g, void* out, int64_t r, const Acc<T>* from, int64_t n) {
    if (g.pieces) store_row((Acc<T>*)out + r * n, from, n);
    else store_row((T*)out + r * n, from, n);
}
template <class T> inline void load_row(Acc<T>* to, const T* from, int64_t n) {
    constexpr int W = kLanes<Acc<T>>;
    int64_t i = 0;
    for (; i + W <= n; i += W) store(to + i, load(from + i));
    for (; i < n; ++i) to[i] = to_acc(from[i]);
}

// to (count, width) = what the edges of entries k and on hold in `from`, made wide; entries before `stop` are prefetched.
template <class I, class T>
inline void gather_edges(const View<I>& g, const T* from, int64_t width, int64_t k, int64_t count, int64_t stop, Acc<T>* to) {
    if (!g.eids) return load_row<T>(to, from + k * width, count * width);
    for (int64_t j = 0; j < count; ++j) {
        g.prefetch_edge(from, width, k + j + kEdgesAhead, stop);
        const T* row = from + int64_t(g.eids[k + j]) * width;
        for (int64_t i = 0; i < width; ++i) to[j * width + i] = to_acc(row[i]);
    }
}

// The other way round: what the edges of entries k and on hold in `to` = from (count, width), rounded.
template <class I, class T>
inline void scatter_edges(const View<I>& g, const Acc<T>* from, int64_t width, int64_t k, int64_t count, T* to) {
    if (!g.eids) return store_row(to + k * width, from, count * width);
    for (int64_t j = 0; j < count; ++j) {
        T* row = to + int64_t(g.eids[k + j]) * width;
        for (int64_t i = 0; i < width; ++i) row[i] = Store<T>::from(from[j * width + i]);
    }
}

template <class A> inline void add_row(A* to, const A* from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}
template <class A> inline void scale_row(A* x, A factor, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace
