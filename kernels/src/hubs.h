// Rows so long that one thread would walk them while the others wait: each is cut into pieces, walked as rows of their
// own, whose results are merged in order. What is cut, and where, follows from the graph alone, and so do the results.
#pragma once
#include <algorithm>
#include <vector>

#include "rows.h"

namespace {

constexpr int64_t kPieces = 64;

// The rows with more than kLong entries and more than one in kShares of all.
template <class I> std::vector<int64_t> hubs_of(const Rows& g) {
    constexpr int64_t kLong = 1 << 16, kShares = 32;
    std::vector<int64_t> hubs;
    if (g.nnz <= kLong) return hubs;
    const I *indptr = (const I*)g.indptr, *end = indptr + g.rows + 1;
    for (int64_t i = 0; i < kShares; ++i) {  // a row longer than a share holds the first entry of one
        const int64_t row = std::upper_bound(indptr, end, I(g.nnz / kShares * i + g.nnz % kShares * i / kShares)) - indptr - 1;
        const int64_t count = int64_t(indptr[row + 1]) - int64_t(indptr[row]);
        if (count > kLong && count > g.nnz / kShares && (hubs.empty() || hubs.back() != row)) hubs.push_back(row);
    }
    return hubs;
}

// Calls of_hub(row) for every hub and others(rows, first) for the rows between two of them, `first` and on of g.
template <class I, class Others, class OfHub> void around_hubs(const Rows& g, const Others& others, const OfHub& of_hub) {
    const I* indptr = (const I*)g.indptr;
    int64_t first = 0;
    const auto up_to = [&](int64_t end) {
        if (first == end) return;
        Rows rows = g;
        rows.indptr = indptr + first, rows.rows = end - first, rows.nnz = int64_t(indptr[end]) - int64_t(indptr[first]);
        others(rows, first);
    };
    for (int64_t hub : hubs_of<I>(g)) up_to(hub), of_hub(hub), first = hub + 1;
    up_to(g.rows);
}

// The pieces of a hub as rows. They gather from no `cols`: none meets a source twice, so that nothing is gained by tiles.
template <class I> class Pieces {
    I indptr[kPieces + 1];
  public:
    Rows rows;
    Pieces(const Rows& g, int64_t hub) : rows(g) {
        const int64_t k0 = ((const I*)g.indptr)[hub], count = ((const I*)g.indptr)[hub + 1] - k0;
        for (int64_t i = 0; i <= kPieces; ++i) indptr[i] = I(k0 + count * i / kPieces);
        rows.indptr = indptr, rows.rows = kPieces, rows.nnz = count, rows.cols = 0, rows.pieces = true;
    }
    Pieces(const Pieces&) = delete;
    int64_t first(int64_t piece) const { return indptr[piece]; }  // entry, one past the last where piece is kPieces
};

// Row `row` of data, if there is any.
template <class T> inline const T* row_at(const void* data, int64_t row, int64_t width) {
    return data ? (const T*)data + row * width : nullptr;
}
template <class T> inline T* row_at(void* data, int64_t row, int64_t width) { return data ? (T*)data + row * width : nullptr; }

// The sum of the pieces' rows (kPieces, width), in their first.
template <class A> inline A* add_pieces(A* pieces, int64_t width) {
    for (int64_t i = 1; i < kPieces; ++i) add_row(pieces, pieces + i * width, width);
    return pieces;
}

}  // namespace
