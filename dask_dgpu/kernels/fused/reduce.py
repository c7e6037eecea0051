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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_dgpu.kernels.fused.device_functions import stored_type, value_type
from dask_dgpu.kernels.fused.kernel import THREADS, Entry, Launch
from dask_dgpu.kernels.fused.layout import Domain, written
from dask_dgpu.kernels.fused.prelude import PRELUDE
from dask_dgpu.kernels.fused.source import Code, Known
from dask_dgpu.kernels.fused.states import BYTES, SOURCE, State, limits, result, state_of, taken
from graph_opt.model.expression import Reduce

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

SIZES = ["const Index results", "const Index length"]


class Reductions:
    """Reductions in one pass over a domain: the code of an element, and what each state takes."""

    def __init__(self, domain: Domain, several: Sequence[int]) -> None:
        self.domain, self.several, self.code = domain, several, Code(domain)
        self.nodes: list[Reduce] = []
        self.states: list[State] = []
        self.values: list[str] = []
        for at in several:
            node, found = domain.nodes[at], domain.found
            state = None
            if isinstance(node, Reduce):
                state = state_of(node, found[node.argument], found[at])
            if not isinstance(node, Reduce) or state is None:
                raise TypeError(f"expected a reduction with generated code, got {node}")
            value = self.code.value(node.argument, domain.everywhere)
            self.values.append(taken(value, state, found[node.argument].dtype))
            self.nodes.append(node)
            self.states.append(state)

    @property
    def ordered(self) -> bool:
        """Whether elements are counted."""
        return any(state.ordered for state in self.states)

    @property
    def limits(self) -> set[str]:
        """C++ types of start values."""
        return {limits(node, self.domain.found[node.argument].dtype) for node in self.nodes}

    def arrays(self, size: str) -> str:
        """Return C++ of arrays for what the states take."""
        pairs = enumerate(self.states)
        return " ".join(f"{value_type(state.taken)} a{at}{size};" for at, state in pairs)

    def assigned(self, place: str) -> list[str]:
        """Return C++ that assigns the values of an element to its place in these arrays."""
        return [f"a{at}{place} = {value};" for at, value in enumerate(self.values)]

    def results(self, name: str, count: str) -> list[str]:
        """Return C++ of the values of the reductions, for states of this name."""
        return [
            result(state, f"{name}.s{place}", count, self.domain.found[at].dtype)
            for place, (at, state) in enumerate(zip(self.several, self.states, strict=True))
        ]

    def struct(self, name: str = "States") -> str:
        """Return the C++ type of all states together."""
        several = range(len(self.states))
        shifted = [at for at in several if self.states[at].shifts]
        return (
            f"struct {name} {{\n"
            + "".join(f"    {state.kind} s{at};\n" for at, state in enumerate(self.states))
            + f"    void start() {{ {' '.join(f's{at}.start();' for at in several)} }}\n"
            + f"    void merge(const {name}& other) {{ "
            + " ".join(f"s{at}.merge(other.s{at});" for at in several)
            + " }\n    void start_unshifted() { start(); "
            + " ".join(f"s{at}.shift = 0;" for at in shifted)
            + f" }}\n    void shift_by(const {name}& one) {{ "
            + " ".join(f"s{at}.shift = one.s{at}.mean;" for at in shifted)
            + " }\n};\n"
        )


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
    near, far = (sum(step == 1 for step in walk.inner) for walk in (kept, reduced))
    if near > far or (not far and kept.size >= THREADS):
        lanes = domain.lanes_along(kept, reduced, whole=True)
        return _columns(kept.size, reduced.size, lanes, weight)
    return _rows(kept.size, reduced.size, domain.lanes_along(reduced, kept, whole=False), weight)


def _rows(results: int, length: int, lanes: int, weight: int) -> Shape:
    """Return the shape for results shared by groups of threads."""
    vectors = -(-length // lanes)
    group = min(WARP, 1 << (-(-vectors // (2 if lanes > 1 else 8)) - 1).bit_length())
    if vectors >= LONG or (vectors > 2 * WARP and results < BLOCKS * THREADS // WARP):
        group = THREADS
    deep = _batch(-(-vectors // group), lanes, weight)
    blocks = -(-results * group // THREADS)
    most = min(BLOCKS // blocks, vectors // (group * deep)) if group == THREADS else 1
    cut = _cut(length, group * lanes * deep, most)
    return Shape("rows", group, lanes, deep, blocks, *cut, str(THREADS))


def _columns(results: int, length: int, lanes: int, weight: int) -> Shape:
    """Return the shape for results of neighbouring threads."""
    vectors = -(-results // lanes)
    least = WARP if length >= THREADS // WARP else THREADS >> (length - 1).bit_length()
    across = min(least, 1 << (vectors - 1).bit_length())
    down = THREADS // across
    deep = _batch(-(-length // down), lanes, weight)
    blocks = -(-vectors // across)
    resident = RESIDENT if weight <= HEAVY else RESIDENT // 2
    most = min(MULTIPROCESSORS * resident // blocks, length // (down * deep), 65535)
    cut = _cut(length, down * deep, most)
    return Shape("columns", down, lanes, deep, blocks, *cut, f"{THREADS}, {resident}")


def _batch(needed: int, lanes: int, weight: int) -> int:
    """Return a power of two of loads at a time, for so many in all."""
    most = max(1, BATCH // lanes // (2 if weight > 2 else 1))
    return min(most, 8, 1 << (max(1, needed).bit_length() - 1))


def _cut(length: int, span: int, most: int) -> tuple[int, int]:
    """Return the number of segments, and their length: some spans."""
    segments = max(1, most) if length > SHORT * span else 1
    stretch = -(-length // (segments * span)) * span
    return -(-length // stretch), stretch


def reduction(several: Sequence[int], known: Known) -> Launch:
    """Return the launch of reductions of one shape along the same axes, none of them empty."""
    domain = Domain(known, *known.domain(several[0]))
    reductions = Reductions(domain, several)
    domain.walk(reductions.ordered)
    shape = _shape_of(domain, sum(state.words for state in reductions.states))
    sizes = domain.kept.size, domain.reduced.size
    outs = [stored_type(known.found[at].dtype) for at in several]
    arrays = [*written(outs), "States* __restrict__ partials"]
    stretch = [*SIZES, "const Index stretch"], (*sizes, shape.stretch)
    grid = shape.blocks, shape.segments
    entries = [domain.entry(shape.name, arrays, *stretch, grid, bounds=shape.bounds)]
    source = _source(domain, reductions, shape, entries[0], outs)
    if shape.segments > 1:
        folding = THREADS if sizes[0] < MULTIPROCESSORS else WARP
        numbers, values = (*SIZES, "const int segments"), domain.scalars(*sizes)
        values.append(np.int32(shape.segments))
        grid = -(-sizes[0] * folding // THREADS), 1
        first = len(domain.names)
        entries.append(Entry("fold", tuple(arrays), numbers, tuple(values), grid, first=first))
        macros = {"threads": THREADS, "folding": folding, "outs": _outs(outs)}
        source += FOLD % {**macros, "signature": entries[1].signature}
    return Launch(
        source,
        tuple(entries),
        domain.read(),
        tuple(map(domain.output, several)),
        shape.segments * sizes[0] * BYTES * len(several) if len(entries) > 1 else 0,
    )


def _outs(outs: Sequence[str]) -> str:
    return "".join(f"out{at}, " for at in range(len(outs)))


def _source(
    domain: Domain, reductions: Reductions, shape: Shape, entry: Entry, outs: Sequence[str]
) -> str:
    """Return the source of the first launch."""
    operands = list(zip(domain.names, domain.kinds, strict=True))
    rows, several = shape.name == "rows", range(len(outs))
    results = reductions.results("all", "n")
    return SOURCES % {
        "index": domain.index,
        "prelude": PRELUDE + SOURCE + "".join(sorted(reductions.limits)) + reductions.struct(),
        "parameters": "".join(f"{kind}* __restrict__ out{at}, " for at, kind in enumerate(outs)),
        "writes": "\n    ".join(
            f"out{at}[kept] = stored<{outs[at]}>({results[at]});" for at in several
        ),
        "place": ROWS if rows else COLUMNS,
        "results": "constexpr int r = 0;" if rows else EACH_RESULT,
        "merge": MERGE_ROWS if rows else MERGE_COLUMNS,
        "name": entry.name,
        "bounds": entry.bounds,
        "signature": entry.signature,
        "threads": THREADS,
        "group": shape.group,
        "each": 1 if rows else shape.lanes,
        "lanes": shape.lanes,
        "deep": shape.deep,
        "batches": STRETCH,
        "split_kept": domain.kept.split("where_kept"),
        "split_reduced": domain.reduced.split("where"),
        "bases": domain.bases(),
        "vectors": " ".join(f"Vector<{kind}, L> g_{name}[U];" for name, kind in operands),
        "lanes_of_u": " ".join(
            f"const Vector<{kind}, L>& {name} = g_{name}[u];" for name, kind in operands
        ),
        "loads": "\n            ".join(
            domain.loads(at, f"g_{name}[u]", domain.reduced if rows else domain.kept)
            for at, name in enumerate(domain.names)
        ),
        "code": "\n                ".join(reductions.code.lines),
        "arrays": reductions.arrays("[R][N]"),
        "values": "\n".join(reductions.assigned("[j % R][e]")),
        "seed": SEED if any(state.shifts for state in reductions.states) else "",
        "take": " ".join(f"into[r].s{at}.take(a{at}[r], places);" for at in several),
        "outs": _outs(outs),
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

SOURCES = r"""typedef %(index)s Index;
%(prelude)s
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
    %(results)s {
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
