"""Convolutions of whole arrays by torch in double precision, and bounds of their errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

Array = Any


def conv2d_reference(x: Array, weight: Array, bias: Array | None, **options: Any) -> Array:
    """Convolve whole arrays in double precision.

    Images without channels give zeros. There torch adds no bias, and on some processors its result
    has no channels either.
    """
    if not x.shape[1]:
        shape = x.shape[0], options.get("groups", 1), *x.shape[2:]
        x, weight, bias = np.zeros(shape), np.zeros((len(weight), 1, *weight.shape[2:])), None
    x, weight, bias = (
        None if each is None else torch.tensor(each.astype("float64")) for each in (x, weight, bias)
    )
    if options.get("padding") == "same":  # torch warns if it pads the two ends differently
        dilation = np.broadcast_to(options.get("dilation", 1), 2)
        reach = [int(d) * (taps - 1) for d, taps in zip(dilation, weight.shape[2:], strict=True)]
        ends = [end for n in reversed(reach) for end in (n // 2, n - n // 2)]
        x, options = functional.pad(x, ends), {**options, "padding": 0}
    return functional.conv2d(x, weight, bias, **options).numpy()


def check_conv2d(value: Array, x: Array, weight: Array, bias: Array | None, **options: Any) -> None:
    """Compare with the reference, within the rounding errors of a sum of so many terms."""
    wanted = conv2d_reference(x, weight, bias, **options)
    sizes = conv2d_reference(
        *(each if each is None else abs(each) for each in (x, weight, bias)), **options
    )
    assert value.shape == wanted.shape
    assert value.dtype == x.dtype
    terms = int(np.prod(weight.shape[1:])) + 2
    half = x.dtype.itemsize == 2
    bound = float(ml_dtypes.finfo(x.dtype).eps) * (2 if half else terms) * sizes
    bound += float(ml_dtypes.finfo(x.dtype).smallest_subnormal)
    assert (abs(value.astype("float64") - wanted) <= bound).all()
