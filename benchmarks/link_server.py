"""A server of Dask's in a process that is no worker, for ranks over the transport ``dask``."""

from __future__ import annotations

import asyncio
import threading
from functools import cache
from typing import Any

from distributed.core import Server, Status
from tornado.ioloop import IOLoop

from dask_dgpu.runtime.worker.links import Links, accept


class LinkServer:
    """A server, and its event loop in a thread."""

    def __init__(self) -> None:
        self.links: dict[str, Links] = {}
        started = threading.Event()

        async def serve() -> None:
            self.server: Any = Server({"dgpu_link": self._link}, needs_workdir=False)
            await self.server.listen("tcp://127.0.0.1:0")
            self.server.loop = IOLoop.current()
            started.set()
            await asyncio.Event().wait()

        threading.Thread(target=lambda: asyncio.run(serve()), name="loop", daemon=True).start()
        assert started.wait(20)

    async def _link(self, comm: Any, epoch: str, rank: int) -> Status:
        return await accept(self.links, comm, epoch, rank)

    def streams(self, name: str) -> Links:
        """Return new streams under a name that is used once."""
        self.links[name] = Links(self.server, name, 20.0)
        return self.links[name]


@cache
def this_server() -> LinkServer:
    """Return the server of this process."""
    return LinkServer()
