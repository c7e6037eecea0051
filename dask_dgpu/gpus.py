"""Counting GPUs without touching CUDA."""

from __future__ import annotations

import os


def count_gpus() -> int:
    """Return the number of GPUs that this process may use; 0 without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library and no driver both mean that there is no GPU
        return 0
    try:
        present = int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    named = [part for part in visible.split(",") if part.strip() not in ("", "-1")]
    return min(present, len(named))
