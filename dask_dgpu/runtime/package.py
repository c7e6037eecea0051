"""Programs as ranks get them: equal for all names, so that a rank gets each only once.

::

    scheduler                                  rank
    ---------                                  ----
    program, plans -> text, tokens, digests
    digests, tokens, text, plans  ---------->  keeps the program, with its plans, by the digests
    digests, other tokens  ----------------->  runs the kept program under the other names
    digests, tokens, other plans  ---------->  runs it with its blocks in other places

The tokens in Dask's names differ in each call of the same code. In the ``text`` they have numbers,
so equal programs have equal digests. Plans depend on the places of blocks, which may differ by
chance: a rank keeps a few of each program.
"""

from __future__ import annotations

import logging
import pickle
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dask_dgpu.runtime.calls import Chain
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.plans import Plans
from dask_dgpu.runtime.prepared import prepared
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.steps import Functions
from graph_opt.dask_graph.pickling import pickled
from graph_opt.dask_graph.renaming import numbered, parted, restored

logger = logging.getLogger(__name__)

MOST_PLANS = 4
"""Number of plans that are kept of one program."""

OPENED = 16
"""Bytes of an opened and prepared program for each of its package: 10 to 19 were measured."""


@dataclass(frozen=True)
class Package:
    """A program, pickled with numbered tokens, and its pickled plans.

    The ``program`` is identified by a digest of its text, and with its plans by another ``digest``.
    """

    program: bytes
    digest: bytes
    text: bytes
    plans: bytes

    @classmethod
    def of(cls, program: bytes, plans: bytes) -> tuple[Package, list[bytes]]:
        """Return a pickled program as a package, and its tokens."""
        text, tokens = numbered(program)
        own = blake2b(text, digest_size=16).digest()
        digest = blake2b(plans, digest_size=16, key=own).digest()
        return cls(own, digest, text, plans), tokens


def opened(text: bytes, tokens: Sequence[bytes]) -> Program:
    """Return the program with a text under names with these tokens."""
    program: Program = pickle.loads(restored(text, tokens))
    return program


class Ledger:
    """Which programs a rank keeps, and which plans of each, in the order of their last use.

    The scheduler keeps the same account, so it knows what it need not send.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, OrderedDict[bytes, int]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __contains__(self, program: bytes) -> bool:
        return program in self._kept

    @property
    def nbytes(self) -> int:
        """The memory that all programs take, once they are opened."""
        return sum(sum(plans.values()) for plans in self._kept.values())

    def plans(self, program: bytes) -> Collection[bytes]:
        """Return the digests of a program with plans that are kept."""
        return self._kept.get(program, {}).keys()

    def use(self, program: bytes, digest: bytes, nbytes: int) -> None:
        """Count a use of a program with plans, both of so many bytes; forget other plans of it."""
        plans = self._kept.setdefault(program, OrderedDict())
        plans[digest] = OPENED * nbytes
        plans.move_to_end(digest)
        self._kept.move_to_end(program)
        if len(plans) > MOST_PLANS:
            plans.popitem(last=False)

    def shrink(self, limit: int) -> None:
        """Forget what was used first, until the rest takes at most these bytes."""
        nbytes = self.nbytes
        while nbytes > limit:
            program, plans = next(iter(self._kept.items()))
            nbytes -= plans.popitem(last=False)[1]
            if not plans:
                del self._kept[program]


def is_nameless(plans: Plans, rank: int) -> bool:
    """Whether no function of a rank holds a token, so that all may be called under other names.

    A user may pass a name, or another text that looks like a token, to a function.
    """
    works = (step.work for step in prepared(plans, rank).steps)
    functions = [
        making.function for work in works if isinstance(work, Functions) for making in work.makings
    ]
    try:
        text = pickled(list({id(each): each for each in functions}.values()), None, _nameless)
    except Exception as reason:  # of a user's class; or it holds too much to be compared
        logger.debug("a program is opened anew under other names: %s", reason)
        return False
    return not parted(text)[1]


def _nameless(obj: Any) -> Any:
    """Pickle what runs Dask's own tasks without their names, which show in notes only."""
    if isinstance(obj, Chain):
        return tuple, ([(call, *places) for _, call, *places in obj.links],)
    if isinstance(obj, Fused):
        fusion = obj.fusion
        facts = fusion.expression, fusion.dtypes, fusion.chunked, fusion.reduced
        return tuple, ([*facts, obj.chain],)
    return NotImplemented
