"""The hosts of members, by their addresses."""

from __future__ import annotations

from dask_dgpu.runtime.scheduler.rates import slowest
from dask_dgpu.runtime.scheduler.run import by_host, member_hosts


def test_members_are_ordered_host_by_host() -> None:
    members = ("tcp://10.0.0.2:1", "tcp://10.0.0.1:1", "tcp://10.0.0.2:2", "tls://[fd00::1]:7")
    ordered = by_host(members)
    assert ordered == (members[0], members[2], members[1], members[3])
    assert member_hosts(ordered) == (2, 1, 1)
    assert member_hosts(members) == ()  # not host by host
    assert member_hosts(ordered[:2]) == ()  # one host


def test_a_rank_alone_on_its_host_lacks_figures_within() -> None:
    answers = [{"latency": 1.0, "host_bandwidth": 3.0}, {"latency": 2.0, "bandwidth": 5.0}]
    assert slowest(answers) == {"latency": 2.0, "host_bandwidth": 3.0, "bandwidth": 5.0}
