"""Hosts on one machine: network namespaces joined by a bridge, with ``tc`` on every link.

::

    host a           switch        host b
    eth0 ==== to-a  bridge  to-b ==== eth0
    eth1 ==== to-a-no    to-b-no ==== eth1

Nothing is created outside of these namespaces, so their addresses cannot meet real ones. Linux
removes everything within a namespace with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path

NAMESPACES = Path("/run/netns")
PREFIX = "dgpu"
WIRE = Path(__file__).with_name("wire.py")

RATE = "1gbit"
"""Rate of a link without a fault, in each direction."""

BURST = "256kb"
LONGEST_QUEUE = "100ms"

_CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_networks = count()


def run(*command: str) -> str:
    """Run a command; return its output."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@cache
def impossible() -> str | None:
    """Return why hosts cannot be made here, ``None`` if they can."""
    lacking = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if lacking or os.geteuid():
        return f"no {lacking[0]}" if lacking else "not root"
    try:
        with made(("a",)) as network:
            network.shape("a", RATE)
            network.lose("a", 1)
    except OSError as error:
        return str(error)
    return None if Path("/dev/net/tun").exists() else "no /dev/net/tun"


@contextmanager
def made(hosts: Sequence[str]) -> Iterator[Network]:
    """Make hosts; remove them and end their processes afterwards, whatever happened."""
    remove_abandoned()
    network = Network(hosts)
    try:
        network.make()
        yield network
    finally:
        network.remove()


def remove_abandoned() -> None:
    """Remove the hosts of test processes that were killed."""
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        maker = path.name.split("-")[1]
        if not Path("/proc", maker).exists():
            _remove_namespace(path.name)


class Network:
    """Hosts by name; each has the same last number in its addresses of IPv4 and IPv6.

    Faults are those of the link between a host and the switch. :meth:`mend` ends them.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)
        self._id = f"{PREFIX}-{os.getpid()}-{next(_networks)}"
        self._wires: dict[str, subprocess.Popen[str]] = {}

    def namespace(self, host: str) -> str:
        """Return the name of the namespace of a host, or of the ``switch``."""
        return f"{self._id}-{host}"

    def ip(self, host: str) -> str:
        """Return the address at which other hosts reach this one."""
        return f"10.77.0.{self.hosts.index(host) + 1}"

    def ip6(self, host: str) -> str:
        """Return the same for IPv6."""
        return f"fd77::{self.hosts.index(host) + 1}"

    def unreachable_ip(self, host: str) -> str:
        """Return the address of the interface that is joined to nothing."""
        return f"10.88.0.{self.hosts.index(host) + 1}"

    def make(self) -> None:
        """Make namespaces, the bridge and the links."""
        run("ip", "netns", "add", self.namespace("switch"))
        self._at_switch("ip", "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        self._at_switch("ip", "link", "set", "bridge", "up")
        for host in self.hosts:
            run("ip", "netns", "add", self.namespace(host))
            self.at(host, "ip", "link", "set", "lo", "up")
            for interface, port in (("eth0", _port(host)), ("eth1", f"{_port(host)}-no")):
                peer = ("peer", "name", interface, "netns", self.namespace(host))
                self._at_switch("ip", "link", "add", port, "type", "veth", *peer)
                self._at_switch("ip", "link", "set", port, "up")
                self.at(host, "ip", "link", "set", interface, "up")
            self._at_switch("ip", "link", "set", _port(host), "master", "bridge")
            self._at_switch("tc", "qdisc", "add", "dev", _port(host), "clsact")
            self.at(host, "ip", "addr", "add", f"{self.ip(host)}/24", "dev", "eth0")
            self.at(host, "ip", "addr", "add", f"{self.ip6(host)}/64", "dev", "eth0", "nodad")
            self.at(host, "ip", "addr", "add", f"{self.unreachable_ip(host)}/24", "dev", "eth1")
            self.shape(host, RATE)

    def remove(self) -> None:
        """End all processes on the hosts, and remove the namespaces."""
        for host in (*self.hosts, "switch"):
            _remove_namespace(self.namespace(host))
        for wire in self._wires.values():
            wire.wait()
        self._wires.clear()

    def at(self, host: str, *command: str) -> str:
        """Run a command on a host; return its output."""
        return run("ip", "netns", "exec", self.namespace(host), *command)

    def _at_switch(self, *command: str) -> str:
        return self.at("switch", *command)

    @contextmanager
    def on(self, host: str) -> Iterator[None]:
        """Have this thread, and those that it starts, use the network of a host."""
        with open(f"/proc/self/task/{threading.get_native_id()}/ns/net") as before:
            enter(self.namespace(host))
            try:
                yield
            finally:
                _set_namespace(before.fileno())

    # faults

    def cut(self, host: str) -> None:
        """Disconnect a host."""
        self._at_switch("ip", "link", "set", _port(host), "down")

    def shape(self, host: str, rate: str) -> None:
        """Set the rate of a link, in both directions."""
        bucket = ("root", "tbf", "rate", rate, "burst", BURST, "latency", LONGEST_QUEUE)
        self._at_switch("tc", "qdisc", "replace", "dev", _port(host), *bucket)
        self.at(host, "tc", "qdisc", "replace", "dev", "eth0", *bucket)

    def lose(self, host: str, percent: float, directions: Sequence[str] = ("to", "from")) -> None:
        """Drop a share of the packets, to or from a host, at random.

        With 100 % of one direction, connections are half open.
        """
        limit = min(int(percent / 100 * 2**32), 2**32 - 1)
        # load a random number; drop the packet (2) if it is below the limit, else go on (-1)
        program = f"4,32 0 0 4294963256,53 1 0 {limit},6 0 0 2,6 0 0 4294967295"
        for direction in directions:
            hook = {"to": "egress", "from": "ingress"}[direction]
            filtering = (
                "filter",
                "add",
                "dev",
                _port(host),
                hook,
                "bpf",
                "da",
                "bytecode",
                program,
            )
            self._at_switch("tc", *filtering)

    def delay(self, host: str, seconds: float, overtaking: float = 0.0) -> None:
        """Delay packets in both directions, except a share of them that overtake the others.

        ``tc`` can do this too, but only with a module that many kernels lack.
        """
        inner, outer = f"{_port(host)}-in", f"{_port(host)}-out"
        command = (sys.executable, str(WIRE), inner, outer, str(seconds), str(overtaking))
        wire = self._wires[host] = subprocess.Popen(
            ("ip", "netns", "exec", self.namespace("switch"), *command),
            stdout=subprocess.PIPE,
            text=True,
        )
        if wire.stdout is None or wire.stdout.readline() != "ready\n":
            raise OSError(f"{' '.join(command)} failed")
        bridge = f"{_port(host)}-br"
        self._at_switch("ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0")
        for port, master in ((_port(host), bridge), (inner, bridge), (outer, "bridge")):
            self._at_switch("ip", "link", "set", port, "master", master, "up")
        self._at_switch("ip", "link", "set", bridge, "up")

    def mend(self, host: str) -> None:
        """End all faults of the link of a host."""
        for hook in ("ingress", "egress"):
            self._at_switch("tc", "filter", "del", "dev", _port(host), hook)
        wire = self._wires.pop(host, None)
        if wire is not None:
            self._at_switch("ip", "link", "set", _port(host), "master", "bridge")
            self._at_switch("ip", "link", "del", f"{_port(host)}-br")
            wire.kill()
            wire.communicate()
        self.shape(host, RATE)
        self._at_switch("ip", "link", "set", _port(host), "up")


def _port(host: str) -> str:
    """Return the interface of the switch to a host."""
    return f"to-{host}"


def enter(namespace: str) -> None:
    """Have this thread, and those that it starts, use the network of a namespace."""
    with (NAMESPACES / namespace).open() as file:
        _set_namespace(file.fileno())


def replace_hosts_file(text: str) -> None:
    """Have this process, and no other, see another ``/etc/hosts``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "this process may not have mounts of its own")
    run("mount", "--make-rprivate", "/")
    with tempfile.NamedTemporaryFile("w", suffix="-hosts") as file:
        file.write(text)
        file.flush()
        os.chmod(file.name, 0o644)
        run("mount", "--bind", file.name, "/etc/hosts")


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "this thread may not enter the namespace")


def _remove_namespace(name: str) -> None:
    if not (NAMESPACES / name).exists():
        return
    for pid in map(int, run("ip", "netns", "pids", name).split()):
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    run("ip", "netns", "del", name)
