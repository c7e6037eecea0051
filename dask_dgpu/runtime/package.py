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

from dataclasses import dataclass
from hashlib import blake2b

from dask_dgpu.runtime.program import Program


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
    def of(cls, program: Program, plans: bytes) -> Package:
        """Return a program with its pickled plans."""
        digest = blake2b(plans, digest_size=16, key=program.digest).digest()
        return cls(program.digest, digest, program.text[0], plans)
