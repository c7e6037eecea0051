"""Kernels for rows on chip: read once, reduced as often as needed, written once.

A row lies in the registers of a warp, of part of one, or of a thread block. Each pass of the
expression reduces it, and all its threads have the result::

    softmax    load -> max -> sum of exp(x - max) -> exp(x - max) / sum -> store
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_dgpu.kernels.fused.device_functions import value_type
from dask_dgpu.kernels.fused.kernel import THREADS, Launch
from dask_dgpu.kernels.fused.layout import Domain, stores, written
from dask_dgpu.kernels.fused.reduce import WARP, Reductions
from dask_dgpu.kernels.fused.source import Axes, Code, Known, Misplaced, Operand
from dask_dgpu.kernels.fused.states import SOURCE as STATES

MOST_THREADS = 1024
MOST_ITEMS = 16
"""Most vectors of a thread."""

REGISTERS = 64
"""Most words of a thread for what it has read."""

FEW_ROWS, SMALL = 128, 1 << 20
"""Fewer long rows do not keep a device busy with one thread block each."""


def on_chip(results: Sequence[int], passes: Sequence[Sequence[int]], known: Known) -> Launch | None:
    """Return one launch for results of several passes, or None if rows do not suit it.

    ``passes`` are the reductions of each, all with generated code.
    """
    domains = {known.domain(at) for several in passes for at in several}
    if len(domains) != 1:
        return None
    try:
        return _Rows(known, *domains.pop(), results, passes).kernel()
    except Misplaced:
        return None


class _Rows(Domain):
    """What is computed of rows, how they lie in memory, and which threads have them."""

    def __init__(
        self,
        known: Known,
        shape: tuple[int, ...],
        axes: frozenset[int],
        results: Sequence[int],
        passes: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(known, shape, axes)
        self.results = results
        self.passes = [self._pass(number, several) for number, several in enumerate(passes)]
        self.full, self.rows = Code(self), Code(self)
        # places of results with an element for each of the domain, and for each row
        self.wholes = {i: self.node_types[node].shape == shape for i, node in enumerate(results)}
        self.values = [
            self.full.value(node, self.everywhere)
            if self.wholes[i]
            else self.rows.value(node, self._row_axes(self.node_types[node].shape))
            for i, node in enumerate(results)
        ]
        self._arrange()

    def _pass(self, number: int, several: Sequence[int]) -> Reductions:
        reductions = Reductions(self, several)
        for place, at in enumerate(several):
            self.given[at] = f"x{number}_{place}", self._row_axes(self.node_types[at].shape)
        return reductions

    def _row_axes(self, shape: tuple[int, ...]) -> Axes:
        """Return how an array of one element a row lies in the domain."""
        kept = tuple(None if axis in self.inner else at for axis, at in enumerate(self.everywhere))
        axes = tuple(at for axis, at in enumerate(kept) if axis not in self.inner)
        for each in (axes, kept):
            if shape == tuple(1 if axis is None else self.shape[axis] for axis in each):
                return each
        raise Misplaced

    def _arrange(self) -> None:
        """Choose the walks, the vectors and the threads of a row."""
        self.walk(any(reductions.ordered for reductions in self.passes))
        kept, reduced = self.kept, self.reduced
        if sum(step == 1 for step in kept.inner) > sum(step == 1 for step in reduced.inner):
            raise Misplaced
        self.lanes = self.lanes_along(reduced, kept, whole=True, results=self.results)
        vectors = -(-reduced.size // self.lanes)
        self.group = min(MOST_THREADS, 1 << (-(-vectors // 4) - 1).bit_length())
        if vectors <= 4 * WARP:
            self.group = min(WARP, 1 << (vectors - 1).bit_length())
        self.items = -(-vectors // self.group)
        words = sum(max(1, x.array.dtype.itemsize // 4) for x in self.read if self._keeps(x))
        idle = kept.size < FEW_ROWS and kept.size * reduced.size > SMALL
        if words * self.items * self.lanes > REGISTERS or self.items > MOST_ITEMS or idle:
            raise Misplaced

    def _keeps(self, operand: Operand) -> bool:
        """Whether threads keep their part of an operand; what all rows share is read again."""
        alone = not self.kept.lengths
        return alone or any(self.kept.strides[operand.at]) or not self._varies(operand)

    def _varies(self, operand: Operand) -> bool:
        return any(self.reduced.strides[operand.at])

    def kernel(self) -> Launch:
        """Return the launch."""
        kinds = self.kinds(self.results)
        threads = THREADS if self.group <= WARP else self.group
        grid = -(-self.kept.size * self.group // threads), 1
        options = {"threads": threads, "bounds": str(threads)}
        entry = self.entry("on_chip", written(kinds), self.sizes, grid, **options)
        states = [each.struct(f"States{number}") for number, each in enumerate(self.passes)]
        kept = [operand for operand in self.read if self._keeps(operand)]
        loads = {x: self.load(x, f"g_{x.name}[{self._item(x)}]", self.reduced) for x in kept}
        whole = self.group * self.items * self.lanes == self.reduced.size
        row_results = [
            f"out{i}[kept] = stored<{kinds[i]}>({value});"
            for i, value in enumerate(self.values)
            if not self.wholes[i]
        ]
        source = SOURCE % {
            **self.macros(entry),
            "declared": " ".join(
                f"Vector<{x.kind}, L> g_{x.name}[{'U' if self._varies(x) else 1}];" for x in kept
            ),
            "once": " ".join(load for x, load in loads.items() if not self._varies(x)),
            "each": " ".join(load for x, load in loads.items() if self._varies(x)),
            "phases": "".join(self._phase(*each) for each in enumerate(self.passes)),
            "final": self._final(kinds),
            "row_operands": self._named(self.rows, "0"),
            "row_code": " ".join([*self.rows.lines, *row_results]),
            "group": self.group,
            "lanes": self.lanes,
            "items": self.items,
            "exact": int(whole and self.items & (self.items - 1) == 0),
        }
        source = STATES + "".join(states) + SHARE + source
        outputs = [self.output(node, self.wholes[i]) for i, node in enumerate(self.results)]
        return self.launch(source, [entry], outputs)

    def _item(self, operand: Operand, item: str = "u") -> str:
        """Return C++ of which of a thread's vectors of an operand it means."""
        return item if self._varies(operand) else "0"

    def _phase(self, number: int, reductions: Reductions) -> str:
        """Return C++ that reduces the rows, and gives all their threads the results."""
        variables = [self.given[at][0] for at in reductions.several]
        pairs = list(zip(reductions.dtypes, variables, strict=True))
        values = reductions.results("all", "((double) length)")
        return PHASE % {
            **reductions.macros("[N]", "[e]", "all.s{at}.take(a{at}, places);"),
            "number": number,
            "operands": self._named(reductions.code, "u"),
            "seed": _seed(number, reductions),
            "declared": " ".join(f"{value_type(dtype)} {name};" for dtype, name in pairs),
            "results": " ".join(
                f"{name} = {value};" for name, value in zip(variables, values, strict=True)
            ),
        }

    def _final(self, kinds: Sequence[str]) -> str:
        """Return C++ that writes the results of all elements, if there are any."""
        full = [(i, kinds[i], x) for i, x in enumerate(self.values) if self.wholes[i]]
        macros = stores(full, "kept * length + where")
        macros |= {
            "operands": self._named(self.full, "u"),
            "code": "\n            ".join(self.full.lines),
        }
        return RESULT % macros if full else ""

    def _named(self, code: Code, item: str) -> str:
        """Return C++ that names the lanes of the operands of some code."""
        lines = []
        for x in self.read:
            kind = f"Vector<{x.kind}, L>"
            if x.name not in code.used:
                continue
            if self._keeps(x):
                lines.append(f"const {kind}& {x.name} = g_{x.name}[{self._item(x, item)}];")
            else:
                guard, split = "if (EXACT || where < length)", self.reduced.split("where")
                load = self.load(x, x.name, self.reduced)
                lines.append(f"{kind} {x.name}; {guard} {{ {split} {load} }}")
        return "\n            ".join(lines)


def _seed(number: int, reductions: Reductions) -> str:
    """Return C++ that has all threads of a row subtract its first element, where states do."""
    takes = " ".join(
        f"{{ const {value_type(reductions.states[at].taken)} x[1] = {{a{at}[0]}}; "
        f"first.s{at}.take(x, place); }}"
        for at in reductions.shifts
    )
    if not takes:
        return ""
    return (
        f"States{number} first; const Index place[1] = {{0}}; first.start_unshifted(); {takes} "
        "share_group<GROUP>(first); all.shift_by(first);"
    )


SHARE = r"""
// Gives all threads of a group what its first thread has.
template <int GROUP, class S> void share_group(S& mine) {
    if constexpr (GROUP <= 32) {
        #pragma unroll
        for (int word = 0; word < sizeof(S) / 4; ++word)
            ((int*) &mine)[word] = __shfl_sync(~0u, ((int*) &mine)[word], 0, GROUP);
    } else {
        __shared__ __align__(16) char memory[sizeof(S)];
        __syncthreads();
        if (threadIdx.x == 0) *(S*) memory = mine;
        __syncthreads();
        mine = *(S*) memory;
    }
}
"""

SOURCE = r"""
KERNEL(%(bounds)s)
%(name)s(%(signature)s) {
    constexpr int L = %(lanes)d, U = %(items)d, GROUP = %(group)d, THREADS = %(threads)d;
    constexpr bool EXACT = %(exact)d;
    const int lane = threadIdx.x %% GROUP;
    const Index kept = ((Index) blockIdx.x * THREADS + threadIdx.x) / GROUP;
    const Index where_kept = kept < results ? kept : 0;
    %(split_kept)s
    %(bases)s
    %(declared)s
    %(once)s
    #pragma unroll
    for (int u = 0; u < U; ++u) {
        const Index where = (lane + u * GROUP) * L;
        if (EXACT || where < length) {
            %(split_reduced)s
            %(each)s
        }
    }
    %(phases)s
    if (kept >= results) return;
    %(final)s
    if (lane == 0) {
        constexpr int j = 0;
        %(row_operands)s
        %(row_code)s
    }
}
"""

PHASE = r"""
    %(declared)s
    {
        constexpr int N = EXACT ? L * U : L;  // elements of a batch
        States%(number)d all;
        all.start();
        %(arrays)s
        Index places[N];
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            const Index where = (lane + u * GROUP) * L;
            %(operands)s
            #pragma unroll
            for (int j = 0; j < L; ++j) {
                const int e = (EXACT ? u * L : 0) + j;
                places[e] = where + j;
                %(code)s
                %(values)s
            }
            if (u == 0) { %(seed)s }
            if (!EXACT && where < length) { %(take)s }
        }
        if (EXACT) { %(take)s }
        merge_group<GROUP, THREADS>(all, lane);
        share_group<GROUP>(all);
        %(results)s
    }
"""

RESULT = r"""
    #pragma unroll
    for (int u = 0; u < U; ++u) {
        const Index where = (lane + u * GROUP) * L;
        %(operands)s
        %(results)s
        #pragma unroll
        for (int j = 0; j < L; ++j) {
            %(code)s
            %(values)s
        }
        if (EXACT || where < length) { %(stores)s }
    }
"""
