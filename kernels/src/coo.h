// Grouping the edges of a COO list by row, in edge order within a row (a stable counting sort).
#pragma once
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

// Fills indptr (rows + 1), indices and eids (edges). Returns whether the edges were in row order already, that is
// whether eids is 0, 1, 2, ...
template <class I>
bool group_by_row(const I* row, const I* col, int64_t edges, int64_t rows, I* indptr, I* indices, I* eids) {
    for (int64_t r = 0; r <= rows; ++r) indptr[r] = 0;
    bool sorted = true;
    for (int64_t e = 0; e < edges; ++e) {
        ++indptr[row[e] + 1];
        sorted &= e == 0 || row[e - 1] <= row[e];
    }
    for (int64_t r = 0; r < rows; ++r) indptr[r + 1] += indptr[r];
    std::vector<I> next(indptr, indptr + rows);
    for (int64_t e = 0; e < edges; ++e) {
        const I k = next[row[e]]++;
        indices[k] = col[e];
        eids[k] = I(e);
    }
    return sorted;
}

}  // namespace ampgnn
