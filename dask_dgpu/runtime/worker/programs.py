"""The programs that a worker keeps: opened, prepared, and run again under other names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from dask_dgpu.runtime.names import Names
from dask_dgpu.runtime.package import Ledger, Package, is_nameless, opened
from dask_dgpu.runtime.plans import Fixed, Plans, received
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.worker.job import GaveUpError, Job
from graph_opt.dask_graph.renaming import split
from graph_opt.model.parameter import MARK


@dataclass
class _Planned:
    """A program with some plans, of so many bytes in messages."""

    plans: Plans
    nbytes: int
    nameless: dict[int, bool] = field(default_factory=dict)  # for each rank


@dataclass
class _Kept:
    """A program under names with these tokens, and with plans by their digests."""

    text: bytes
    tokens: list[bytes]
    program: Program
    planned: dict[bytes, _Planned] = field(default_factory=dict)


class Programs:
    """The last programs of a rank, by their digests; only its program thread calls this."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._kept: dict[bytes, _Kept] = {}
        self._fixed: WeakValueDictionary[bytes, Fixed] = WeakValueDictionary()

    def __contains__(self, package: Package) -> bool:
        return package.digest in self._ledger.plans(package.program)

    def __len__(self) -> int:
        return len(self._ledger)

    @property
    def nbytes(self) -> int:
        """The memory that all programs take."""
        return self._ledger.nbytes

    def opened(self, job: Job, ask: Callable[[], None]) -> tuple[Plans, Names]:
        """Return the program of a job, and the names that take the place of its own.

        ``ask`` the scheduler for what is neither kept nor sent.

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
        plans, names = self.find(package, job.tokens, job.rank)
        self.shrink(plans.program.limits.kept_programs)
        return plans, names

    def _lacks(self, package: Package) -> bool:
        """Whether a package is not enough to run its program."""
        return not package.plans or not (package.text or package.program in self._kept)

    def add(self, package: Package, tokens: bytes) -> None:
        """Keep a program with plans. If it is new, open it under names with these tokens."""
        kept = self._kept.get(package.program)
        if kept is None:
            own = split(tokens)
            kept = _Kept(package.text, own, opened(package.text, own))
            self._kept[package.program] = kept
        nbytes = len(kept.text) + len(package.plans)
        plans = Plans(kept.program, self._received(package.plans))
        kept.planned[package.digest] = _Planned(plans, nbytes)

    def _received(self, payload: bytes) -> Fixed:
        """Return plans that were sent; programs with equal plans share what is derived of them."""
        fixed = self._fixed.get(payload)
        if fixed is None:
            self._fixed[payload] = fixed = received(payload)
        return fixed

    def find(self, package: Package, tokens: bytes, rank: int) -> tuple[Plans, Names]:
        """Return a program that is there, and the names that take the place of its own.

        It is opened anew under these if a number differs, or if a function may depend on a name.
        """
        kept, wanted = self._kept[package.program], split(tokens)
        found = kept.planned[package.digest]
        self._ledger.use(package.program, package.digest, found.nbytes)
        self._forget()
        if kept.tokens != wanted:
            renamed = _numbers(kept.tokens) == _numbers(wanted)
            if renamed and rank not in found.nameless:
                found.nameless[rank] = is_nameless(found.plans, rank)
            if not renamed or not found.nameless[rank]:
                kept.tokens, kept.program = wanted, opened(kept.text, wanted)
                for each in kept.planned.values():
                    each.plans = Plans(kept.program, each.plans.fixed)
        return found.plans, Names(kept.tokens, wanted)

    def shrink(self, limit: int) -> None:
        """Forget the programs that were used first, until the others take at most these bytes."""
        self._ledger.shrink(limit)
        self._forget()

    def _forget(self) -> None:
        """Free what is not in the ledger."""
        for program, kept in list(self._kept.items()):
            for digest in kept.planned.keys() - self._ledger.plans(program):
                del kept.planned[digest]
            if not kept.planned:
                del self._kept[program]


def _numbers(tokens: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Return the tokens of numbers, and which ones they are."""
    return [(at, each) for at, each in enumerate(tokens) if each.startswith(MARK.encode())]
