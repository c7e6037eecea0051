"""Three hosts of two workers, made of network namespaces as in ``tests/hosts``, for benchmarks."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

from tests.hosts.cluster import HostCluster, six_workers
from tests.hosts.conftest import HOSTS
from tests.hosts.network import Network, impossible, made

RANKS = 6


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the given options; end the process if hosts cannot be made here.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        It knows all options.

    Returns
    -------
    argparse.Namespace
        The options.
    """
    given = parser.parse_args()
    why = impossible()
    if why is not None:
        parser.error(f"expected a machine on which hosts can be made: {why}")
    return given


@contextmanager
def hosts(**settings: Any) -> Iterator[tuple[Network, HostCluster, Client]]:
    """Make the hosts and their cluster.

    Parameters
    ----------
    **settings
        Those of :func:`dask_dgpu.enable`.

    Yields
    ------
    Network, HostCluster, Client
        The client has the plugin enabled.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        made(HOSTS) as network,
        six_workers(network, Path(folder)) as cluster,
        cluster.enabled(**settings) as client,
    ):
        yield network, cluster, client
