"""Drop warnings of Dask about tasks that measure a cluster."""

from __future__ import annotations

import logging

MEASUREMENT = "dgpu-measure"
"""Prefix of the keys of tasks that measure a cluster."""

STATE_MACHINE = logging.getLogger("distributed.worker.state_machine")
"""Warns of each task that a closing worker interrupts."""


def ignore_measurements() -> None:
    """Let a worker close without a warning while tasks measure the cluster."""
    STATE_MACHINE.addFilter(_matters)


def _matters(record: logging.LogRecord) -> bool:
    return MEASUREMENT not in record.getMessage()
