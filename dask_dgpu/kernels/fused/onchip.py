"""Kernels for rows on chip: read once, reduced as often as needed, written once.

A row lies in the registers of a warp, of part of one, or of a thread block. Each pass of the
expression reduces it, and all its threads have the result::

    softmax    load -> max -> sum of exp(x - max) -> exp(x - max) / sum -> store
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_dgpu.kernels.fused.device_functions import stored_type, value_type
from dask_dgpu.kernels.fused.kernel import THREADS, Launch
from dask_dgpu.kernels.fused.layout import Domain, written
from dask_dgpu.kernels.fused.prelude import PRELUDE
from dask_dgpu.kernels.fused.reduce import SIZES, WARP, Reductions
from dask_dgpu.kernels.fused.source import Axes, Code, Known, Misplaced
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
        return _Rows(known, *domains.pop(), results, passes).launch()
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
        self.values = [self._value(at) for at in results]
        self._arrange()

    def _pass(self, number: int, several: Sequence[int]) -> Reductions:
        reductions = Reductions(self, several)
        for place, at in enumerate(several):
            self.given[at] = f"x{number}_{place}", self._row_axes(self.found[at].shape)
        return reductions

    def _row_axes(self, shape: tuple[int, ...]) -> Axes:
        """Return how an array of one element a row lies in the domain."""
        kept = [axis for axis in range(len(self.shape)) if axis not in self.inner]
        if shape == tuple(self.shape[axis] for axis in kept):
            return tuple(axis if self.shape[axis] != 1 else None for axis in kept)
        if shape == tuple(1 if axis in self.inner else n for axis, n in enumerate(self.shape)):
            return tuple(None if n == 1 else axis for axis, n in enumerate(shape))
        raise Misplaced

    def _value(self, at: int) -> tuple[bool, str]:
        """Return whether a result has an element for each of the domain, and its value."""
        shape = self.found[at].shape
        if shape == self.shape:
            return True, self.full.value(at, self.everywhere)
        return False, self.rows.value(at, self._row_axes(shape))

    def _arrange(self) -> None:
        """Choose the walks, the vectors and the threads of a row."""
        self.walk(any(reductions.ordered for reductions in self.passes))
        kept, reduced = self.kept, self.reduced
        if sum(step == 1 for step in kept.inner) > sum(step == 1 for step in reduced.inner):
            raise Misplaced
        sizes = [self.found[at].dtype.itemsize for at in self.results]
        self.lanes = self.lanes_along(reduced, kept, whole=True, results=sizes)
        vectors = -(-reduced.size // self.lanes)
        self.group = min(MOST_THREADS, 1 << (-(-vectors // 4) - 1).bit_length())
        if vectors <= 4 * WARP:
            self.group = min(WARP, 1 << (vectors - 1).bit_length())
        self.items = -(-vectors // self.group)
        self.threads = THREADS if self.group <= WARP else self.group
        whole = self.group * self.items * self.lanes == reduced.size
        self.exact = int(whole and self.items & (self.items - 1) == 0)
        words = sum(
            max(1, array.dtype.itemsize // 4)
            for at, array in enumerate(self.described)
            if self._keeps(at)
        )
        idle = kept.size < FEW_ROWS and kept.size * reduced.size > SMALL
        if words * self.items * self.lanes > REGISTERS or self.items > MOST_ITEMS or idle:
            raise Misplaced

    def _keeps(self, at: int) -> bool:
        """Whether threads keep their part of an operand; what all rows share is read again."""
        alone = not self.kept.lengths
        return alone or any(self.kept.strides[at]) or not self._varies(at)

    def _varies(self, at: int) -> bool:
        return any(self.reduced.strides[at])

    def launch(self) -> Launch:
        """Return the launch."""
        kinds = [stored_type(self.found[at].dtype) for at in self.results]
        sizes = self.kept.size, self.reduced.size
        grid = -(-self.kept.size * self.group // self.threads), 1
        threads = {"threads": self.threads, "bounds": str(self.threads)}
        entry = self.entry("on_chip", written(kinds), SIZES, sizes, grid, **threads)
        limits = set[str]().union(*(reductions.limits for reductions in self.passes))
        states = [each.struct(f"States{number}") for number, each in enumerate(self.passes)]
        prelude = PRELUDE + STATES + "".join(sorted(limits)) + "".join(states) + SHARE
        outputs = [
            self.output(at, self.inner if whole else ())
            for at, (whole, _) in zip(self.results, self.values, strict=True)
        ]
        return Launch(
            f"typedef {self.index} Index;\n{prelude}{self._source(entry.signature, kinds)}",
            (entry,),
            self.read(),
            tuple(outputs),
        )

    def _source(self, signature: str, kinds: Sequence[str]) -> str:
        kept = [at for at in range(len(self.names)) if self._keeps(at)]
        names, along = self.names, self.reduced
        once = [self.loads(at, f"g_{names[at]}[0]", along) for at in kept if not self._varies(at)]
        each = [self.loads(at, f"g_{names[at]}[u]", along) for at in kept if self._varies(at)]
        rows = [(at, value) for at, (whole, value) in enumerate(self.values) if not whole]
        return SOURCE % {
            "signature": signature,
            "split_kept": self.kept.split("where_kept"),
            "split_reduced": self.reduced.split("where"),
            "bases": self.bases(),
            "declared": " ".join(
                f"Vector<{self.kinds[at]}, L> g_{names[at]}[{'U' if self._varies(at) else 1}];"
                for at in kept
            ),
            "once": " ".join(once),
            "each": "\n            ".join(each),
            "phases": "".join(self._phase(*each) for each in enumerate(self.passes)),
            "final": self._final(kinds),
            "row_operands": self._named(self.rows, "0"),
            "row_code": " ".join(self.rows.lines),
            "row_results": " ".join(
                f"out{at}[kept] = stored<{kinds[at]}>({value});" for at, value in rows
            ),
            "group": self.group,
            "threads": self.threads,
            "lanes": self.lanes,
            "items": self.items,
            "exact": self.exact,
        }

    def _phase(self, number: int, reductions: Reductions) -> str:
        """Return C++ that reduces the rows, and gives all their threads the results."""
        variables = [self.given[at][0] for at in reductions.several]
        dtypes = [self.found[at].dtype for at in reductions.several]
        values = reductions.results("all", "((double) length)")
        return PHASE % {
            "number": number,
            "code": "\n                ".join(reductions.code.lines),
            "arrays": reductions.arrays("[N]"),
            "values": " ".join(reductions.assigned("[e]")),
            "take": " ".join(f"all.s{at}.take(a{at}, places);" for at in range(len(values))),
            "operands": self._named(reductions.code, "u"),
            "seed": _seed(number, reductions),
            "declared": " ".join(
                f"{value_type(dtype)} {name};"
                for dtype, name in zip(dtypes, variables, strict=True)
            ),
            "results": " ".join(
                f"{name} = {value};" for name, value in zip(variables, values, strict=True)
            ),
        }

    def _final(self, kinds: Sequence[str]) -> str:
        """Return C++ that writes the results of all elements, if there are any."""
        full = [(at, value) for at, (whole, value) in enumerate(self.values) if whole]
        if not full:
            return ""
        return RESULT % {
            "operands": self._named(self.full, "u"),
            "code": "\n                ".join(self.full.lines),
            "results": " ".join(f"Vector<{kinds[at]}, L> o{at};" for at, _ in full),
            "values": " ".join(
                f"o{at}.lane[j] = stored<{kinds[at]}>({value});" for at, value in full
            ),
            "stores": " ".join(
                f"*(Vector<{kinds[at]}, L>*) (out{at} + kept * length + where) = o{at};"
                for at, _ in full
            ),
        }

    def _named(self, code: Code, item: str) -> str:
        """Return C++ that names the lanes of the operands of some code."""
        lines = []
        for at, name in enumerate(self.names):
            kind = f"Vector<{self.kinds[at]}, L>"
            if name not in code.used:
                continue
            if self._keeps(at):
                which = item if self._varies(at) else "0"
                lines.append(f"const {kind}& {name} = g_{name}[{which}];")
            else:
                guard, split = "if (EXACT || where < length)", self.reduced.split("where")
                load = self.loads(at, name, self.reduced)
                lines.append(f"{kind} {name}; {guard} {{ {split} {load} }}")
        return "\n            ".join(lines)


def _seed(number: int, reductions: Reductions) -> str:
    """Return C++ that has all threads of a row subtract its first element, where states do."""
    takes = " ".join(
        f"{{ const {value_type(state.taken)} x[1] = {{a{at}[0]}}; first.s{at}.take(x, place); }}"
        for at, state in enumerate(reductions.states)
        if state.shifts
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
KERNEL(%(threads)d)
on_chip(%(signature)s) {
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
        %(row_results)s
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
