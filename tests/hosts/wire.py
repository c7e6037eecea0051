"""A slow wire between two interfaces, for networks of tests: packets wait, and some overtake.

Usage: ``wire.py INNER OUTER SECONDS OVERTAKING`` creates both interfaces.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from itertools import count

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
LONGEST_FRAME = 65536
MOST_WAITING = 20_000


def create(name: str) -> int:
    """Create an interface; return the descriptor of what it sends."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def carry(ends: tuple[int, int], seconds: float, overtaking: float) -> None:
    """Carry packets from each end to the other."""
    chance = random.Random(0)
    numbers = count()
    waiting: list[tuple[float, int, int, bytes]] = []
    other = dict(zip(ends, reversed(ends), strict=True))
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, (), (), pause)[0]:
            frame = os.read(end, LONGEST_FRAME)
            wait = 0.0 if chance.random() < overtaking else seconds
            if len(waiting) < MOST_WAITING:
                due = time.monotonic() + wait
                heapq.heappush(waiting, (due, next(numbers), other[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            *_, end, frame = heapq.heappop(waiting)
            try:
                os.write(end, frame)
            except OSError:  # the interface is not up yet
                continue


def main() -> None:
    inner, outer, seconds, overtaking = sys.argv[1:]
    ends = create(inner), create(outer)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(ends, float(seconds), float(overtaking))


if __name__ == "__main__":
    main()
