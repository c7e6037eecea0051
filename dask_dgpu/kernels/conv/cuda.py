"""Convolutions by cuDNN, on CuPy's current stream, without copies between CuPy and torch.

The result stays in torch's memory.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import cupy
import torch
from torch.nn import functional
from torch.utils.dlpack import from_dlpack

from dask_dgpu.kernels.conv import torch_options
from dask_dgpu.torch_streams import torch_stream
from graph_opt.model.window import Convolution

Array = Any

# torch has no stubs for much of this, or stubs that vary from version to version.
torch_cuda: Any = torch.cuda
cudnn: Any = torch.backends.cudnn

_FLAGS = Lock()
"""Held while the flags of cuDNN, which all threads share, are set."""


def conv2d_cuda(x: Array, weight: Array, bias: Array | None, convolution: Convolution) -> Array:
    """Convolve images that are not empty."""
    options, zeros = torch_options(convolution)
    exact = {"benchmark": False, "deterministic": True, "allow_tf32": False}
    stream = torch_stream(cupy.cuda.get_current_stream().ptr, cupy.cuda.runtime.getDevice())
    with _FLAGS, torch_cuda.stream(stream), cudnn.flags(enabled=True, **exact):
        images, kernels = from_dlpack(x), from_dlpack(weight)
        added = None if bias is None else from_dlpack(bias)
        if zeros is not None:
            images = functional.pad(images, zeros)
        result = functional.conv2d(images, kernels, added, **options)
        return cupy.from_dlpack(result.contiguous())
