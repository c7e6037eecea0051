"""The programs that a worker keeps: opened, prepared, and run again under other names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dask_dgpu.runtime.names import Names
from dask_dgpu.runtime.package import Package, is_nameless
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.worker.job import GaveUpError, Job
from graph_opt.dask_graph.renaming import split
from graph_opt.model.parameter import MARK


@dataclass
class _Kept:
    package: Package
    tokens: list[bytes]
    plans: Plans
    nameless: dict[int, bool] = field(default_factory=dict)  # for each rank


class Programs:
    """The last programs of a rank, by their digests; only its program thread calls this."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """The bytes of all packages."""
        return sum(each.package.nbytes for each in self._kept.values())

    def opened(self, job: Job, ask: Callable[[], None]) -> tuple[Plans, Names]:
        """Return the program of a job, and the names that take the place of its own.

        ``ask`` the scheduler for it if it is neither kept nor sent.

        Raises
        ------
        GaveUpError
            If the run is given up before the program arrives.
        """
        if job.digest not in self._kept:
            if job.text is None:
                job.phase = "ask for the program"
                ask()
                job.arrived.wait()
            if job.text is None:
                raise GaveUpError("the run was given up")
            self.add(Package(job.digest, job.text, job.plans), job.tokens)
        job.text = None
        plans, names = self.find(job.digest, job.tokens, job.rank)
        self.shrink(plans.program.limits.kept_programs)
        return plans, names

    def add(self, package: Package, tokens: bytes) -> None:
        """Open a program under names with these tokens."""
        own = split(tokens)
        self._kept[package.digest] = _Kept(package, own, package.opened(own))

    def find(self, digest: bytes, tokens: bytes, rank: int) -> tuple[Plans, Names]:
        """Return a program that is there, and the names that take the place of its own.

        It is opened anew under these if a number differs, or if a function may depend on a name.
        """
        kept, wanted = self._kept[digest], split(tokens)
        self._kept.move_to_end(digest)
        if kept.tokens != wanted:
            renamed = _numbers(kept.tokens) == _numbers(wanted)
            if renamed and rank not in kept.nameless:
                kept.nameless[rank] = is_nameless(kept.plans, rank)
            if not renamed or not kept.nameless[rank]:
                kept.tokens, kept.plans = wanted, kept.package.opened(wanted)
        return kept.plans, Names(kept.tokens, wanted)

    def shrink(self, limit: int) -> None:
        """Forget the programs that were used first, until the others have at most these bytes."""
        nbytes = self.nbytes
        while nbytes > limit:
            _, kept = self._kept.popitem(last=False)
            nbytes -= kept.package.nbytes


def _numbers(tokens: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Return the tokens of numbers, and which ones they are."""
    return [(at, each) for at, each in enumerate(tokens) if each.startswith(MARK.encode())]
