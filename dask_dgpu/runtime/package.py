"""Programs as ranks get them: equal for all names, so that a rank gets each only once.

::

    scheduler                                  rank
    ---------                                  ----
    program, plans -> text, tokens, digest
    digest, tokens, text  ------------------>  keeps text and program by the digest
    digest, other tokens  ------------------>  runs the kept program under the other names

The tokens in Dask's names differ in each call of the same code. In the ``text`` they have numbers,
so equal programs have equal digests.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dask_dgpu.runtime.calls import Chain
from dask_dgpu.runtime.fused import Fused
from dask_dgpu.runtime.plans import Plans, received
from dask_dgpu.runtime.prepared import prepared
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.steps import Functions
from graph_opt.dask_graph.pickling import pickled
from graph_opt.dask_graph.renaming import numbered, parted, restored

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Package:
    """A program, pickled with numbered tokens, its pickled plans, and what identifies both."""

    digest: bytes
    text: bytes
    plans: bytes

    @classmethod
    def of(cls, program: bytes, plans: bytes) -> tuple[Package, list[bytes]]:
        """Return a pickled program as a package, and its tokens."""
        text, tokens = numbered(program)
        digest = blake2b(text, digest_size=16, key=blake2b(plans).digest()).digest()
        return cls(digest, text, plans), tokens

    @property
    def nbytes(self) -> int:
        """The bytes that count for the limit of what is kept."""
        return len(self.text) + len(self.plans)

    def opened(self, tokens: Sequence[bytes]) -> Plans:
        """Return the program under names with these tokens, with its plans."""
        program: Program = pickle.loads(restored(self.text, tokens))
        return Plans(program, received(self.plans))


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
