"""Doors: listening sockets of a library that accepts any peer, open only while ranks connect.

A socket filter of Linux drops what arrives at the listening socket, before its library sees it.
Connections that it has accepted are sockets of their own, without the filter. So a stranger's
attempt to connect times out, as behind a firewall. On other systems doors stay open.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_DESCRIPTORS = Path("/proc/self/fd")
_SO_ATTACH_FILTER = 26
# one instruction of the kernel's packet filter: accept 0 bytes of the packet
_DROP = struct.pack("HBBI", 6, 0, 0, 0)
opening = threading.Lock()
"""One listening socket or library at a time, so that new sockets are the library's own."""


class Door:
    """The listening sockets that a function has opened at a host's address."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets

    def close(self) -> None:
        """Let nobody connect from now on; connected peers notice nothing."""
        program = ctypes.create_string_buffer(_DROP)
        filtering = struct.pack("H6xP", 1, ctypes.addressof(program))
        while self._sockets:
            with self._sockets.pop() as listener, suppress(OSError):
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtering)


def opened(create: Callable[[], T]) -> tuple[T, Door]:
    """Call a function that opens listening sockets; return its result and the door to them."""
    with opening:
        before = _listening()
        for listener in before.values():
            listener.close()
        result = create()
        return result, Door(list(_listening(known=before).values()))


def _listening(known: Collection[str] = ()) -> dict[str, socket.socket]:
    """Return duplicates of the listening sockets of this process, by their names in Linux.

    The ``known`` names are left out.
    """
    found: dict[str, socket.socket] = {}
    for entry in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        with suppress(OSError):
            name = os.readlink(entry)
            if not name.startswith("socket:") or name in known or name in found:
                continue
            own = socket.socket(fileno=os.dup(int(entry.name)))
            if own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                found[name] = own
            else:
                own.close()
    return found
