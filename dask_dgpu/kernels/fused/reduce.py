"""Kernels for reductions with the elementwise work before them; several results in one pass.

The axes of the domain are kept or reduced. If neighbours in memory belong to one result, groups of
threads share a result (``rows``); if they belong to several, each thread has as many accumulators
as a vector has lanes (``columns``)::

    rows       0 0 0 0 1 1 1 1 ...     vectors of a row, by thread; a group adds its threads' sums
    columns    0 0 0 0 1 1 1 1 ...     thread 0 owns the first four columns, and so on down
               0 0 0 0 1 1 1 1 ...

If there are fewer results than threads that keep a device busy, several thread blocks (segments)
share each, and a second launch merges their states in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dask_dgpu.kernels.fused.device_functions import value_type
from dask_dgpu.kernels.fused.kernel import THREADS, Entry, Launch
from dask_dgpu.kernels.fused.layout import Domain, written
from dask_dgpu.kernels.fused.source import Code, Known
from dask_dgpu.kernels.fused.states import BYTES, State, result, taken
from dask_dgpu.kernels.fused.states import SOURCE as STATES_SOURCE

MULTIPROCESSORS = 132
"""Of an H100 or H200; other devices are as busy with twice as many or half."""

BLOCKS = 8 * MULTIPROCESSORS
"""Thread blocks along rows."""

RESIDENT = 4
"""Thread blocks along columns that a multiprocessor holds at a time; all start at once."""

HEAVY = 4
"""Words of states for each element that leave registers for so many thread blocks."""

WARP = 32
LONG = 1024
"""Vectors of a row from which on a whole thread block reads it."""

BATCH = 32
"""Most elements that a thread loads at a time."""

SHORT = 4
"""Batches of one thread block that take less time than a second launch."""

STRETCH = 16
"""Batches that are accumulated before they are merged with those before."""


class Reductions:
    """Reductions in one pass over a domain: the code of an element, and what each state takes."""

    def __init__(self, domain: Domain, several: Sequence[int]) -> None:
        self.several, self.code, types = several, Code(domain), domain.node_types
        self.dtypes = [types[at].dtype for at in several]
        self.states: list[State] = []
        self.values: list[str] = []
        for node, state in (domain.reductions[at] for at in several):
            dtype = types[node.argument].dtype
            value = self.code.value(node.argument, domain.everywhere)
            self.values.append(taken(value, state, dtype))
            self.states.append(state)

    @property
    def ordered(self) -> bool:
        """Whether elements are counted."""
        return any(state.ordered for state in self.states)

    @property
    def shifts(self) -> list[int]:
        """The places of states that subtract the first element from all."""
        return [i for i, state in enumerate(self.states) if state.shifts]

    def results(self, name: str, count: str) -> list[str]:
        """Return C++ of the values of the reductions, for states of this name."""
        return [
            result(state, f"{name}.s{i}", count, dtype)
            for i, (state, dtype) in enumerate(zip(self.states, self.dtypes, strict=True))
        ]

    def macros(self, size: str, place: str, take: str) -> dict[str, str]:
        """Return C++ that computes an element, and has the states take arrays of this size."""
        kinds = [value_type(state.taken) for state in self.states]
        return {
            "code": "\n                ".join(self.code.lines),
            "arrays": " ".join(f"{kind} a{i}{size};" for i, kind in enumerate(kinds)),
            "values": " ".join(f"a{i}{place} = {x};" for i, x in enumerate(self.values)),
            "take": " ".join(take.format(at=i) for i in range(len(kinds))),
        }

    def struct(self, name: str = "States") -> str:
        """Return the C++ type of all states together."""

        def each(text: str, places: Sequence[int] = range(len(self.states))) -> str:
            return " ".join(text.format(at=at) for at in places)

        fields = " ".join(f"{state.kind} s{i};" for i, state in enumerate(self.states))
        return STATES % {
            "name": name,
            "fields": fields,
            "start": each("s{at}.start();"),
            "merge": each("s{at}.merge(other.s{at});"),
            "unshifted": each("s{at}.shift = 0;", self.shifts),
            "shift": each("s{at}.shift = one.s{at}.mean;", self.shifts),
        }


STATES = """
struct %(name)s {
    %(fields)s
    void start() { %(start)s }
    void merge(const %(name)s& other) { %(merge)s }
    void start_unshifted() { start(); %(unshifted)s }
    void shift_by(const %(name)s& one) { %(shift)s }
};
"""


class Shape(NamedTuple):
    """Which threads reduce what."""

    name: str  # rows or columns
    group: int  # threads that share a result
    lanes: int
    deep: int  # vectors that a thread loads at a time
    blocks: int
    segments: int
    stretch: int  # elements of a segment
    bounds: str


def _shape_of(domain: Domain, weight: int) -> Shape:
    """Return rows or columns; ``weight`` are words of states."""
    kept, reduced = domain.kept, domain.reduced
    results, length = kept.size, reduced.size
    near, far = (sum(step == 1 for step in walk.inner) for walk in (kept, reduced))
    rows = near <= far and (far > 0 or results < THREADS)
    if rows:
        lanes = span = domain.lanes_along(reduced, kept, whole=False)
        vectors = -(-length // lanes)
        group = min(WARP, 1 << (-(-vectors // (2 if lanes > 1 else 8)) - 1).bit_length())
        if vectors >= LONG or (vectors > 2 * WARP and results < BLOCKS * THREADS // WARP):
            group = THREADS
        blocks = -(-results * group // THREADS)
        most, bounds = BLOCKS if group == THREADS else blocks, str(THREADS)
    else:
        lanes, span, vectors = domain.lanes_along(kept, reduced, whole=True), 1, length
        least = WARP if length >= THREADS // WARP else THREADS >> (length - 1).bit_length()
        across = min(least, 1 << (-(-results // lanes) - 1).bit_length())
        group = THREADS // across
        blocks = -(-results // (lanes * across))
        resident = RESIDENT if weight <= HEAVY else RESIDENT // 2
        most, bounds = MULTIPROCESSORS * resident, f"{THREADS}, {resident}"
    deep = _batch(-(-vectors // group), lanes, weight)
    span *= group * deep
    segments = 1
    if length > SHORT * span:
        segments = max(1, min(most // blocks, vectors // (group * deep)))
    stretch = -(-length // (segments * span)) * span
    name, segments = "rows" if rows else "columns", -(-length // stretch)
    return Shape(name, group, lanes, deep, blocks, segments, stretch, bounds)


def _batch(needed: int, lanes: int, weight: int) -> int:
    """Return a power of two of loads at a time, for so many in all."""
    most = max(1, BATCH // lanes // (2 if weight > 2 else 1))
    return min(most, 8, 1 << (max(1, needed).bit_length() - 1))


def reduction(several: Sequence[int], known: Known) -> Launch:
    """Return the launch of reductions of one shape along the same axes, none of them empty."""
    domain = Domain(known, *known.domain(several[0]))
    reductions = Reductions(domain, several)
    domain.walk(reductions.ordered)
    shape = _shape_of(domain, sum(state.words for state in reductions.states))
    kinds, sizes = domain.kinds(several), domain.sizes
    arrays = [*written(kinds), "States* __restrict__ partials"]
    grid, more = (shape.blocks, shape.segments), {"stretch": shape.stretch}
    entry = domain.entry(shape.name, arrays, sizes | more, grid, bounds=shape.bounds)
    macros = {**domain.macros(entry), "outs": "".join(f"out{i}, " for i in range(len(kinds)))}
    source = _source(domain, reductions, shape, kinds, macros)
    outputs = [domain.output(at, whole=False) for at in several]
    if shape.segments == 1:
        return domain.launch(source, [entry], outputs, 0)
    folding = THREADS if domain.kept.size < MULTIPROCESSORS else WARP
    grid = -(-domain.kept.size * folding // THREADS), 1
    numbers = domain.scalars(sizes | {"segments": shape.segments})
    fold = Entry("fold", tuple(arrays), numbers, grid, first=len(domain.read))
    source += FOLD % {**macros, "folding": folding, "signature": fold.signature}
    workspace = shape.segments * domain.kept.size * BYTES * len(several)
    return domain.launch(source, [entry, fold], outputs, workspace)


def _source(
    domain: Domain,
    reductions: Reductions,
    shape: Shape,
    kinds: Sequence[str],
    macros: Mapping[str, Any],
) -> str:
    """Return the source of the first launch."""
    rows, results = shape.name == "rows", reductions.results("all", "n")
    along = domain.reduced if rows else domain.kept
    return SOURCES % {
        **macros,
        **reductions.macros("[R][N]", "[j % R][e]", "into[r].s{at}.take(a{at}[r], places);"),
        "states": STATES_SOURCE + reductions.struct(),
        "parameters": "".join(f"{kind}* __restrict__ out{i}, " for i, kind in enumerate(kinds)),
        "writes": " ".join(
            f"out{i}[kept] = stored<{kind}>({results[i]});" for i, kind in enumerate(kinds)
        ),
        "place": ROWS if rows else COLUMNS,
        "merge": MERGE_ROWS if rows else MERGE_COLUMNS,
        "each_result": "constexpr int r = 0;" if rows else EACH_RESULT,
        "group": shape.group,
        "each": 1 if rows else shape.lanes,
        "lanes": shape.lanes,
        "deep": shape.deep,
        "batches": STRETCH,
        "vectors": " ".join(f"Vector<{x.kind}, L> g_{x.name}[U];" for x in domain.read),
        "lanes_of_u": " ".join(
            f"const Vector<{x.kind}, L>& {x.name} = g_{x.name}[u];" for x in domain.read
        ),
        "loads": "\n            ".join(
            domain.load(x, f"g_{x.name}[u]", along) for x in domain.read
        ),
        "seed": SEED if reductions.shifts else "",
    }


ROWS = """const int lane = threadIdx.x % GROUP;
    const Index kept = ((Index) blockIdx.x * THREADS + threadIdx.x) / GROUP;"""

COLUMNS = """constexpr int ACROSS = THREADS / GROUP;
    const int lane = threadIdx.x / ACROSS;
    const Index kept = ((Index) blockIdx.x * ACROSS + threadIdx.x % ACROSS) * R;"""

EACH_RESULT = """#pragma unroll
    for (int r = 0; r < R; ++r)"""

MERGE_ROWS = "merge_group<GROUP, THREADS>(all[r], lane);"

MERGE_COLUMNS = """__shared__ __align__(16) char memory[THREADS * sizeof(States)];
        States* shared = (States*) memory;
        __syncthreads();
        shared[threadIdx.x] = all[r];
        #pragma unroll 1
        for (int half = GROUP / 2; half; half /= 2) {
            __syncthreads();
            if (lane < half) {
                all[r].merge(shared[threadIdx.x + half * ACROSS]);
                shared[threadIdx.x] = all[r];
            }
        }"""

SEED = """States first[R];
        #pragma unroll
        for (int r = 0; r < R; ++r) first[r].start_unshifted();
        take(Count<1>{}, Count<R>{}, first, 0);
        #pragma unroll
        for (int r = 0; r < R; ++r) { all[r].shift_by(first[r]); some[r].shift_by(first[r]); }"""

SOURCES = r"""
%(states)s
inline void write(const States& all, const Index kept, const double n, %(parameters)sint) {
    %(writes)s
}

KERNEL(%(bounds)s)
%(name)s(%(signature)s) {
    // R results of a thread, of each W of the neighbours that it loads
    constexpr int THREADS = %(threads)d, GROUP = %(group)d, R = %(each)d, W = %(lanes)d / R;
    %(place)s
    const Index where_kept = kept < results ? kept : 0;
    %(split_kept)s
    %(bases)s
    auto take = [&](auto loads_, auto lanes_, States (&into)[R], const Index first) {
        constexpr int U = decltype(loads_)::value, L = decltype(lanes_)::value, N = U * L / R;
        %(vectors)s
        %(arrays)s
        Index places[N];
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            const Index where = first + u * GROUP * (L / R);
            %(split_reduced)s
            %(loads)s
        }
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            %(lanes_of_u)s
            #pragma unroll
            for (int j = 0; j < L; ++j) {
                const int e = u * (L / R) + j / R;
                places[e] = first + u * GROUP * (L / R) + j / R;
                %(code)s
                %(values)s
            }
        }
        #pragma unroll
        for (int r = 0; r < R; ++r) { %(take)s }
    };
    States all[R], some[R];
    #pragma unroll
    for (int r = 0; r < R; ++r) { all[r].start(); some[r].start(); }
    if (kept < results) {
        %(seed)s
        const Index begin = (Index) blockIdx.y * stretch;
        const Index end = length - begin < stretch ? length : begin + stretch;
        constexpr Index STEP = GROUP * W;
        Index at = begin + lane * W;
        int batches = 0;
        for (; at + (%(deep)d - 1) * STEP + W <= end; at += %(deep)d * STEP) {
            take(Count<%(deep)d>{}, Count<%(lanes)d>{}, some, at);
            if (++batches == %(batches)d) {
                #pragma unroll
                for (int r = 0; r < R; ++r) { all[r].merge(some[r]); some[r].start(); }
                batches = 0;
            }
        }
        for (; at + W <= end; at += STEP) take(Count<1>{}, Count<%(lanes)d>{}, some, at);
        if (W > 1)
            for (; at < end; ++at) take(Count<1>{}, Count<R>{}, some, at);
        #pragma unroll
        for (int r = 0; r < R; ++r) all[r].merge(some[r]);
    }
    %(each_result)s {
        %(merge)s
        if (kept < results && lane == 0) {
            if (gridDim.y > 1) partials[(Long) blockIdx.y * results + kept + r] = all[r];
            else write(all[r], kept + r, length, %(outs)s0);
        }
    }
}
"""

FOLD = r"""
KERNEL(%(threads)d)
fold(%(signature)s) {
    const Index kept = ((Index) blockIdx.x * %(threads)d + threadIdx.x) / %(folding)d;
    const int lane = threadIdx.x %% %(folding)d;
    States mine;
    mine.start();
    if (kept < results)
        for (int segment = lane; segment < segments; segment += %(folding)d)
            mine.merge(partials[(Long) segment * results + kept]);
    merge_group<%(folding)d, %(threads)d>(mine, lane);
    if (kept < results && lane == 0) write(mine, kept, length, %(outs)s0);
}
"""
