"""Where a profiler's record comes from: a cluster's scheduler, or this process."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask.callbacks import Callback
from dask.utils import key_split

from dask_dgpu.errors import DgpuError
from dask_dgpu.runtime import tasks
from dask_dgpu.runtime.recording import Profile, Recording
from graph_opt.model.names import is_gang, serves

if TYPE_CHECKING:
    from distributed import Client

Key = Any

HERE = "this process"
"""The lane of tasks without a cluster."""


class ClusterSource:
    """Gangs and tasks of a cluster, recorded by a plugin of its scheduler."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = f"dask-dgpu-profiler-{uuid4().hex}"

    def start(self) -> None:
        """Begin to record."""
        from dask_dgpu.runtime.scheduler.records import Recorder

        self._client.register_plugin(Recorder(self._name, self._client.id))

    def profile(self, end: bool) -> Profile:
        """Return what was recorded so far; ``end`` ends the record."""
        from dask_dgpu.runtime.scheduler.records import recorded

        profile: Profile | None = None
        if self._client.status == "running":
            profile = self._client.run_on_scheduler(recorded, name=self._name, end=end)
        if profile is None:
            raise DgpuError("the record of the profiler is lost: its client was closed")
        return profile


class LocalSource:
    """Gangs and tasks that Dask's local schedulers run in this process."""

    def __init__(self) -> None:
        self._recording = Recording()
        self._tasks = _Tasks(self._recording)
        self._began = 0.0

    def start(self) -> None:
        """Begin to record."""
        self._began = time()
        self._tasks.register()
        tasks.recordings.append(self._recording)

    def profile(self, end: bool) -> Profile:
        """Return what was recorded so far; ``end`` ends the record."""
        if end:
            tasks.recordings[:] = [
                recording for recording in tasks.recordings if recording is not self._recording
            ]
            self._tasks.unregister()
        return self._recording.profile(self._began, time(), {}, len(self._tasks.begun))


class _Tasks(Callback):
    """Records the tasks of computations that begin from now on, except those of gangs."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        self.begun: dict[Key, float] = {}

    def _pretask(self, key: Key, dsk: Any, state: Any) -> None:
        if not is_gang(key) and not serves(key):
            self.begun[key] = time()

    def _posttask(self, key: Key, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        if getattr(dsk[key], "func", None) is tasks.out:
            self.begun.pop(key, None)
        else:
            self._add(key, f"thread {worker_id}")

    def _finish(self, dsk: Any, state: Any, errored: bool) -> None:
        for key in [key for key in self.begun if key in dsk]:  # they did not end
            del self.begun[key]

    def _add(self, key: Key, track: str) -> None:
        begin = self.begun.pop(key, None)
        if begin is not None:
            times = [{"action": "compute", "start": begin, "stop": time()}]
            self._recording.add_task(HERE, track, key_split(key), times)
