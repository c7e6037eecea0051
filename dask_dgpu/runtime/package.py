"""Programs as ranks get them: each only once.

::

    scheduler                                  rank
    ---------                                  ----
    program, plans -> text, tokens, digests
    digests, tokens, text, plans  ---------->  keeps the program, with its plans, by the digests
    digests  ------------------------------->  runs the kept program
    digests, other tokens  ----------------->  opens the text with these, and runs it
    digests, tokens, other plans  ---------->  runs it with its blocks in other places

A program has no names. But its functions may have numbers that differ in each call of the same
code, or a user may pass them a name. In the ``text`` such tokens have numbers, so equal programs
have equal digests. Plans depend on the places of blocks, which may differ by chance.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from dask_dgpu.runtime.program import Form, Launch, Program
from graph_opt.dask_graph.renaming import numbered, restored


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


def form_of(program: Program) -> Form:
    """Return what identifies a program, and the tokens in its text."""
    text, tokens = numbered(program.payload)
    return Form(blake2b(text).digest(), tuple(token.decode() for token in tokens))


def program_of(launch: Launch) -> Program:
    """Return the program of a launch with its tokens, to run it in this process."""
    if launch.form is None or not launch.form.tokens:
        return launch.program
    text, _ = numbered(launch.program.payload)
    return opened(text, [token.encode() for token in launch.form.tokens])


def opened(text: bytes, tokens: Sequence[bytes]) -> Program:
    """Return the program with a text that has these tokens."""
    program: Program = pickle.loads(restored(text, tokens))
    return program
