// Grouping edges by row: stable counting sorts, in which each thread owns a range of rows.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ampgnn {

// The first edge whose row is outside [0, rows) or whose col is outside [0, cols), or -1.
template <class I> int64_t first_bad_edge(const I* row, const I* col, int64_t edges, int64_t rows, int64_t cols) {
    int64_t bad = edges;
#pragma omp parallel for reduction(min : bad) if (edges > 1 << 16)
    for (int64_t e = 0; e < edges; ++e)
        if (row[e] < 0 || int64_t(row[e]) >= rows || col[e] < 0 || int64_t(col[e]) >= cols)
            if (e < bad) bad = e;
    return bad == edges ? -1 : bad;
}

// Calls visit(first, end) for ranges of rows, one a thread: each reads all of the edges and writes its own rows.
template <class Visit> void for_row_ranges(int64_t rows, int64_t edges, const Visit& visit) {
    constexpr int kMostReaders = 8;
    const int ranges = edges < 1 << 16 ? 1 : std::min(omp_get_max_threads(), kMostReaders);
#pragma omp parallel for num_threads(ranges) schedule(static, 1) if (ranges > 1)
    for (int i = 0; i < ranges; ++i) visit(rows * i / ranges, rows * (i + 1) / ranges);
}

// Places of entries in rows: count them all, start(), then next() gives each its place.
template <class I> struct Places {
    I* indptr;
    int64_t rows;
    std::vector<I> at;
    Places(I* indptr, int64_t rows) : indptr(indptr), rows(rows), at(rows, 0) {}
    void start() {
        indptr[0] = 0;
        for (int64_t r = 0; r < rows; ++r) indptr[r + 1] = indptr[r] + at[r];
        std::copy(indptr, indptr + rows, at.begin());
    }
};

// Fills indptr (rows + 1), indices and eids (edges); a row's edges stay in their order. Returns whether all were in row
// order already, that is whether eids is 0, 1, 2, ...
template <class I>
bool group_by_row(const I* row, const I* col, int64_t edges, int64_t rows, I* indptr, I* indices, I* eids) {
    Places<I> places(indptr, rows);
    for_row_ranges(rows, edges, [&](int64_t first, int64_t end) {
        for (int64_t e = 0; e < edges; ++e)
            if (row[e] >= first && row[e] < end) ++places.at[row[e]];
    });
    places.start();
    for_row_ranges(rows, edges, [&](int64_t first, int64_t end) {
        for (int64_t e = 0; e < edges; ++e)
            if (row[e] >= first && row[e] < end) {
                const I k = places.at[row[e]]++;
                indices[k] = col[e];
                eids[k] = I(e);
            }
    });
    return std::is_sorted(row, row + edges);
}

// The same edges grouped by their other end, of which there are `cols`: to_indptr (cols + 1), to_indices and to_eids.
// Indices rise within a row. Returns whether to_eids is 0, 1, 2, ...
template <class I>
bool transpose(const I* indptr, const I* indices, const I* eids, int64_t rows, int64_t cols, I* to_indptr, I* to_indices, I* to_eids) {
    const int64_t edges = indptr[rows];
    Places<I> places(to_indptr, cols);
    for_row_ranges(cols, edges, [&](int64_t first, int64_t end) {
        for (int64_t k = 0; k < edges; ++k)
            if (indices[k] >= first && indices[k] < end) ++places.at[indices[k]];
    });
    places.start();
    for_row_ranges(cols, edges, [&](int64_t first, int64_t end) {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t k = indptr[r]; k < int64_t(indptr[r + 1]); ++k)
                if (indices[k] >= first && indices[k] < end) {
                    const I to = places.at[indices[k]]++;
                    to_indices[to] = I(r);
                    to_eids[to] = eids ? eids[k] : I(k);
                }
    });
    for (int64_t k = 0; k < edges; ++k)
        if (to_eids[k] != I(k)) return false;
    return true;
}

// Whether the ids of every row's entries, of their other ends or of their edges, rise.
template <class I> bool ids_rise(const I* indptr, const I* ids, int64_t rows) {
    bool rise = true;
#pragma omp parallel for reduction(&& : rise) if (rows + indptr[rows] > 1 << 15)
    for (int64_t r = 0; r < rows; ++r) rise = rise && std::is_sorted(ids + indptr[r], ids + indptr[r + 1]);
    return rise;
}

// Puts each row's entries in the order of their indices, which are below 2^32; equal ones keep their order.
template <class I> void sort_rows(const I* indptr, int64_t rows, I* indices, I* eids) {
#pragma omp parallel
    {
        std::vector<uint64_t> keys;
        std::vector<I> ids;
#pragma omp for schedule(dynamic, 256)
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t k0 = indptr[r], count = int64_t(indptr[r + 1]) - k0;
            if (std::is_sorted(indices + k0, indices + k0 + count)) continue;
            keys.resize(count);
            for (int64_t j = 0; j < count; ++j) keys[j] = uint64_t(indices[k0 + j]) << 32 | uint64_t(j);
            std::sort(keys.begin(), keys.end());
            ids.assign(eids + k0, eids + k0 + count);
            for (int64_t j = 0; j < count; ++j) {
                indices[k0 + j] = I(keys[j] >> 32);
                eids[k0 + j] = ids[uint32_t(keys[j])];
            }
        }
    }
}

}  // namespace ampgnn
