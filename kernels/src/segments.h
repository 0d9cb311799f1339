// The entries of rows, in the order that keeps what they gather in cache.
#pragma once
#include "rows.h"

namespace {

// At most kBlock entries of one row, from k on, handled at once. `slot` is the row's place in its chunk, where its
// running result is kept; `at` is where the entries' values lie in the scratch arrays of the batch, which hold
// `ready` entries from there on, those of later segments included.
// `stop` is the end of the run of entries that it is a part of.
struct Segment { int64_t row, slot, k, count, at, ready, stop; };

// Rows are walked in chunks. A chunk passes over the ids at the other end tile by tile, so that what it gathers from one
// tile stays in cache; a tile is first streamed in, much faster than its rows would be missed one by one. All of it
// follows from the graph and the sizes alone: results depend neither on the number of threads nor on the machine.
struct Tiling {
    int64_t cols, tile, chunk;
    const char* gathered;  // row 0 of what entries gather, null where a tile is everything
    int64_t bytes;         // a row of it
};

// kept: bytes of the running result of a row.
inline Tiling tiling_for(const Rows& g, const void* gathered, int64_t bytes, int64_t kept) {
    constexpr int64_t kTileBytes = 8 << 20, kChunkBytes = 4 << 20, kUntiledBytes = 16 << 10, kWorthAVisit = 4;
    kept = most(kept, int64_t(64));
    const int64_t tiles = (g.cols * bytes + kTileBytes - 1) / kTileBytes, chunk = most(kChunkBytes / kept, int64_t(16));
    const bool reused = g.rows > 0 && double(chunk) * g.nnz / g.rows > double(g.cols);
    if (tiles <= 1 || !reused || g.nnz / tiles < kWorthAVisit * g.rows)
        return {g.cols, g.cols, most(int64_t(1), least(kUntiledBytes / kept, int64_t(64))), nullptr, 0};
    return {g.cols, (g.cols + tiles - 1) / tiles, chunk, (const char*)gathered, bytes};
}

inline void preload(const Tiling& t, int64_t lo, int64_t hi) {
    if (!t.gathered) return;
    for (int64_t byte = lo * t.bytes; byte < hi * t.bytes; byte += 64) __builtin_prefetch(t.gathered + byte, 0, 2);
}

// What each edge reads or writes of its own: a row of `bytes` from `data` on, or nothing.
struct EdgeData { const char* data; int64_t bytes; };

// Calls, for the rows of [first, end): begin(row, slot); then prepare(segment) and later consume(segment) for runs of
// its entries; at last finish(row, slot). A batch of segments is prepared before its first is consumed. The first edges of
// the rows ahead are fetched on the way: edge ids in any order make each a cache miss of its own.
template <class I, class Begin, class Prepare, class Consume, class Finish>
void for_segments(const View<I>& g, const Tiling& t, int64_t first, int64_t end, const EdgeData& edges, const Begin& begin,
                  const Prepare& prepare, const Consume& consume, const Finish& finish) {
    constexpr int64_t kRowsAhead = 2;
    const bool fetching = g.eids && edges.data;
    const auto fetch = [&](int64_t k) { __builtin_prefetch(edges.data + int64_t(g.eids[k]) * edges.bytes); };
    const int64_t chunks = (end - first + t.chunk - 1) / t.chunk, size = chunks ? (end - first + chunks - 1) / chunks : 0;
    Scratch<int64_t> next(size);
    Segment batch[kBlock];
    int64_t held = 0, filled = 0;
    const auto flush = [&] {
        for (int64_t i = 0; i < held; ++i) {
            batch[i].ready = filled - batch[i].at;
            consume(batch[i]);
        }
        held = filled = 0;
    };
    for (int64_t c0 = first; c0 < end; c0 += size) {
        const int64_t c1 = least(c0 + size, end);
        for (int64_t r = c0; r < c1; ++r) begin(r, r - c0), next[r - c0] = g.indptr[r];
        for (int64_t limit = t.tile;; limit += t.tile) {
            const bool last = limit >= t.cols;
            preload(t, limit - t.tile, least(limit, t.cols));
            for (int64_t r = c0; r < c1; ++r) {
                if (fetching && r + kRowsAhead < c1) {
                    const int64_t k = next[r + kRowsAhead - c0], stop = least(k + kEdgesAhead, int64_t(g.indptr[r + kRowsAhead + 1]));
                    for (int64_t i = k; i < stop && (last || g.indices[i] < limit); ++i) fetch(i);
                }
                int64_t k = next[r - c0], stop = k;
                const int64_t row_end = g.indptr[r + 1];
                if (last) stop = row_end;
                else while (stop < row_end && g.indices[stop] < limit) ++stop;
                next[r - c0] = stop;
                for (int64_t count; k < stop; k += count) {
                    count = least(kBlock, stop - k);
                    if (held == kBlock || filled + count > kBlock) flush();
                    const Segment s{r, r - c0, k, count, filled, 0, stop};
                    prepare(s);
                    batch[held++] = s;
                    filled += count;
                }
            }
            flush();
            if (last) break;
        }
        for (int64_t r = c0; r < c1; ++r) finish(r, r - c0);
    }
}

constexpr auto kNothing = [](auto...) {};

}  // namespace
