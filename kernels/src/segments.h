// The entries of rows, in the order that keeps what they gather in cache.
#pragma once
#include <omp.h>

#include <new>

#include "rows.h"

namespace {

// At most kBlock entries of one row, from k on, handled at once. `slot` is the row's place in its chunk, where its
// running result is kept; `at` is where the entries' values lie in the scratch arrays of the batch, which hold
// `ready` entries from there on, those of later segments included.
// `stop` is the end of the run of entries that it is a part of, `share` the share of the rows (see Span).
struct Segment { int64_t row, slot, k, count, at, ready, stop, share; };

// Rows are walked in chunks. A chunk passes over the ids at the other end tile by tile, so that what it gathers from one
// tile stays in cache; a tile is first streamed in, much faster than its rows would be missed one by one. Threads share a
// chunk and go through its tiles together: the last-level cache holds one tile, not one a thread. All of it follows from
// the graph and the sizes alone: results depend neither on the number of threads nor on the machine.
struct Tiling {
    int64_t cols, tile, chunk;
    const char* gathered;  // row 0 of what entries gather, null where a tile is everything
    int64_t bytes;         // a row of it
    bool shared() const { return gathered; }
};

// kept: bytes of the running result of a row. Those of a chunk take no more than 1 / kShare of rows as wide as what is
// gathered, which is how wide results are.
// beside: bytes that entries read or write of the other end beside what they gather. A tile's should stay in the
// second-level cache, as long as a row has kLongVisit entries in a tile.
inline Tiling tiling_for(const Rows& g, const void* gathered, int64_t bytes, int64_t kept, int64_t beside = 0) {
    constexpr int64_t kTileBytes = 8 << 20, kChunkBytes = 8 << 20, kShare = 24, kUntiledBytes = 16 << 10, kWorthAVisit = 4;
    constexpr int64_t kBesideBytes = 3 << 18, kLongVisit = 32;
    kept = most(kept, int64_t(64));
    const auto tiles_of = [&](int64_t each, int64_t limit) { return (g.cols * each + limit - 1) / limit; };
    const int64_t longest = g.nnz / most(g.rows * kLongVisit, int64_t(1));
    const int64_t tiles = most(tiles_of(bytes, kTileBytes), least(tiles_of(beside, kBesideBytes), longest));
    const int64_t chunk = most(least(kChunkBytes, g.rows * bytes / kShare) / kept, int64_t(16));
    const bool reused = g.rows > 0 && double(chunk) * g.nnz / g.rows > double(g.cols);
    if (tiles <= 1 || !reused || g.nnz / tiles < kWorthAVisit * g.rows)
        return {g.cols, g.cols, most(int64_t(1), least(kUntiledBytes / kept, int64_t(64))), nullptr, 0};
    return {g.cols, (g.cols + tiles - 1) / tiles, chunk, (const char*)gathered, bytes};
}

// What one thread walks: the shares [lo, hi) of the `shares` that every chunk of the rows [first, end) is cut in, or all
// of it, as share lo, where `shares` is 0.
struct Span {
    int64_t first, end, lo, hi, shares;
    template <class I> int64_t cut_at(const I* indptr, int64_t c0, int64_t c1, int64_t i) const {
        return shares ? cut(indptr, c0, c1, i, shares) : i == lo ? c0 : c1;
    }
    // The most rows it has in a chunk.
    template <class I> int64_t slots(const I* indptr, int64_t chunk) const {
        int64_t rows = 0;
        for (int64_t c0 = first; c0 < end; c0 += chunk) {
            const int64_t c1 = least(c0 + chunk, end);
            rows = most(rows, cut_at(indptr, c0, c1, hi) - cut_at(indptr, c0, c1, lo));
            if (!shares) break;
        }
        return rows;
    }
};

// Streams in a thread's part of the ids [lo, hi) and waits for those of the others.
inline void preload(const Tiling& t, int64_t lo, int64_t hi, const Span& s) {
    if (!t.shared()) return;
    const int64_t size = (hi - lo) * t.bytes;
    const char* base = t.gathered + lo * t.bytes;
    for (int64_t byte = size * s.lo / s.shares; byte < size * s.hi / s.shares; byte += 64) __builtin_prefetch(base + byte, 0, 2);
#pragma omp barrier
}

// What each edge reads or writes of its own: a row of `bytes` from `data` on, or nothing.
struct EdgeData { const char* data; int64_t bytes; };

// Where the run of ids below `limit` that starts at k ends, before row_end; whole vectors of ids are compared at once. Ids
// that do not rise may count to a tile too early, where they are handled as well.
template <class I> int64_t run_end(const I* ids, int64_t k, int64_t row_end, int64_t limit) {
    constexpr int64_t kIds = 16;
    for (; k + kIds <= row_end; k += kIds) {
        I below = 0;
#pragma GCC unroll 1  // unrolled, it is not made vectors of
        for (int64_t i = 0; i < kIds; ++i) below += ids[k + i] < I(limit);
        if (below < I(kIds)) return k + below;
    }
    while (k < row_end && ids[k] < limit) ++k;
    return k;
}

// Calls, for the rows of a span: begin(row, slot); then prepare(segment) and later consume(segment) for runs of their
// entries; at last finish(row, slot). A batch of segments is prepared before its first is consumed. The first edges of
// the rows ahead are fetched on the way: edge ids in any order make each a cache miss of its own.
template <class I, class Begin, class Prepare, class Consume, class Finish>
void for_segments(const View<I>& g, const Tiling& t, const Span& span, const EdgeData& edges, const Begin& begin,
                  const Prepare& prepare, const Consume& consume, const Finish& finish) {
    constexpr int64_t kRowsAhead = 2, kTogether = 16;
    const bool fetching = g.eids && edges.data;
    constexpr int64_t kLine = 64 / sizeof(I);
    const auto fetch_run = [&](int64_t k, int64_t row_end, int64_t tiles_left) {  // a row's next run of entries, if the tiles left share them equally
        const int64_t stop = least(k + least((row_end - k) / tiles_left, kBlock) + kLine, row_end + kLine);
        for (int64_t i = k; i < stop; i += kLine) __builtin_prefetch(g.indices + i);
        if (edges.data && !g.eids) __builtin_prefetch(edges.data + k * edges.bytes);
    };
    const auto fetch = [&](int64_t k) { __builtin_prefetch(edges.data + int64_t(g.eids[k]) * edges.bytes); };
    Scratch<int64_t> next(span.slots(g.indptr, t.chunk)), cuts(span.hi - span.lo + 1);
    Segment batch[kBlock];
    int64_t stops[kTogether], held = 0, filled = 0;
    const auto flush = [&] {
        for (int64_t i = 0; i < held; ++i) {
            batch[i].ready = filled - batch[i].at;
            consume(batch[i]);
        }
        held = filled = 0;
    };
    for (int64_t c0 = span.first; c0 < span.end; c0 += t.chunk) {
        const int64_t c1 = least(c0 + t.chunk, span.end);
        for (int64_t i = span.lo; i <= span.hi; ++i) cuts[i - span.lo] = span.cut_at(g.indptr, c0, c1, i);
        const int64_t first = cuts[0], end = cuts[span.hi - span.lo];
        for (int64_t r = first; r < end; ++r) begin(r, r - first), next[r - first] = g.indptr[r];
        for (int64_t limit = t.tile, tiles_left = t.shared() ? (t.cols + t.tile - 1) / t.tile : 1;; limit += t.tile, --tiles_left) {
            const bool last = limit >= t.cols;
            preload(t, limit - t.tile, least(limit, t.cols), span);
            for (int64_t r0 = first, share = span.lo, r1; r0 < end; r0 = r1) {
                r1 = least(r0 + kTogether, end);
                if (t.shared())
                    for (int64_t r = r1; r < least(r1 + kTogether, end); ++r) fetch_run(next[r - first], g.indptr[r + 1], tiles_left);
                for (int64_t r = r0; r < r1; ++r)  // apart from what follows, so that the rows' cache misses overlap
                    stops[r - r0] = last ? int64_t(g.indptr[r + 1]) : run_end(g.indices, next[r - first], g.indptr[r + 1], limit);
                for (int64_t r = r0; r < r1; ++r) {
                    while (r == cuts[share + 1 - span.lo]) ++share;
                    if (fetching && r + kRowsAhead < end) {
                        const int64_t k = next[r + kRowsAhead - first], stop = least(k + kEdgesAhead, int64_t(g.indptr[r + kRowsAhead + 1]));
                        for (int64_t i = k; i < stop && (last || g.indices[i] < limit); ++i) fetch(i);
                    }
                    const int64_t stop = stops[r - r0];
                    int64_t k = next[r - first];
                    next[r - first] = stop;
                    for (int64_t count; k < stop; k += count) {
                        count = least(kBlock, stop - k);
                        if (held == kBlock || filled + count > kBlock) flush();
                        prepare(*new (batch + held++) Segment{r, r - first, k, count, filled, 0, stop, share});  // made in place: a copy stalls
                        filled += count;
                    }
                }
            }
            flush();
            if (last) break;
        }
        for (int64_t r = first; r < end; ++r) finish(r, r - first);
    }
}

// Calls body(span) on every thread with its part of the rows. `width` is the cost of an entry. With `shares`, rows are
// dealt in that many shares, whose sums a kernel keeps apart: they follow from the graph, not from the threads.
template <class I, class Body>
void for_rows(const Rows& g, const Tiling& t, int64_t width, int threads, const Body& body, int64_t shares = 0) {
    if (!t.shared()) {
        if (!shares) return for_rows<I>(g, width, threads, [&](int64_t first, int64_t end) { body(Span{first, end, 0, 1, 0}); });
        return for_ranges<I>(g, shares, threads, [&](int64_t first, int64_t end, int64_t i) { body(Span{first, end, i, i + 1, 0}); });
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const int64_t i = omp_get_thread_num(), of = omp_get_num_threads(), all = shares ? shares : of;
        body(Span{0, g.rows, all * i / of, all * (i + 1) / of, all});
    }
}

constexpr auto kNothing = [](auto...) {};

}  // namespace
