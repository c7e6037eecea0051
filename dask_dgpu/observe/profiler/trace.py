"""The timeline of a profiler in Chrome's trace format, which Perfetto opens.

A process is a worker and a thread is a track; times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isnan
from os import PathLike
from pathlib import Path
from typing import Any

from dask_dgpu.runtime.recording import GANG, TRANSFERS, Event, Found


def write_trace(found: Found, path: str | PathLike[str]) -> None:
    """Write a record to a file."""
    trace = {"traceEvents": list(_entries(found)), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(trace))


def _entries(found: Found) -> Iterator[dict[str, Any]]:
    processes = {lane: at for at, lane in enumerate(found.lanes)}
    threads: dict[tuple[str, str], int] = {}
    for lane, at in processes.items():
        yield _named("process_name", at, 0, found.lanes[lane])
    for number, event in enumerate(found.events):
        track = event.lane, event.track
        process = processes[event.lane]
        if track not in threads:
            threads[track] = len(threads) + 1
            yield _named("thread_name", process, threads[track], event.track)
        place: dict[str, Any] = {"pid": process, "tid": threads[track]}
        place |= {"name": event.operation, "cat": _category(event)}
        begin, stop = ((at - found.start) * 1e6 for at in (event.start, event.stop))
        if event.track == TRANSFERS:  # they overlap, and events of a thread must not
            yield place | {"ph": "b", "ts": begin, "id": number}
            yield place | {"ph": "e", "ts": stop, "id": number}
        else:
            yield place | {"ph": "X", "ts": begin, "dur": stop - begin, "args": _facts(event)}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _category(event: Event) -> str:
    return event.track if event.track in (GANG, TRANSFERS) else "task"


def _facts(event: Event) -> dict[str, Any]:
    facts: dict[str, Any] = {"sent_bytes": event.sent_bytes, "failed": event.failed}
    return facts if isnan(event.wait) else {**facts, "wait_seconds": event.wait}
