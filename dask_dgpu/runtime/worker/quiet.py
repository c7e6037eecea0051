"""Let workers close without warnings about tasks that measure a cluster, and at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dask_dgpu.runtime.background import exit_quickly

if TYPE_CHECKING:
    from distributed.worker import Worker

MEASUREMENT = "dgpu-measure"
"""Prefix of the keys of tasks that measure a cluster."""

STATE_MACHINE = logging.getLogger("distributed.worker.state_machine")
"""Warns of each task that a closing worker interrupts."""


def ignore_measurements() -> None:
    """Let a worker close without a warning while tasks measure the cluster."""
    STATE_MACHINE.addFilter(_matters)


def close_quietly(worker: Worker) -> None:
    """Let a worker close without warnings, and its process end quickly unless it is a user's."""
    ignore_measurements()
    if worker.nanny is not None:
        exit_quickly()


def _matters(record: logging.LogRecord) -> bool:
    return MEASUREMENT not in record.getMessage()
