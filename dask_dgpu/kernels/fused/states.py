"""Reductions in CUDA C++: what a thread accumulates, how two threads' are merged, and the result.

Sums add the elements of a batch by a tree, the batches of a stretch one after the other, then the
stretches: shorter chains than NumPy's pairwise sum has. Moments are those of batches, merged by
Chan's formula ([1]_): no sum of squares, and one pass.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance:
   analysis and recommendations", The American Statistician 37 (1983).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.device_functions import TYPES, converted, literal, value_type
from dask_dgpu.kernels.fused.typed import Typed
from graph_opt.model.expression import Reduce

BYTES = 32
"""At least the size of any state."""

SOURCE = r"""
template <int N> struct Count { static constexpr int value = N; };

// Adds N values by a tree.
template <int N, class T> T tree(const T* values) {
    if constexpr (N == 1) return values[0];
    else return np_add(tree<N / 2>(values), tree<N / 2>(values + N / 2));
}
inline float share_of(float part, float all) {  // of counts, which are normal numbers
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(all));
    return part * inverse;
}
inline double share_of(double part, double all) { return part / all; }
#define WORDS(T) alignas(sizeof(T) < 4 ? 4 : sizeof(T))
template <class T> struct WORDS(T) Sum {
    T value;
    void start() { value = T{}; }
    template <int N> void take(const T (&values)[N], const Index (&)[N]) {
        value = np_add(value, tree<N>(values));
    }
    void merge(const Sum& other) { value = np_add(value, other.value); }
};
// The body of a state that takes elements one after the other; `next` is an expression of a and b.
#define FOLDED(Name, Taken, Kept, first, next)                                              \
    {                                                                                       \
        Kept value;                                                                         \
        static Kept both(Kept a, Kept b) { return next; }                                   \
        void start() { value = first; }                                                     \
        template <int N> void take(const Taken (&values)[N], const Index (&)[N]) {          \
            _Pragma("unroll")                                                               \
            for (int i = 0; i < N; ++i) value = both(value, values[i]);                     \
        }                                                                                   \
        void merge(const Name& other) { value = both(value, other.value); }                 \
    };
// The largest value of a type, or the smallest.
template <class T> T limit(bool largest) {
    if constexpr (Is<T>::real) return __int_as_float(largest ? 0x7f800000 : 0xff800000);
    else if constexpr (Same<T, bool>::value || (T) -1 > 0) return largest ? (T) -1 : (T) 0;
    else return (T) ((ULong) 1 << (8 * sizeof(T) - 1)) ^ (largest ? -1 : 0);
}
#define EXTREME(Name, function, first) \
    template <class T> struct WORDS(T) Name FOLDED(Name, T, T, first, function(a, b))
template <class T> struct WORDS(T) Product FOLDED(Product, T, T, cast<T>(1), np_multiply(a, b))
EXTREME(Maximum, np_maximum, limit<T>(false))
EXTREME(Minimum, np_minimum, limit<T>(true))
EXTREME(FMax, np_fmax, __int_as_float(0x7fc00000))
EXTREME(FMin, np_fmin, __int_as_float(0x7fc00000))
struct Any FOLDED(Any, bool, int, 0, a | b)
struct All FOLDED(All, bool, int, 1, a & b)
struct Nonzero FOLDED(Nonzero, bool, Long, 0, a + b)
// The first of the largest or smallest; the first NaN if there is one.
template <class T, bool LARGEST> struct Best {
    Index at;
    T best;
    void start() { at = -1; best = T{}; }
    static bool better(T a, T b) { return LARGEST ? a > b : a < b; }
    template <int N> void take(const T (&values)[N], const Index (&places)[N]) {
        #pragma unroll
        for (int i = 0; i < N; ++i)
            if (at < 0 || (best == best && (better(values[i], best) || values[i] != values[i]))) {
                best = values[i];
                at = places[i];
            }
    }
    void merge(const Best& other) {
        if (other.at < 0) return;
        const bool mine = best != best, theirs = other.best != other.best;
        const bool same = mine ? theirs : best == other.best;
        if (at < 0 || (same ? other.at < at : !mine && (theirs || better(other.best, best))))
            *this = other;
    }
};
// All threads subtract the same element first, so a large mean costs no digits.
template <class T> struct Moments {
    T count, mean, squares, shift;
    void start() { count = mean = squares = 0; }
    template <int N> void take(const T (&values)[N], const Index (&)[N]) {
        Moments batch;
        T shifted[N];
        #pragma unroll
        for (int i = 0; i < N; ++i) shifted[i] = values[i] - shift;
        batch.count = N;
        batch.mean = tree<N>(shifted) * (T) (1.0 / N);
        #pragma unroll
        for (int i = 0; i < N; ++i)
            shifted[i] = (shifted[i] - batch.mean) * (shifted[i] - batch.mean);
        batch.squares = tree<N>(shifted);
        merge(batch);
    }
    void merge(const Moments& other) {
        if (other.count == 0) return;
        const T all = count + other.count, share = share_of(other.count, all);
        const T apart = other.mean - mean;
        mean += apart * share;
        squares += other.squares + apart * (apart * (count * share));
        count = all;
    }
};
// A sum, and that of the rounding errors of its additions (Knuth's two-sum).
struct Compensated {
    double sum, lost;
    void start() { sum = lost = 0; }
    void add(double value) {
        const double total = sum + value, part = total - sum;
        lost += (sum - (total - part)) + (value - part);
        sum = total;
    }
    template <int N> void take(const double (&values)[N], const Index (&)[N]) {
        #pragma unroll
        for (int i = 0; i < N; ++i) add(values[i]);
    }
    void merge(const Compensated& other) { add(other.sum); lost += other.lost; }
};
struct Singles : Compensated {  // of numbers with few digits: the sums of a thread are exact
    template <int N> void take(const double (&values)[N], const Index (&)[N]) {
        #pragma unroll
        for (int i = 0; i < N; ++i) sum += values[i];
    }
};
struct Sparse : Compensated {  // of numbers that are 0, nearly all
    template <int N> void take(const double (&values)[N], const Index (&places)[N]) {
        bool any = false;
        #pragma unroll
        for (int i = 0; i < N; ++i) any |= values[i] != 0;
        if (any) Compensated::take(values, places);
    }
};
template <class T> T mean_of(T sum, double count) {
    if constexpr (Is<T>::complex)
        return {sum.re / (decltype(sum.re)) count, sum.im / (decltype(sum.re)) count};
    else return sum / (T) count;
}

template <class S> S from_lane(S mine, int distance) {
    static_assert(sizeof(S) % 4 == 0, "whole words");
    S other;
    #pragma unroll
    for (int word = 0; word < sizeof(S) / 4; ++word)
        ((int*) &other)[word] = __shfl_down_sync(~0u, ((int*) &mine)[word], distance);
    return other;
}

// Merges the states of GROUP adjacent threads; the first of them has all.
template <int GROUP, int THREADS, class S> void merge_group(S& mine, int thread) {
    #pragma unroll
    for (int distance = (GROUP < 32 ? GROUP : 32) / 2; distance; distance /= 2)
        mine.merge(from_lane(mine, distance));
    if constexpr (GROUP > 32) {
        constexpr int WARPS = THREADS / 32;
        __shared__ __align__(16) char memory[WARPS * sizeof(S)];
        S* shared = (S*) memory;
        __syncthreads();
        if (thread % 32 == 0) shared[thread / 32] = mine;
        __syncthreads();
        if (thread == 0)
            for (int warp = 1; warp < WARPS; ++warp) mine.merge(shared[warp]);
    }
}
"""


class State(NamedTuple):
    """A reduction: the C++ type of its state, the dtype that it takes, and its result.

    ``result`` has the fields ``s``, the state, and ``n``, the number of elements.
    """

    kind: str
    taken: np.dtype[Any]
    result: str
    skips: str | None = None  # what replaces a NaN
    ordered: bool = False  # whether elements are counted
    values: int = 1  # of the dtype that it takes

    @property
    def words(self) -> int:
        """About the number of registers of a state."""
        return self.values * -(-self.taken.itemsize // 4) + self.ordered

    @property
    def shifts(self) -> bool:
        """Whether the first element is subtracted from all."""
        return self.kind.startswith("Moments")


def state_of(node: Reduce, argument: Typed, found: Typed) -> State | None:
    """Return the state of a reduction, or None if there is no generated code for it."""
    options = dict(node.options)
    dtype, source = found.dtype, argument.dtype
    known = {"mean": {"dtype"}, "var": {"dtype", "ddof"}, "std": {"dtype", "ddof"}}
    allowed = known.get(node.function, {"dtype"} if node.function in SUMS else set())
    named = {dtype.name, source.name} <= TYPES.keys() and source.isnative
    if not named or {name for name, value in options.items() if value is not None} - allowed:
        return None
    complex_ = source.kind == "c" or dtype.kind == "c"
    match node.function:
        case "sum" | "nansum" | "prod" | "nanprod" if dtype.kind != "b":
            name = "Sum" if "sum" in node.function else "Product"
            nan = node.function.startswith("nan") and source.kind in "fc"
            skips = literal("sum" not in node.function, source) if nan else None
            return State(f"{name}<{value_type(dtype)}>", dtype, "{s}.value", skips)
        case "mean" if dtype.kind in "fc":
            return State(f"Sum<{value_type(dtype)}>", dtype, "mean_of({s}.value, {n})")
        case "var" | "std" if not complex_ and dtype.kind == "f":
            left = f"fmax({{n}} - {options.get('ddof') or 0}, 0.0)"
            text = f"({{s}}.squares / ({value_type(dtype)}) {left})"
            if node.function == "std":
                half = dtype.name == "float16"
                text = f"sqrt({'half_rounded' if half else ''}{text})"
            return State(f"Moments<{value_type(dtype)}>", dtype, text, values=3)
        case "min" | "max" | "nanmin" | "nanmax" if not complex_:
            kind = f"{_extreme(node.function, source)}<{value_type(source)}>"
            return State(kind, source, "{s}.value")
        case "argmin" | "argmax" if not complex_:
            largest = "true" if node.function == "argmax" else "false"
            return State(f"Best<{value_type(source)}, {largest}>", source, "{s}.at", ordered=True)
        case "any" | "all":
            return State(node.function.capitalize(), np.dtype(bool), "({s}.value != 0)")
        case "count_nonzero":
            return State("Nonzero", np.dtype(bool), "{s}.value")
        case "compensated" | "compensated_singles" | "compensated_sparse":
            kind = node.function.removeprefix("compensated_").capitalize()
            return State(kind, np.dtype("f8"), "Complex<double>{{{s}.sum, {s}.lost}}", values=2)
    return None


SUMS = ("sum", "nansum", "prod", "nanprod")


def _extreme(function: str, dtype: np.dtype[Any]) -> str:
    ignores = function.startswith("nan") and dtype.kind == "f"
    if "max" in function:
        return "FMax" if ignores else "Maximum"
    return "FMin" if ignores else "Minimum"


def taken(value: str, state: State, source: np.dtype[Any]) -> str:
    """Return what a state takes for the value of an element."""
    if state.skips is not None:
        value = f"(np_isnan({value}) ? {state.skips} : {value})"
    return converted(value, source, state.taken)


def result(state: State, name: str, count: str, dtype: np.dtype[Any]) -> str:
    """Return the value of a reduction, in its own dtype."""
    text = state.result.format(s=name, n=count)
    return f"half_rounded({text})" if dtype.name == "float16" else text
