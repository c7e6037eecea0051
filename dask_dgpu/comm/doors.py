"""Listening sockets of a library that accepts any peer, closed once the ranks are connected.

A socket filter of Linux drops what arrives at the listening socket, before its library sees it.
Connections that it has accepted are sockets of their own, without the filter. So a stranger's
attempt to connect times out, as behind a firewall. On other systems the sockets stay open.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys

_DESCRIPTORS = "/proc/self/fd"
_SO_ATTACH_FILTER = 26
# one instruction of the kernel's packet filter: accept 0 bytes of the packet
_DROP = struct.pack("HBBI", 6, 0, 0, 0)
# bytes of a socket's name in C that are family, port and address; the rest may be noise
_NAMED = {socket.AF_INET: 8, socket.AF_INET6: 24}


def close_doors(published: bytes) -> None:
    """Let nobody connect to the listening sockets whose names in C are among these bytes.

    A library publishes these names to its peers, so no socket of anybody else is among them. All
    others are only asked for their names: a Python object or a duplicate of them could change how
    they block, or keep them open. Connected peers notice nothing.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    program = ctypes.create_string_buffer(_DROP)
    filtering = struct.pack("H6xP", 1, ctypes.addressof(program))
    for descriptor in map(int, os.listdir(_DESCRIPTORS)):
        name = _name(libc, descriptor)
        if name and name in published and _listens(libc, descriptor):
            option = socket.SOL_SOCKET, _SO_ATTACH_FILTER
            libc.setsockopt(descriptor, *option, filtering, len(filtering))


def _name(libc: ctypes.CDLL, descriptor: int) -> bytes:
    """Return family, port and address of an internet socket, of other descriptors nothing."""
    name = ctypes.create_string_buffer(max(_NAMED.values()))
    if libc.getsockname(descriptor, name, ctypes.byref(ctypes.c_uint(len(name)))):
        return b""
    (family,) = struct.unpack_from("H", name)
    return name.raw[: _NAMED.get(family, 0)]


def _listens(libc: ctypes.CDLL, descriptor: int) -> bool:
    found = ctypes.c_int()
    size = ctypes.byref(ctypes.c_uint(ctypes.sizeof(found)))
    option = socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    return not libc.getsockopt(descriptor, *option, ctypes.byref(found), size) and bool(found)
