"""The address at which ranks of other hosts reach a worker."""

from __future__ import annotations

from typing import Any

import pytest

from dask_dgpu.runtime.worker import host
from dask_dgpu.runtime.worker.host import own_host

OWN = "192.0.2.7"


@pytest.fixture
def this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with one address for others, whose hosts' file says 127.0.1.1 for its name."""
    names = {"me": "127.0.1.1", "known": OWN}

    def resolve(name: str, *args: Any, **kwargs: Any) -> list[Any]:
        if name.isalpha() and name not in names:
            raise OSError("unknown name")
        return [(0, 0, 0, "", (names.get(name, name), 0))]

    monkeypatch.setattr(host.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(host, "get_ip", lambda to: to if to.startswith(("127", ":")) else OWN)
    monkeypatch.setattr(host, "_is_own", lambda address: address.is_loopback or str(address) == OWN)


@pytest.mark.usefixtures("this_host")
@pytest.mark.parametrize("worker", [OWN, "known", "me", "unknown", "198.51.100.1", "127.0.0.1"])
def test_an_address_for_other_hosts(worker: str) -> None:
    assert own_host(f"tcp://{worker}:4000", "tcp://192.0.2.1:8786") == OWN


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_a_cluster_on_this_host(address: str) -> None:
    assert own_host(f"tcp://{address}:4000", f"tcp://{address}:8786") == address.strip("[]")
