"""A cluster with TLS, attacked by a client without certificate while gangs run.

The attacker connects to every port that scheduler, nannies and workers listen on, and only to
127.0.0.1. Results stay right, no process ends or grows, and no pickle of a stranger is loaded.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster
from distributed.comm.tcp import _add_frames_header
from distributed.comm.utils import to_frames
from distributed.protocol import to_serialize

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS, start_cluster
from tests.cluster.observe import eventually, transports
from tests.cluster.test_dask_transport import secure_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

HOST = "127.0.0.1"
PATIENCE = 5.0
"""Seconds that an attacker waits for an answer."""

QUICKLY = 0.3
"""Seconds that it waits where no answer comes."""

IDLE = 1000
MOST_GROWTH = 150 * 2**20
"""Bytes that a process may grow: buffers of connections, and what gangs keep."""

RNG = np.random.default_rng(6)
A = RNG.integers(-9, 9, (97, 89))


class Payload:
    """Creates a file if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with secure_cluster() as cluster, Client(cluster) as client, dgpu.enable(client, **SETTINGS):
        assert (product(0) == A @ A.T).all()
        assert transports(client) == {"StreamComm"}
        yield client


def product(number: int) -> Any:
    x = da.from_array(A + number, chunks=20)
    return (x @ x.T).compute()


def processes(client: Client) -> list[psutil.Process]:
    """Return the processes of scheduler and nannies, this one, and of the workers."""
    pids = client.run(lambda dask_worker: os.getpid()).values()
    return [psutil.Process(), *map(psutil.Process, sorted(pids))]


def ports(client: Client, *, workers_only: bool = False) -> list[int]:
    """Return all ports that listen."""
    found = {
        each.laddr.port
        for process in processes(client)[1 if workers_only else 0 :]
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    worker_ports = {int(w.rpartition(":")[2]) for w in client.scheduler_info()["workers"]}
    assert found >= worker_ports
    return sorted(found)


@contextmanager
def unharmed(client: Client) -> Iterator[None]:
    """Compute gangs during a block, then check results, processes, memory and descriptors."""
    there = processes(client)
    memory = [process.memory_info().rss for process in there]
    descriptors = [process.num_fds() for process in there]
    over, computed = threading.Event(), []

    def compute() -> None:
        while not over.is_set() or len(computed) < 3:
            number = len(computed)
            computed.append((product(number) == (A + number) @ (A + number).T).all())

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
    assert len(computed) >= 3
    assert all(computed)
    assert processes(client) == there
    for process, before in zip(there, memory, strict=True):
        assert process.memory_info().rss < before + MOST_GROWTH
    eventually(lambda: all(p.num_fds() < n + 50 for p, n in zip(there, descriptors, strict=True)))


def send(port: int, *parts: bytes, patience: float = PATIENCE) -> None:
    """Send bytes to a port, and read until it closes."""
    with suppress(OSError), socket.create_connection((HOST, port), patience) as stream:
        for part in parts:
            stream.sendall(part)
        stream.shutdown(socket.SHUT_WR)
        while stream.recv(65536):
            pass


def greeting() -> bytes:
    """Return the first message of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        untrusting().wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def untrusting() -> ssl.SSLContext:
    """Return the settings of a client that has no certificate and checks none."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def of_dask(message: Any) -> bytes:
    """Return a message as Dask's connections send it, without TLS."""
    frames = asyncio.run(to_frames(message))
    return b"".join(map(bytes, _add_frames_header(frames)[0]))


def test_there_is_no_port_of_our_own(client: Client) -> None:
    """Each worker process listens at its address and its dashboard, as any worker of Dask."""
    for process in processes(client)[1:]:
        listening = [
            each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN
        ]
        assert len({each.laddr.port for each in listening}) == 2


def test_ranks_over_tcp_close_their_ports_once_connected() -> None:
    with start_cluster("cpu", 3) as cluster, Client(cluster) as client:
        before = ports(client, workers_only=True)  # ranks begin to connect once it is enabled
        with dgpu.enable(client, comm="tcp", **SETTINGS):
            assert (product(0) == A @ A.T).all()
            assert ports(client, workers_only=True) == before


def test_noise_on_ports_of_ucx() -> None:
    """These are for trusted networks, but noise of others, as of a scanner, does no harm."""
    with (
        start_cluster("cpu", 3) as cluster,
        Client(cluster) as client,
        dgpu.enable(client, comm="ucx", **SETTINGS),
    ):
        assert (product(0) == A @ A.T).all()
        with unharmed(client):
            dasks = {int(w.rpartition(":")[2]) for w in client.scheduler_info()["workers"]}
            own = [port for port in ports(client, workers_only=True) if port not in dasks]
            assert own
            for port in own:
                for size in (1, 8, 100, 4096, 100_000):
                    send(port, RNG.bytes(size), patience=QUICKLY)
                send(port, struct.pack("<QQ", 2**62, 2**62), patience=QUICKLY)


def test_random_bytes(client: Client) -> None:
    with unharmed(client):
        for port in ports(client):
            for size in (1, 8, 100, 4096, 100_000):
                send(port, RNG.bytes(size))


def test_beginnings_that_are_cut_off(client: Client) -> None:
    beginnings = [
        greeting(),
        of_dask({"compression": None, "python": (3, 11), "pickle-protocol": 5}),
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
    ]
    with unharmed(client):
        for port in ports(client):
            for whole in beginnings:
                for stop in {1, 5, len(whole) // 2, len(whole) - 1}:
                    send(port, whole[:stop])


def test_huge_lengths(client: Client) -> None:
    huge = [
        struct.pack("<Q", 2**62),
        struct.pack("<QQ", 2**40, 2**40) + bytes(100),
        struct.pack("<QQQ", 24, 2, 2**50) + bytes(100),
        b"\x16\x03\x01\xff\xff" + bytes(1000),  # a record of TLS
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200_000,
    ]
    with unharmed(client):
        for port in ports(client):
            for beginning in huge:
                send(port, beginning)


def test_many_idle_connections(client: Client) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * IDLE + 2000)), hard))
    found = ports(client)
    with unharmed(client), ExitStack() as stack:
        for number in range(IDLE):
            address = HOST, found[number % len(found)]
            stack.enter_context(socket.create_connection(address, PATIENCE))


def test_recorded_greetings(client: Client) -> None:
    """What a client with a certificate has sent says nothing the second time."""
    scheduler = client.scheduler.address
    recorded: list[bytes] = []
    with (
        relayed(int(scheduler.rpartition(":")[2]), recorded.append) as port,
        Client(f"tls://{HOST}:{port}", security=client.security, set_as_default=False) as own,
    ):
        assert own.submit(sum, [1, 2]).result(timeout=30) == 3
    assert len(recorded) > 2
    with unharmed(client):
        for port in ports(client):
            send(port, *recorded)
            send(port, recorded[0])
            send(port, recorded[0], *recorded[2:])


@contextmanager
def relayed(target: int, record: Callable[[bytes], None]) -> Iterator[int]:
    """Relay connections to a port; record what clients send."""

    def pump(source: socket.socket, sink: socket.socket, note: Callable[[bytes], None]) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                note(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with ExitStack() as stack, socket.create_server((HOST, 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    inner = stack.enter_context(server.accept()[0])
                    outer = stack.enter_context(socket.create_connection((HOST, target)))
                    for arguments in ((inner, outer, record), (outer, inner, lambda data: None)):
                        threading.Thread(target=pump, args=arguments, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_pickles_of_a_stranger_are_never_loaded(client: Client, tmp_path: Path) -> None:
    """Neither in plain text, nor with TLS and without a certificate."""
    mark = tmp_path / "loaded"
    payload = Payload(mark)
    pickled = pickle.dumps(payload)
    hello = of_dask({"compression": None, "python": (3, 11, 7), "pickle-protocol": 5})
    messages = [
        {"op": "run", "function": pickled, "args": pickled, "reply": True},
        {"op": "dgpu_gang", "key": "x", "program": pickled, "staged": [], "worker": "y"},
        {"op": "dgpu_link", "epoch": "x", "rank": 0, "reply": False},
        {"op": "echo", "data": to_serialize(payload)},
    ]
    sent = [of_dask(message) for message in messages]
    with unharmed(client):
        for port in ports(client):
            send(port, pickled)
            for message in sent:
                send(port, hello, message)
                with suppress(OSError, ssl.SSLError):
                    stream = socket.create_connection((HOST, port), QUICKLY)
                    with untrusting().wrap_socket(stream) as secure:
                        secure.sendall(hello + message)
                        secure.recv(65536)
    assert not mark.exists()
    with (
        LocalCluster(1, processes=False, protocol="tcp://", dashboard_address=None) as plain,
        Client(plain, set_as_default=False),
    ):
        send(plain.workers[0].port, hello, sent[0])
        eventually(mark.exists)  # without TLS it does show
