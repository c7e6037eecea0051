"""Hidden and exposed seconds of transfers whose times are known: no clock runs."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.comm.common import exchange
from tests.comm.transports import WRAPPERS, on_threads
from tests.support.recording import RecordingComm

TimedComm = WRAPPERS["timed"]
seconds = st.floats(0, 100)


class Clock:
    """A clock that stands still unless it is advanced."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Transfer:
    """A transfer that ends at a known time."""

    clock: Clock
    end: float
    known: bool = True

    @property
    def ended(self) -> float | None:
        return self.end if self.known and self.clock.now >= self.end else None

    def wait(self) -> None:
        self.clock.now = max(self.clock.now, self.end)


class Known:
    """A communicator whose calls and transfers take known times."""

    rank, size = 0, 2

    def __init__(self, call: float, transfer: float, known: bool = True) -> None:
        self.clock = Clock()
        self.seconds, self.transfer, self.known = call, transfer, known

    def exchange(self, sends: Any, recvs: Any) -> Transfer:
        begin = self.clock.now
        self.clock.advance(self.seconds)
        end = begin + max(self.seconds, self.transfer)
        return Transfer(self.clock, end, self.known)

    def barrier(self) -> None:
        self.clock.advance(self.transfer)


@given(call=seconds, transfer=seconds, compute=seconds)
def test_one_transfer(call: float, transfer: float, compute: float) -> None:
    known = Known(call, transfer)
    comm = TimedComm(known, known.clock)
    work = comm.exchange([], [])
    known.clock.advance(compute)
    work.wait()
    rest = max(0.0, transfer - call)
    assert comm.hidden == pytest.approx(min(rest, compute), abs=1e-9)
    assert comm.exposed == pytest.approx(call + max(0.0, rest - compute), abs=1e-9)
    known.clock.advance(5)
    before = comm.hidden, comm.exposed
    work.wait()
    assert comm.take() == before
    assert comm.take() == (0, 0)


def test_transfers_at_the_same_time_all_count() -> None:
    known = Known(call=0, transfer=4)
    comm = TimedComm(known, known.clock)
    both = [comm.exchange([], []) for _ in range(2)]
    known.clock.advance(3)
    for work in both:
        work.wait()
    assert comm.take() == (3 + 4, 1)  # the second also continues while the first is awaited


def test_nothing_is_hidden_if_the_end_is_unknown() -> None:
    known = Known(call=1, transfer=4, known=False)
    comm = TimedComm(known, known.clock)
    work = comm.exchange([], [])
    known.clock.advance(1)
    work.wait()
    assert comm.take() == (0, 1 + 2)


def test_a_barrier_is_exposed() -> None:
    known = Known(call=0, transfer=3)
    comm = TimedComm(known, known.clock)
    comm.barrier()
    assert comm.take() == (0, 3)


def test_an_error_passes_through() -> None:
    def program(inner: Any) -> None:
        with pytest.raises(ValueError, match="expected a rank from 0 to 0"):
            TimedComm(inner).exchange([(1, np.ones(1))], [])

    on_threads(1, program)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_bytes_are_those_of_the_calls(size: int) -> None:
    """The ledger counts what each rank gets or gives, by its own reading of the protocol."""

    def program(inner: Any) -> tuple[list[int], list[int]]:
        recording = RecordingComm(inner)
        comm, ledger = TimedComm(recording), recording.ledger
        rank = comm.rank
        counted: list[int] = []
        known: list[int] = []

        def note(in_window: bool = False) -> None:
            span: Any = SimpleNamespace()
            comm.note(span)
            counted.append(span.sent_bytes)
            known.append(ledger.bytes_received if in_window else ledger.bytes_sent)
            ledger.sent.clear()
            ledger.received.clear()

        right, left = (rank + 1) % size, (rank - 1) % size
        sends = [(right, np.zeros(rank + 1, "u1")), (rank, np.zeros(4))]
        comm.exchange(sends, [(left, np.zeros(left + 1, "u1")), (rank, np.zeros(4))]).wait()
        note()
        comm.all_reduce(np.zeros(2 * size + 1, "f4")).wait()
        note()
        out, mine = [peer + 1 for peer in range(size)], [rank + 1] * size
        work = exchange(comm, np.zeros(sum(mine)), mine, np.zeros(sum(out)), out)
        if work is not None:
            work.wait()
        note()
        window = comm.window([np.zeros(5)])
        assert window is not None
        for peer in range(size):
            window.get(peer, 0, (slice(1, 4),), np.zeros(3))
        note(in_window=True)
        window.close().wait()
        comm.barrier()
        note()
        return counted, known

    for counted, known in on_threads(size, program):
        assert counted == known
        assert counted[-1] == 0
        assert (counted[-2] > 0) == (size > 1)


def test_reads_of_a_window_are_exposed() -> None:
    def program(inner: Any) -> tuple[float, float]:
        ticks = Clock()

        def clock() -> float:  # each reading takes a second
            ticks.advance(1)
            return ticks.now

        comm = TimedComm(inner, clock)
        window = comm.window([np.arange(3.0)])
        assert window is not None
        comm.take()
        target = np.empty(2)
        window.get(1 - comm.rank, 0, (slice(1, 3),), target)
        assert target.tolist() == [1, 2]
        read = comm.take()
        window.close().wait()
        return read

    assert on_threads(2, program) == [(0, 1)] * 2
