"""Connecting that is given up: what comes of it too late is closed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dask_dgpu.comm.bootstrap import _abandonable, connect
from dask_dgpu.comm.common import Lifetime
from dask_dgpu.comm.store import Store
from dask_dgpu.errors import CommAbortedError, CommError


class Late:
    """A communicator that is made when it is let."""

    def __init__(self) -> None:
        self.may_be_made = threading.Event()
        self.closed = threading.Event()

    def make(self) -> Any:
        assert self.may_be_made.wait(10)
        return self

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("how", ["limit", "abort"])
def test_what_is_made_too_late_is_closed(how: str) -> None:
    late, attempt = Late(), Lifetime()
    if how == "abort":
        attempt.abort("enough")
    with pytest.raises(CommAbortedError if how == "abort" else CommError):
        _abandonable(late.make, attempt, 0.01 if how == "limit" else None, "The connection")
    assert not late.closed.is_set()
    late.may_be_made.set()
    assert late.closed.wait(10)


@pytest.mark.parametrize("patient", [True, False])
def test_an_abort_ends_the_threads(patient: bool) -> None:
    """Rank 1 never comes: the attempt goes on until it is aborted, and leaves nothing behind."""
    attempt = Lifetime()
    threading.Timer(0.2, attempt.abort, ["enough"]).start()
    with pytest.raises(CommAbortedError, match="enough"):
        connect(
            "gloo",
            store=Store(lambda key, value: None),
            host="127.0.0.1",
            rank=0,
            size=2,
            timeout=60.0,
            patient=patient,
            lifetime=attempt,
        )
    for thread in list(attempt.threads):
        thread.join(5)
        assert not thread.is_alive()


def test_gloo_does_not_wait_for_a_rank_that_gave_up() -> None:
    """All ranks have met, and one does not go on: the others are in gloo's own connecting."""
    from dask_dgpu.comm.gloo import GlooComm

    nobody = Store(lambda key, value: None)
    attempt = Lifetime()
    threading.Timer(0.2, attempt.abort, ["enough"]).start()
    with pytest.raises(CommError, match="enough"):
        GlooComm(nobody, rank=0, size=2, host="127.0.0.1", timeout=60.0, lifetime=attempt)
