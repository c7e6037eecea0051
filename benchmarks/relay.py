"""Stores for ranks in bare processes of this machine: without Dask, something must join them."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener

from dask_dgpu.comm.store import Store


class Relay:
    """Passes values from store to store, over a socket of the file system at ``address``."""

    def __init__(self) -> None:
        self._listener = Listener(family="AF_UNIX", backlog=64)
        self.address = str(self._listener.address)
        self._lock = threading.Lock()
        self._values: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        self._ranks: dict[str, list[Connection]] = defaultdict(list)
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            rank = self._listener.accept()
            threading.Thread(target=self._serve, args=(rank,), name="relay", daemon=True).start()

    def _serve(self, rank: Connection) -> None:
        with suppress(EOFError, OSError):
            name = rank.recv()
            with self._lock:
                for value in self._values[name]:
                    rank.send(value)
                self._ranks[name].append(rank)
            while True:
                self._pass_on(rank, name, rank.recv())

    def _pass_on(self, rank: Connection, name: str, value: tuple[str, bytes]) -> None:
        with self._lock:
            self._values[name].append(value)
            for other in self._ranks[name]:
                if other is not rank:
                    with suppress(OSError):  # it has ended
                        other.send(value)


def join_relay(address: str, name: str) -> Store:
    """Return a store that is joined to all others of this name."""
    relay = Client(address, family="AF_UNIX")
    relay.send(name)
    store = Store(lambda key, value: relay.send((key, value)))

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                store.receive(*relay.recv())

    threading.Thread(target=receive, name="relay", daemon=True).start()
    return store
