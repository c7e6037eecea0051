"""One current stream for CuPy and for torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import cupy
import torch

# It has no stubs, or other stubs from version to version.
torch_cuda: Any = torch.cuda


@contextmanager
def current_stream(device: torch.device) -> Iterator[None]:
    """Make CuPy's current stream torch's."""
    with cupy.cuda.Device(device.index):
        pointer = cupy.cuda.get_current_stream().ptr
        with torch_cuda.stream(_torchs(pointer, device)):
            yield


@lru_cache(maxsize=64)
def _torchs(pointer: int, device: torch.device) -> Any:
    """Return torch's view of a stream."""
    # torch takes 0, CuPy's default stream, for a wish for a new one
    if not pointer:
        return torch_cuda.default_stream(device)
    return torch_cuda.ExternalStream(pointer, device=device)
