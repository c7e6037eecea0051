"""How a thread adds numbers exactly: split at two levels, in registers.

The levels hold the digits down to 85 bits below the largest number. Almost no number has lower
digits; those go to the limbs one by one. All digits of a float that is not much smaller than
the largest belong to the first level, so it is just added::

    2**top            2**(top - 42)       2**(top - 85)
      |----- first ------|----- second ------|  rest, to the limbs
      |  float: 24 digits  |

All accumulators of a thread have the same levels. From time to time their sums are added to
integers in the shared memory of the thread block.
"""

from __future__ import annotations

DIGITS = 42
"""Digits of a part: a thread block adds up to 2**20 parts as integers of 64 bits."""

COUNT_BITS = 11
"""Digits of a double beyond those of a part."""

LOWEST_TOP = {"float": -120, "double": -960}
"""Lowest first level; the second then has all digits of a float."""

VECTORS = {"float": 4, "double": 4}
"""Vectors of 16 bytes that a thread adds at a time, while it loads as many more."""

HUGE_POWER = 900
"""Numbers from this power of two on go to the limbs one by one."""

ROUND = 4
"""Levels are multiples of this, so that threads usually have the same levels."""

CUTS = r"""
template <typename Value> struct Range;
template <> struct Range<float> {
    static constexpr int LOWEST_TOP = LOWEST_TOP_FLOAT, VECTORS = VECTORS_FLOAT;
};
template <> struct Range<double> {
    static constexpr int LOWEST_TOP = LOWEST_TOP_DOUBLE, VECTORS = VECTORS_DOUBLE;
};

// Whether all numbers are zero, or of a size of which the first level holds all digits.
template <int SEVERAL>
__device__ __forceinline__ bool all_within(const Vector<float> (&read)[SEVERAL], float least,
                                           float limit) {
    unsigned int smallest = ~0u, largest = 0;
    #pragma unroll
    for (int k = 0; k < SEVERAL; ++k)
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned int bits = __float_as_uint(read[k].lane[j]) & 0x7FFFFFFF;
            largest = max(largest, bits);
            smallest = min(smallest, bits - 1);  // zero is the largest
        }
    return largest < __float_as_uint(limit) && smallest >= __float_as_uint(least) - 1;
}

// A double has more digits than a level.
template <int SEVERAL>
__device__ __forceinline__ bool all_within(const Vector<double> (&)[SEVERAL], double, double) {
    return false;
}

template <typename Value> struct Cuts {
    static constexpr int LANES = Vector<Value>::LANES, ENTRIES = THREADS * LANES;
    double first[LANES] = {}, second[LANES] = {}, big = 0.0, small = 0.0;
    Value limit = 0;  // numbers are smaller
    Value least = 0;  // of a float as large, the first level has all digits
    int high = 0, count = 0;
    Long *firsts, *seconds;  // of the block of threads
    Word* limbs;             // of the first column
    unsigned int* special;
    int columns;

    __device__ __forceinline__ int entry(int lane) const { return LANES * threadIdx.x + lane; }
    __device__ __forceinline__ Sums sums(int entry) const {
        const Long column = ((Long) blockIdx.x * ENTRIES + entry) % columns;
        return {limbs + column * LIMBS, special + column};
    }

    __device__ __forceinline__ void spill() {
        #pragma unroll
        for (int j = 0; j < LANES; ++j) {
            firsts[entry(j)] += mantissa_of(first[j], high);
            seconds[entry(j)] += mantissa_of(second[j], high - 1 - DIGITS);
            first[j] = second[j] = 0.0;
        }
        count = 0;
    }

    __device__ __forceinline__ void deposit_entry(int which) {
        deposit(sums(which), firsts[which], high - LOWEST);
        deposit(sums(which), seconds[which], high - 1 - DIGITS - LOWEST);
        firsts[which] = seconds[which] = 0;
    }

    // Levels for numbers of which some are too large for those there are.
    template <int SEVERAL> __device__ __forceinline__ void raise(Vector<Value> (&read)[SEVERAL]) {
        double largest = 0.0;
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                const double value = widened(read[k].lane[j]);
                if (fabs(value) < HUGE) {
                    largest = fmax(largest, fabs(value));
                } else {
                    deposit_number(sums(entry(j)), value);
                    read[k].lane[j] = 0;
                }
            }
        if (largest < limit) return;
        const int lower = high;
        spill();
        level(top_of(largest));
        lift(high - lower);
    }

    // What was added at levels so much lower becomes integers of the present ones; what
    // digits these have no room for go to the limbs.
    __device__ __forceinline__ void lift(int by) {
        constexpr int GAP = 1 + DIGITS;
        #pragma unroll
        for (int j = 0; j < LANES; ++j) {
            Long &first = firsts[entry(j)], &second = seconds[entry(j)];
            const bool near = by <= GAP;
            const Long kept = near ? first >> by : 0, more = near ? second >> by : 0;
            const Long left = first - (near ? kept << by : 0);
            deposit(sums(entry(j)), second - (near ? more << by : 0), high - by - GAP - LOWEST);
            if (!near) deposit(sums(entry(j)), left, high - by - LOWEST);
            first = kept;
            second = near ? more + (left << (GAP - by)) : 0;
        }
    }

    // A power of two that is larger than a number.
    static __device__ __forceinline__ int top_of(double largest) {
        int top = (int) (__double_as_longlong(largest) >> 52) - 1022;
        top += (((-top) % ROUND) + ROUND) % ROUND;
        return max(top, Range<Value>::LOWEST_TOP);
    }

    __device__ __forceinline__ void level(int top) {
        limit = (Value) ldexp(1.0, top);
        high = top - DIGITS;
        least = (Value) ldexp(1.0, high + 23);
        big = ldexp(1.5, high + 52);
        small = ldexp(1.5, high - 1 - DIGITS + 52);
    }

    // What the levels have no digits for.
    template <int SEVERAL>
    __device__ __forceinline__ void rest(const Vector<Value> (&read)[SEVERAL]) {
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                double value = widened(read[k].lane[j]);
                value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, big), -big));
                value = __dadd_rn(value, -__dadd_rn(__dadd_rn(value, small), -small));
                if (value != 0.0) deposit_number(sums(entry(j)), value);
            }
    }

    template <int SEVERAL> __device__ __forceinline__ void cut(Vector<Value> (&read)[SEVERAL]) {
        bool fits = true, whole = true;
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) fits = fits & (fabs(widened(read[k].lane[j])) < limit);
        if (!fits) raise(read);
        #pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            #pragma unroll
            for (int j = 0; j < LANES; ++j) {
                double value = widened(read[k].lane[j]);
                double part = __dadd_rn(__dadd_rn(value, big), -big);
                first[j] = __dadd_rn(first[j], part);
                value = __dadd_rn(value, -part);
                part = __dadd_rn(__dadd_rn(value, small), -small);
                second[j] = __dadd_rn(second[j], part);
                whole = whole & (value == part);
            }
        if (!whole) rest(read);
    }

    template <int SEVERAL> __device__ __forceinline__ void take(Vector<Value> (&read)[SEVERAL]) {
        if (all_within(read, least, limit)) {
            #pragma unroll
            for (int k = 0; k < SEVERAL; ++k)
                #pragma unroll
                for (int j = 0; j < LANES; ++j)
                    first[j] = __dadd_rn(first[j], widened(read[k].lane[j]));
        } else {
            cut(read);
        }
        count += SEVERAL;
        if (count > (1 << COUNT_BITS) - SEVERAL) spill();
    }
};
"""
"""Requires the code for columns and limbs, and the constants."""

CONSTANTS: dict[str, int | str] = {
    "DIGITS": DIGITS,
    "COUNT_BITS": COUNT_BITS,
    "LOWEST_TOP_FLOAT": f"({LOWEST_TOP['float']})",
    "LOWEST_TOP_DOUBLE": f"({LOWEST_TOP['double']})",
    "HUGE": f"{2.0**HUGE_POWER!r}",
    "ROUND": ROUND,
    "VECTORS_FLOAT": VECTORS["float"],
    "VECTORS_DOUBLE": VECTORS["double"],
    "NONE": "(-(1 << 20))",
}
