"""One current stream for CuPy and for torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import cupy
import torch

# torch has no stubs for this, or stubs that vary from version to version.
torch_cuda: Any = torch.cuda


@contextmanager
def current_stream(device: torch.device) -> Iterator[None]:
    """Make CuPy's current stream torch's."""
    with cupy.cuda.Device(device.index):
        pointer = cupy.cuda.get_current_stream().ptr
        with torch_cuda.stream(_torch_stream(pointer, device)):
            yield


@lru_cache(maxsize=64)
def _torch_stream(pointer: int, device: torch.device) -> Any:
    """Return torch's view of a stream."""
    # ExternalStream(0) would create a stream; 0 is CuPy's default stream
    if not pointer:
        return torch_cuda.default_stream(device)
    return torch_cuda.ExternalStream(pointer, device=device)
