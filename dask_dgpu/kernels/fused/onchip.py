"""Kernels for rows on chip: read once, reduced as often as needed, written once.

A row lies in the registers of a warp, of part of one, or of a thread block. Each pass of the
expression reduces it, and all its threads have the result::

    softmax    load -> max -> sum of exp(x - max) -> exp(x - max) / sum -> store
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_dgpu.kernels.fused.device_functions import stored_type, value_type
from dask_dgpu.kernels.fused.kernel import Array, Entry, Launch, constants, output
from dask_dgpu.kernels.fused.layout import (
    index_type,
    loads,
    scalars,
)
from dask_dgpu.kernels.fused.onchip_rows import Rows
from dask_dgpu.kernels.fused.onchip_source import PHASE, RESULT, SHARE, SOURCE
from dask_dgpu.kernels.fused.prelude import PRELUDE
from dask_dgpu.kernels.fused.reduce import SIZES, states_source
from dask_dgpu.kernels.fused.source import Code, Misplaced, signature_of
from dask_dgpu.kernels.fused.states import SOURCE as STATES
from dask_dgpu.kernels.fused.states import State, limits, result
from dask_dgpu.kernels.fused.typed import Typed
from graph_opt.model.expression import Node, Reduce


def on_chip(
    results: Sequence[int],
    reductions: Sequence[Sequence[int]],
    nodes: Sequence[Node],
    found: Sequence[Typed],
    arrays: Mapping[int, Array],
) -> Launch | None:
    """Return one launch for results of several passes, or None if rows do not suit it.

    ``reductions`` are those of each pass, all with generated code.
    """
    try:
        return _Kernel(results, reductions, nodes, found, arrays).launch()
    except Misplaced:
        return None


class _Kernel(Rows):
    """The source of a kernel."""

    def launch(self) -> Launch:
        """Return the launch."""
        index = index_type(self.kept, self.reduced)
        kinds = [stored_type(self.found[at].dtype) for at in self.results]
        macros = {
            "group": self.group,
            "threads": self.threads,
            "lanes": self.lanes,
            "items": self.items,
            "exact": int(self.exact),
        }
        loaded = self._loads()
        phases = "".join(
            PHASE
            % {
                "number": number,
                "code": "\n                ".join(code.lines),
                "arrays": " ".join(
                    f"{value_type(state.taken)} a{at}[N];" for at, state in enumerate(states)
                ),
                "values": " ".join(f"a{at}[e] = {value};" for at, value in enumerate(values)),
                "take": " ".join(f"all.s{at}.take(a{at}, places);" for at in range(len(states))),
                "operands": self._named(code),
                "seed": _seed(number, states),
                "declared": " ".join(
                    f"{value_type(self.found[at].dtype)} x{number}_{place};"
                    for place, at in enumerate(several)
                ),
                "results": " ".join(
                    f"x{number}_{place} = "
                    + result(states[place], f"all.s{place}", "((double) length)", self._dtype(at))
                    + ";"
                    for place, at in enumerate(several)
                ),
                **macros,
            }
            for number, (code, values, states, several) in enumerate(self.phases)
        )
        full = [(at, value) for at, (whole, value) in enumerate(self.values) if whole]
        rows = [(at, value) for at, (whole, value) in enumerate(self.values) if not whole]
        final = ""
        if full:
            final = RESULT % {
                "operands": self._named(self.full),
                "code": "\n                ".join(self.full.lines),
                "results": " ".join(f"Vector<{kinds[at]}, L> o{at};" for at, _ in full),
                "values": " ".join(
                    f"o{at}.lane[j] = stored<{kinds[at]}>({value});" for at, value in full
                ),
                "stores": " ".join(
                    f"*(Vector<{kinds[at]}, L>*) (out{at} + kept * length + where) = o{at};"
                    for at, _ in full
                ),
                **macros,
            }
        walks = self.kept.declared() + self.reduced.declared()
        signature = signature_of(self.context, kinds, walks + SIZES)
        source = SOURCE % {
            "signature": signature,
            "split_kept": self.kept.split("where_kept"),
            "split_reduced": self.reduced.split("where"),
            "row_code": " ".join(self.rows.lines),
            "row_operands": self._named(self.rows, item="0"),
            "row_results": " ".join(
                f"out{at}[kept] = stored<{kinds[at]}>({value});" for at, value in rows
            ),
            "phases": phases,
            "final": final,
            **loaded,
            **macros,
        }
        reductions = [at for *_, several in self.phases for at in several]
        starts = {
            limits(node, self.found[node.argument].dtype)
            for node in (self.nodes[at] for at in reductions)
            if isinstance(node, Reduce)
        }
        states = "".join(
            states_source(states).replace("States", f"States{number}")
            for number, (_, _, states, _) in enumerate(self.phases)
        )
        return Launch(
            f"typedef {index} Index;\n"
            + PRELUDE
            + STATES
            + "".join(sorted(starts))
            + states
            + SHARE
            + source,
            Entry("on_chip", signature, str(self.threads)),
            (-(-self.kept.size * self.group // self.threads),),
            tuple(self.context.operands),
            constants(self.context),
            tuple(
                output(at, self._dtype(at), self.found[at].shape, self.shape, self._order(whole))
                for at, (whole, _) in zip(self.results, self.values, strict=True)
            ),
            tuple(
                scalars(
                    index,
                    [
                        *self.kept.arguments(),
                        *self.reduced.arguments(),
                        self.kept.size,
                        self.reduced.size,
                    ],
                )
            ),
            threads=self.threads,
        )

    def _dtype(self, at: int) -> Any:
        return self.found[at].dtype

    def _order(self, whole: bool) -> list[int]:
        return [*self.outer, *self.inner] if whole else self.outer

    def _read(self, at: int, name: str) -> str:
        """Return C++ that reads one vector of an operand along a row."""
        kind, base = stored_type(self.described[at].dtype), list(self.context.operands.values())[at]
        offset, step, stride = (
            self.reduced.offset(at),
            self.reduced.inner[at],
            self.reduced.step(at),
        )
        return loads(name, kind, offset, step, stride, lanes="L", pointer=f"b_{base}")

    def _named(self, code: Code, item: str = "u") -> str:
        """Return C++ that names the lanes of the operands of some code."""
        lines = []
        for at, name in enumerate(self.context.operands.values()):
            kind = f"Vector<{stored_type(self.described[at].dtype)}, L>"
            if name not in code.used:
                continue
            if self.keeps(at):
                which = item if any(self.reduced.strides[at]) else "0"
                lines.append(f"const {kind}& {name} = g_{name}[{which}];")
            else:
                guard = f"if ({int(self.exact)} || where < length)"
                split = self.reduced.split("where")
                lines.append(f"{kind} {name}; {guard} {{ {split} {self._read(at, name)} }}")
        return "\n            ".join(lines)

    def _loads(self) -> dict[str, str]:
        """Return the C++ that declares and reads the operands."""
        declared, bases = [], []
        once: list[str] = []
        each: list[str] = []
        for at, name in enumerate(self.context.operands.values()):
            kind = stored_type(self.described[at].dtype)
            bases.append(f"const {kind}* b_{name} = p_{name} + ({self.kept.offset(at)});")
            if not self.keeps(at):
                continue
            varies = any(self.reduced.strides[at])
            declared.append(f"Vector<{kind}, L> g_{name}[{self.items if varies else 1}];")
            (each if varies else once).append(self._read(at, f"g_{name}[{'u' if varies else 0}]"))
        return {
            "declared": " ".join(declared),
            "bases": " ".join(bases),
            "once": " ".join(once),
            "each": "\n            ".join(each),
        }


def _seed(number: int, states: Sequence[State]) -> str:
    """Return C++ that has all threads of a row subtract its first element, where states do."""
    takes = " ".join(
        f"{{ const {value_type(state.taken)} x[1] = {{a{at}[0]}}; first.s{at}.take(x, place); }}"
        for at, state in enumerate(states)
        if state.shifts
    )
    if not takes:
        return ""
    return (
        f"States{number} first; const Index place[1] = {{0}}; first.start_unshifted(); {takes} "
        "share_group<GROUP>(first); all.shift_by(first);"
    )
