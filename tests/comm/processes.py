"""A pool of processes that act as ranks, reused from test to test."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

# Its server imports once; ranks forked from it start at once.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["dask_dgpu.comm.sockets"])


class RankPool:
    """``size`` processes; each runs what it is sent."""

    def __init__(self, size: int) -> None:
        pairs = [_CONTEXT.Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pairs
        ]
        for process, (_, theirs) in zip(self.processes, pairs, strict=True):
            process.start()
            theirs.close()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.processes)

    def start(self, fn: Callable[..., Any], *args: Any) -> None:
        """Call ``fn(rank, *args)`` in every process."""
        for rank, pipe in enumerate(self.pipes):
            pipe.send((fn, (rank, *args)))

    def results(self, ranks: Sequence[int] | None = None, limit: float = 20.0) -> list:
        """Return what the ranks returned; raise if one failed."""
        errors, found = [], []
        for rank in range(self.size) if ranks is None else ranks:
            assert self.pipes[rank].poll(limit), f"rank {rank} hangs"
            error, result = self.pipes[rank].recv()
            errors += [f"rank {rank} failed:\n{error}"] if error is not None else []
            found.append(result)
        assert not errors, "\n".join(errors)  # once all answers are out of the pipes
        return found

    def run(self, fn: Callable[..., Any], *args: Any) -> list:
        """Call ``fn(rank, *args)`` in every process and return the results."""
        self.start(fn, *args)
        return self.results()

    def stop(self) -> None:
        """End the processes, whatever they do."""
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Connection) -> None:
    while True:
        try:
            fn, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, fn(*args)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
