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

import dask_dgpu as dgpu
from tests.cluster.observe import eventually
from tests.hosts.network import Network, enter, replace_hosts_file
from tests.support.forked import preload

ROOT = Path(__file__).parents[2]
PORT = 8786
TCP_TIMEOUT, CLIENT_TIMEOUT = 11, 6
"""Seconds after which Dask's connections count as lost, and in which clients connect again."""

WORKING = ("a", "b", "c")
RANKS_PER_HOST = 2
FIRST_PORT = 4000

DASK = {
    # seconds after which a connection without an answer counts as lost
    "distributed.comm.timeouts.connect": "8s",
    "distributed.comm.timeouts.tcp": f"{TCP_TIMEOUT}s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.scheduler.allowed-failures": 20,
    "dgpu.cost.measure": False,
}


@dataclass
class HostCluster:
    """A scheduler and workers; ``workers`` has their processes by name.

    ``environment`` has more variables for workers.
    """

    network: Network
    folder: Path
    address: str = ""
    scheduler: subprocess.Popen[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
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
        preload()
        log = str(self.folder / f"{name}.log")
        given = (self.network.namespace(at), scheduler or self.address, hosts_file, log)
        more = (self.environment, {"name": name, **options})
        process = context.Process(target=work, args=(*given, *more), daemon=True)
        process.start()
        self.workers[name] = process
        self._starts[name] = partial(self.start_worker, at, name, hosts_file, scheduler, **options)

    def kill(self, name: str) -> None:
        """Kill a worker."""
        self.workers[name].kill()
        self.workers.pop(name).join()

    def restart(self, name: str) -> None:
        """Kill a worker, and start it again as before."""
        self.kill(name)
        self._starts[name]()

    def client(self) -> Client:
        """Connect a client; the calling thread must use the network of its host."""
        client = Client(self.address, timeout=CLIENT_TIMEOUT)
        try:
            eventually(lambda: self.complete(client), 60)
        except BaseException:
            client.close()
            raise
        return client

    @contextmanager
    def enabled(self, **settings: Any) -> Iterator[Client]:
        """Yield a client on its host, with the plugin enabled."""
        with (
            self.network.on("client"),
            self.client() as client,
            dgpu.enable(client, **settings),
        ):
            yield client

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
def started(network: Network, folder: Path, **environment: str) -> Iterator[HostCluster]:
    """Yield a cluster without processes; end them afterwards."""
    cluster = HostCluster(network, folder, environment=environment)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def six_workers(network: Network, folder: Path, **environment: str) -> Iterator[HostCluster]:
    """Yield the usual cluster: ``a0`` and ``a1`` on host a, and so on, each at its own port."""
    with started(network, folder, **environment) as cluster:
        cluster.start_scheduler("sched", network.ip("sched"))
        for host in WORKING:
            for number in range(RANKS_PER_HOST):
                address: dict[str, Any] = {"host": network.ip(host), "port": FIRST_PORT + number}
                cluster.start_worker(host, f"{host}{number}", **address)
        yield cluster


def work(
    namespace: str,
    scheduler: str,
    hosts_file: str,
    log: str,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
) -> None:
    """Be a worker on a host until the scheduler is lost."""
    os.environ.update(environment)
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
