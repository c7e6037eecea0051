"""Convolutions of images on one device, by torch: oneDNN on the CPU, cuDNN on a GPU.

Images are arrays of shape (images, channels, rows, columns). torch is imported at the first call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graph_opt.model.window import Convolution

Array = Any


def conv2d(x: Array, weight: Array, bias: Array | None, convolution: Convolution) -> Array:
    """Convolve images, on the current stream if they are CuPy's.

    Parameters
    ----------
    x : numpy.ndarray or cupy.ndarray
        Images of any strides, float16, bfloat16, float32 or float64.
    weight : numpy.ndarray or cupy.ndarray
        Kernels of shape (output channels, channels of a group, rows, columns), of the same dtype.
    bias : numpy.ndarray or cupy.ndarray, optional
        A number for each output channel.
    convolution : Convolution
        Its parameters. The padding before and after an axis may differ.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        New, C-contiguous, of the dtype of ``x``.

    Raises
    ------
    ImportError
        If torch is not installed.

    Notes
    -----
    On a CPU half precision is computed in single precision and rounded once. On a GPU the
    algorithm is deterministic, and float32 does not become TF32.
    """
    rows, columns = (
        axis.results(length) for axis, length in zip(convolution.axes, x.shape[2:], strict=True)
    )
    shape = x.shape[0], weight.shape[0], rows, columns
    if not (x.size and weight.size):  # no images, padding alone, or no channels
        out = np.zeros(shape, x.dtype, like=x)
        if bias is not None and weight.size:  # torch adds none to images without channels
            out += bias[:, None, None]
        return out
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError("conv2d needs torch: pip install 'dask-dgpu[torch]'") from error
    if isinstance(x, np.ndarray):
        from dask_dgpu.kernels.conv.host import conv2d_host

        return conv2d_host(x, weight, bias, convolution, shape)
    from dask_dgpu.kernels.conv.cuda import conv2d_cuda

    return conv2d_cuda(x, weight, bias, convolution)


def torch_options(convolution: Convolution) -> tuple[dict[str, Any], list[int] | None]:
    """Return the options of torch's function, and the zeros to add first, as torch's ``pad`` does.

    torch pads both ends of an axis alike; then nothing is added first.
    """
    rows, columns = convolution.axes
    even = all(axis.padding[0] == axis.padding[1] for axis in convolution.axes)
    options = {
        "stride": (rows.stride, columns.stride),
        "padding": (rows.padding[0], columns.padding[0]) if even else 0,
        "dilation": (rows.dilation, columns.dilation),
        "groups": convolution.groups,
    }
    return options, None if even else [*columns.padding, *rows.padding]
