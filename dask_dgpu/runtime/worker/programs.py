"""The programs that a worker keeps: opened and prepared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from dask_dgpu.runtime.package import Package
from dask_dgpu.runtime.plans import Plans, received
from dask_dgpu.runtime.prepared import Prepared, prepared
from dask_dgpu.runtime.program import Program, opened
from dask_dgpu.runtime.worker.job import GaveUpError, Job
from graph_opt.dask_graph.renaming import split

MOST_PLANS = 4
"""Number of plans that are kept of one program."""

OPENED = 16
"""Bytes of an opened and prepared program for each of its package: 10 to 19 were measured."""


@dataclass
class _Planned:
    """Plans of a program, the bytes that they take, and what each rank does."""

    plans: Plans
    nbytes: int
    prepared: dict[int, Prepared] = field(default_factory=dict)


@dataclass
class _Kept:
    """A program, opened with these tokens, and its last plans by their digests."""

    text: bytes
    tokens: bytes
    program: Program
    planned: OrderedDict[bytes, _Planned] = field(default_factory=OrderedDict)

    def open(self, tokens: bytes) -> None:
        """Open the program with other tokens: its functions depend on them."""
        self.tokens, self.program = tokens, opened(self.text, split(tokens))
        for each in self.planned.values():
            each.prepared.clear()


class Programs:
    """The last programs of a rank, by their digests; only its program thread calls this."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._plans: WeakValueDictionary[bytes, Plans] = WeakValueDictionary()

    def __contains__(self, package: Package) -> bool:
        kept = self._kept.get(package.program)
        return kept is not None and package.digest in kept.planned

    def __len__(self) -> int:
        return sum(len(kept.planned) for kept in self._kept.values())

    @property
    def nbytes(self) -> int:
        """The memory that all programs take, once they are opened."""
        return sum(each.nbytes for kept in self._kept.values() for each in kept.planned.values())

    def opened(self, job: Job, ask: Callable[[], None]) -> Prepared:
        """Return what the rank of a job does; ``ask`` for what is neither kept nor sent.

        Raises
        ------
        GaveUpError
            If the run is given up before the program arrives.
        """
        package = job.package
        if package not in self:
            if self._lacks(package):
                job.phase = "ask for the program"
                ask()
                job.arrived.wait()
                package = job.package
            if self._lacks(package):
                raise GaveUpError("the run was given up")
            self.add(package, job.tokens)
        job.free_package()
        found = self.find(package, job.tokens, job.rank)
        self.shrink(found.program.limits.kept_programs)
        return found

    def _lacks(self, package: Package) -> bool:
        """Whether a package is not enough to run its program."""
        return not package.plans or not (package.text or package.program in self._kept)

    def add(self, package: Package, tokens: bytes) -> None:
        """Keep a program with plans. If it is new, open it with these tokens."""
        kept = self._kept.get(package.program)
        if kept is None:
            program = opened(package.text, split(tokens))
            self._kept[package.program] = kept = _Kept(package.text, tokens, program)
        nbytes = OPENED * (len(kept.text) + len(package.plans))
        kept.planned[package.digest] = _Planned(self._received(package.plans), nbytes)
        if len(kept.planned) > MOST_PLANS:
            kept.planned.popitem(last=False)

    def _received(self, payload: bytes) -> Plans:
        """Return plans that were sent; programs with equal plans share what is derived of them."""
        found = self._plans.get(payload)
        if found is None:
            self._plans[payload] = found = received(payload)
        return found

    def find(self, package: Package, tokens: bytes, rank: int) -> Prepared:
        """Return what a rank does in a program that is there."""
        kept = self._kept[package.program]
        found = kept.planned[package.digest]
        self._kept.move_to_end(package.program)
        kept.planned.move_to_end(package.digest)
        if kept.tokens != tokens:
            kept.open(tokens)
        if rank not in found.prepared:
            found.prepared[rank] = prepared(kept.program, found.plans, rank)
        return found.prepared[rank]

    def shrink(self, limit: int) -> None:
        """Forget the programs that were used first, until the others take at most these bytes."""
        nbytes = self.nbytes
        while nbytes > limit:
            program, kept = next(iter(self._kept.items()))
            nbytes -= kept.planned.popitem(last=False)[1].nbytes
            if not kept.planned:
                del self._kept[program]
