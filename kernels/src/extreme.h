// The running maximum or minimum of a row's entries, column by column, and which entry it came from; and the way of the
// gradient back there.
#pragma once
#include "accumulate.h"

namespace {

// A block of rows x, one for each of `count` entries; the first is entry `first` of its row.
template <class T> struct Candidates {
    const T* const* x;
    const typename Traits<Acc<T>>::Bits* ids;
    int64_t count, ready, first;
};

// The extreme of each column so far and the position in its row of the entry it came from. Of equal values the one with
// the smallest id wins where Ids, else the first; a NaN wins over everything, as in torch.amax, and its first entry stays.
template <class T, bool Max, bool Ids> class Extremes {
    using A = Acc<T>;
    using Int = typename Traits<A>::Int;
    using Bits = typename Traits<A>::Bits;
    static constexpr int W = kLanes<A>;
    const int64_t n, stride;
    const Scratch<A> best;
    const Scratch<Bits> from, id;

    // NV vectors of columns from `col`, those of row `at` of best.
    template <class X, int NV, bool Tail> void take_columns(const Candidates<X>& b, int64_t at, int64_t col, int tail) {
        Vec<A> top[NV];
        Int where[NV], its[NV];
        for (int i = 0; i < NV; ++i) {
            top[i] = load(best + at + col + i * W);
            memcpy(&where[i], from + at + col + i * W, sizeof(Int));
            if (Ids) memcpy(&its[i], id + at + col + i * W, sizeof(Int));
        }
        for (int64_t k = 0; k < b.count; ++k) {
            if (k + kAhead < b.ready) prefetch(b.x[k + kAhead] + col, NV * W);
            const Int position = Int{} + Bits(b.first + k), new_id = Ids ? Int{} + b.ids[k] : Int{};
#pragma GCC unroll 8
            for (int i = 0; i < NV; ++i) {
                const X* row = b.x[k] + col + i * W;
                const Vec<A> v = Tail && i == NV - 1 ? load_n(row, tail) : load(row);
                Int take = ~(Max ? v <= top[i] : v >= top[i]);
                if (Ids) take |= (v == top[i]) & (new_id < its[i]);
                take &= top[i] == top[i];
                top[i] = take ? v : top[i];
                where[i] = take ? position : where[i];
                if (Ids) its[i] = take ? new_id : its[i];
            }
        }
        for (int i = 0; i < NV; ++i) {
            store(best + at + col + i * W, top[i]);
            memcpy(from + at + col + i * W, &where[i], sizeof(Int));
            if (Ids) memcpy(id + at + col + i * W, &its[i], sizeof(Int));
        }
    }

  public:
    static constexpr bool kIds = Ids, kMessages = true;
    static constexpr int64_t kKept = sizeof(A) + sizeof(Bits) * (Ids ? 2 : 1);  // bytes a column
    Extremes(int64_t n, int64_t slots)
        : n(n), stride(padded<A>(n)), best(slots * stride), from(slots * stride), id(Ids ? slots * stride : 0) {}

    void begin(int64_t slot) {
        std::fill_n(best + slot * stride, n, Max ? -A(__builtin_inf()) : A(__builtin_inf()));
        memset(from + slot * stride, 0, n * sizeof(Bits));
        // the first entry of all -inf takes any id's place
        if (Ids) std::fill_n(id + slot * stride, n, Bits((uint64_t(1) << (8 * sizeof(Bits) - 1)) - 1));
    }
    template <class X> void take(const Candidates<X>& b, int64_t slot) {
        for_columns<A, Ids ? 4 : 8>(0, n, [&](auto vectors, auto tailed, int64_t col, int tail) {
            take_columns<X, vectors, tailed>(b, slot * stride, col, tail);
        });
    }
    // The columns' extremes and their entries' positions; row(position) is an entry's row.
    template <class Row> void finish(int64_t slot, const Row&, A* value, int64_t* position) const {
        std::copy_n(best + slot * stride, n, value);
        std::copy_n(from + slot * stride, n, position);
    }
};

// The same for rows of a half type with at most kPositions entries: the values' bits are compared as integers that rise
// as they do, twice as many at once as floats, and kept in half the memory.
template <class T, bool Max> class HalfExtremes {
    using Keys = Vec<int16_t>;
    static constexpr int W = kLanes<int16_t>;
    static constexpr int kInfinity = std::is_same_v<T, bf16> ? 0x7f80 : 0x7c00;
    // A key is x's magnitude with its sign, negated where the smallest is sought, and kZero more: that takes -infinity to
    // the least integer, and the NaNs below it around to the other end, where the other NaNs are.
    static constexpr int kZero = kInfinity - 0x8000, kFirstNaN = kInfinity + kZero + 1;
    const int64_t n, stride;
    const Scratch<int16_t> best, from;

    static Keys key(Keys x) {
        typedef uint16_t Wrapping __attribute__((vector_size(kVectorBytes)));
        const Wrapping bits = (Wrapping)x, zero = Wrapping{} + uint16_t(kZero), infinity = Wrapping{} + uint16_t(kInfinity);
        return (Keys)(Max ? (x < 0 ? infinity - bits : zero + bits) : (x < 0 ? infinity + bits : zero - bits));
    }
    static T value(int16_t key) {
        const int x = Max ? key - kZero : kZero - key;
        return {uint16_t(x < 0 ? 0x8000 - x : x)};
    }
    static bool ambiguous(int16_t key) { return key == kZero || key >= kFirstNaN; }  // which zero, which NaN
    template <int NV, bool Tail> void take_columns(const Candidates<T>& b, int64_t at, int64_t col, int tail) {
        Keys top[NV], where[NV];
        for (int i = 0; i < NV; ++i) top[i] = load(best + at + col + i * W), where[i] = load(from + at + col + i * W);
        for (int64_t k = 0; k < b.count; ++k) {
            if (k + kAhead < b.ready) prefetch(b.x[k + kAhead] + col, NV * W);
            const Keys position = splat(int16_t(b.first + k));
#pragma GCC unroll 8
            for (int i = 0; i < NV; ++i) {
                const int16_t* row = (const int16_t*)b.x[k] + col + i * W;
                const Keys v = key(Tail && i == NV - 1 ? load_n(row, tail) : load(row)), more = v > top[i];
                top[i] = more ? v : top[i];
                where[i] = more ? position : where[i];
            }
        }
        for (int i = 0; i < NV; ++i) store(best + at + col + i * W, top[i]), store(from + at + col + i * W, where[i]);
    }

  public:
    static constexpr bool kIds = false, kMessages = false;
    static constexpr int64_t kKept = 2 * sizeof(int16_t), kPositions = 1 << 16;
    HalfExtremes(int64_t n, int64_t slots) : n(n), stride(padded<int16_t>(n)), best(slots * stride), from(slots * stride) {}

    void begin(int64_t slot) {
        std::fill_n(best + slot * stride, n, int16_t(-0x8000));
        memset(from + slot * stride, 0, n * sizeof(int16_t));
    }
    void take(const Candidates<T>& b, int64_t slot) {
        for_columns<int16_t, 8>(0, n, [&](auto vectors, auto tailed, int64_t col, int tail) {
            take_columns<vectors, tailed>(b, slot * stride, col, tail);
        });
    }
    // The key does not tell which zero it was, nor which NaN was first: those are read again.
    template <class Row> void finish(int64_t slot, const Row& row, float* of, int64_t* position) const {
        const int16_t *keys = best + slot * stride, *entries = from + slot * stride;
        int again = 0;
        for (int64_t i = 0; i < n; ++i) {
            of[i] = to_acc(value(keys[i])), position[i] = uint16_t(entries[i]);
            again |= ambiguous(keys[i]);
        }
        const auto read = [&](int64_t i) { return to_acc(row(position[i])[i]); };
        for (int64_t i = 0; again && i < n; ++i) {
            if (!ambiguous(keys[i])) continue;
            if (keys[i] >= kFirstNaN)
                for (position[i] = 0; read(i) == read(i);) ++position[i];
            of[i] = read(i);
        }
    }
};

// Sums are made of kColumns columns of a range of places at a time, which fit the second-level cache: for each range all
// of arg is looked through anew. Every place has one writer, which adds in the order of rows.
template <class I, class T> void scatter_sums(const ArgScatterArgs& a) {
    using A = Acc<T>;
    constexpr int64_t kColumns = 16, kSumBytes = 512 << 10, kRanges = 16, kRowsAhead = 32, kBatch = 256;
    const int64_t range = most(kSumBytes / int64_t(kColumns * sizeof(A)), (a.out_rows + kRanges - 1) / kRanges);
    const int64_t ranges = (a.out_rows + range - 1) / range, blocks = (a.width + kColumns - 1) / kColumns;
    const T* grad = (const T*)a.grad;
#pragma omp parallel num_threads(a.threads) if (a.rows * a.width > 1 << 15)
    {
        const Scratch<A> sum(least(range, a.out_rows) * kColumns);
        int64_t from[kBatch + kColumns], to[kBatch + kColumns], found = 0;
        const auto add_found = [&] {
            for (int64_t i = 0; i < found; ++i) __builtin_prefetch(grad + from[i]);
            for (int64_t i = 0; i < found; ++i) sum[to[i]] += A(to_acc(grad[from[i]]));
            found = 0;
        };
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < blocks * ranges; ++task) {
            const int64_t c0 = task / ranges * kColumns, c = least(kColumns, a.width - c0), lo = task % ranges * range;
            const int64_t count = least(range, a.out_rows - lo);
            memset(sum, 0, count * kColumns * sizeof(A));
            for (int64_t r = 0; r < a.rows; ++r) {
                const int64_t first = r * a.width + c0;
                const I* arg = (const I*)a.arg + first;
                if (r + kRowsAhead < a.rows) prefetch(arg + kRowsAhead * a.width, c);
                for (int64_t j = 0; j < c; ++j) {
                    const int64_t place = int64_t(arg[j]) - lo;
                    to[found] = place * kColumns + j, from[found] = first + j;
                    found += uint64_t(place) < uint64_t(count);
                }
                if (found >= kBatch) add_found();
            }
            add_found();
            for (int64_t i = 0; i < count; ++i) store_row((T*)a.out + (lo + i) * a.width + c0, (const A*)sum + i * kColumns, c);
        }
    }
}

template <class I, class T> void scatter_values(const ArgScatterArgs& a) {
    const T* grad = (const T*)a.grad;
    T* out = (T*)a.out;
#pragma omp parallel for num_threads(a.threads) if (a.rows * a.width > 1 << 15)
    for (int64_t r = 0; r < a.rows; ++r) {
        const I* arg = (const I*)a.arg + r * a.width;
        for (int64_t j = 0; r + 1 < a.rows && j < a.width; ++j) __builtin_prefetch(out + int64_t(arg[a.width + j]) * a.width + j, 1);
        for (int64_t j = 0; j < a.width; ++j)
            if (arg[j] >= 0) out[int64_t(arg[j]) * a.width + j] = grad[r * a.width + j];
    }
}

void arg_scatter(const ArgScatterArgs& a) {
    with_types(a.wide, a.dtype, [&](auto* i, auto* t) {
        using I = AMPGNN_TYPE(i);
        using T = AMPGNN_TYPE(t);
        a.unique ? scatter_values<I, T>(a) : scatter_sums<I, T>(a);
    });
}

}  // namespace
