"""The end of a communicator."""

from __future__ import annotations

import pytest

from dask_dgpu.comm.common import Lifetime
from dask_dgpu.errors import CommAbortedError


def test_an_abort_is_no_close() -> None:
    """Not even to the thread that ends the transfers, and may start after the close."""
    lifetime = Lifetime()
    lifetime.abort("a peer is lost")
    lifetime.close()
    assert not lifetime.closed
    with pytest.raises(CommAbortedError, match="a peer is lost"):
        lifetime.check()


def test_a_close_is_one_whatever_follows() -> None:
    ended = []
    lifetime = Lifetime(lambda: ended.append(lifetime.closed))
    lifetime.close()
    lifetime.abort("a peer is lost")
    assert ended == [True]
    with pytest.raises(CommAbortedError, match="it was closed"):
        lifetime.check()


def test_children_end_with_it() -> None:
    lifetime, child = Lifetime(), Lifetime()
    lifetime.adopt(child)
    lifetime.close()
    assert child.reason == "it was closed"
