"""CuPy's streams as torch sees them, so both work on one stream."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

torch_cuda: Any = torch.cuda  # torch has no stubs for much of this, or they vary by version


@lru_cache(maxsize=64)
def torch_stream(pointer: int, device: int) -> Any:
    """Return torch's view of the stream at an address on the device with an index."""
    # ExternalStream(0) would create a stream; 0 is CuPy's default stream
    if not pointer:
        return torch_cuda.default_stream(device)
    return torch_cuda.ExternalStream(pointer, device=device)
