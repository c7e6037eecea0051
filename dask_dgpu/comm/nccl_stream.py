"""One current stream for CuPy and for torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
        # torch takes 0, CuPy's default stream, for a wish for a new one
        stream = (
            torch_cuda.ExternalStream(pointer, device=device)
            if pointer
            else torch_cuda.default_stream(device)
        )
        with torch_cuda.stream(stream):
            yield
