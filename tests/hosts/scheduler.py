"""A scheduler for tests on several hosts: ``HOST PORT HOSTS_FILE``, no torch and no CuPy."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys

sys.modules |= {"torch": None, "cupy": None}  # type: ignore[dict-item]

from tests.hosts.network import replace_hosts_file  # noqa: E402 after the line above

PR_SET_PDEATHSIG = 1


async def serve(host: str, port: int) -> None:
    from distributed import Scheduler

    async with Scheduler(host=host, port=port, dashboard_address=":0") as scheduler:
        sys.stdout.write(f"{scheduler.address}\n")
        sys.stdout.flush()
        await scheduler.finished()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.argv[3]:
        replace_hosts_file(sys.argv[3])
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
