"""A cluster on several hosts: processes in their namespaces."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dask
from distributed import Client

from tests.cluster.conftest import IMPORTED
from tests.cluster.observe import eventually
from tests.hosts.network import Network, enter, replace_hosts_file

ROOT = Path(__file__).parents[2]
PORT = 8786

DASK = {
    # seconds after which a connection without an answer counts as lost
    "distributed.comm.timeouts.connect": "8s",
    "distributed.comm.timeouts.tcp": "12s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.scheduler.allowed-failures": 20,
    "dgpu.cost.measure": False,
}


@dataclass
class HostCluster:
    """A scheduler and workers; ``workers`` has their processes by name."""

    network: Network
    folder: Path
    address: str = ""
    scheduler: subprocess.Popen[str] | None = None
    workers: dict[str, BaseProcess] = field(default_factory=dict)
    _starts: dict[str, Callable[[], None]] = field(default_factory=dict)

    def start_scheduler(self, at: str, listen: str, hosts_file: str = "") -> None:
        """Start the scheduler; returns when it listens."""
        command = (sys.executable, "-m", "tests.hosts.scheduler", listen, str(PORT), hosts_file)
        config = {name.upper().replace(".", "__").replace("-", "_"): v for name, v in DASK.items()}
        environment = {f"DASK_{name}": str(value) for name, value in config.items()}
        with (self.folder / "scheduler.log").open("w") as log:
            self.scheduler = subprocess.Popen(
                ("ip", "netns", "exec", self.network.namespace(at), *command),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, **environment},
            )
        assert self.scheduler.stdout is not None
        self.address = self.scheduler.stdout.readline().strip()
        assert self.address, self.log()

    def start_worker(
        self, at: str, name: str, hosts_file: str = "", scheduler: str = "", **options: Any
    ) -> None:
        """Start a worker on a host; ``hosts_file`` is what that host says of names."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["distributed", *IMPORTED])
        log = str(self.folder / f"{name}.log")
        given = (self.network.namespace(at), scheduler or self.address, hosts_file, log)
        process = context.Process(
            target=work, args=(*given, {"name": name, **options}), daemon=True
        )
        process.start()
        self.workers[name] = process
        self._starts[name] = partial(self.start_worker, at, name, hosts_file, scheduler, **options)

    def kill(self, name: str) -> None:
        """Kill a worker."""
        self.workers[name].kill()
        self.workers.pop(name).join()

    def client(self) -> Client:
        """Connect a client; the calling thread must use the network of its host."""
        client = Client(self.address, timeout=30)
        try:
            eventually(lambda: self.complete(client), 60)
        except BaseException:
            client.close()
            raise
        return client

    def complete(self, client: Client) -> bool:
        """Return whether all workers are there; start those again that ended.

        A nanny would do this for workers that lost the scheduler.
        """
        for name, process in list(self.workers.items()):
            if not process.is_alive():
                self._starts[name]()
        try:
            return len(client.run(os.getpid)) == len(self.workers)
        except OSError:  # a worker that the scheduler still knows
            return False

    def log(self) -> str:
        """Return the last lines of each process."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in files)

    def close(self) -> None:
        """End all processes."""
        for name in list(self.workers):
            self.kill(name)
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler.communicate()


@contextmanager
def started(network: Network, folder: Path) -> Iterator[HostCluster]:
    """Yield a cluster without processes; end them afterwards."""
    cluster = HostCluster(network, folder)
    try:
        yield cluster
    finally:
        cluster.close()


def work(
    namespace: str, scheduler: str, hosts_file: str, log: str, options: Mapping[str, Any]
) -> None:
    """Be a worker on a host until the scheduler is lost."""
    enter(namespace)
    if hosts_file:
        replace_hosts_file(hosts_file)
    with open(log, "a") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    asyncio.run(_work(scheduler, options))


async def _work(scheduler: str, options: Mapping[str, Any]) -> None:
    from distributed import Worker

    with tempfile.TemporaryDirectory() as folder, dask.config.set(DASK):
        worker = Worker(scheduler, nthreads=1, local_directory=folder, **options)
        await worker
        await worker.finished()
