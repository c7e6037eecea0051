"""Transforms with checked arguments: by Dask's own function, or by a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.algorithms.pencil_fft import Transform
from dask_dgpu.array.fft.long_axis import transform_axes
from dask_dgpu.array.inputs import check_chunk_sizes, check_container
from dask_dgpu.environment.settings import fft_output_layout
from graph_opt.model.layout import CUPY

NAMES = (
    *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
    *("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"),
)
# dask.array.fft is another object while array.query-planning is on
DASK_FFT = import_module("dask.array.fft")
DASKS_OWN = {name: getattr(DASK_FFT, name) for name in NAMES}
Function = TypeVar("Function", bound=Callable[..., Array])


def transformed(
    name: str, x: Array, transforms: tuple[Transform, ...], arguments: Mapping[str, Any]
) -> Array:
    """Return the result of the function ``name``.

    ``arguments`` are the user's arguments besides ``x``, ``transforms`` their meaning.
    """
    container = typename(type(x._meta))
    unknown = [axis for axis, length in enumerate(x.shape) if math.isnan(length)]
    whole = all(len(x.chunks[transform.axis]) == 1 for transform in transforms)
    same_in_dask = _same_in_dask(arguments)
    # Dask's function fails on CuPy: it calls itself on an empty array to infer the result
    if whole and (container != CUPY or unknown) and (same_in_dask or not unknown):
        given = arguments if same_in_dask else _explicit(transforms, arguments)
        result: Array = DASKS_OWN[name](x, **given)
        return result
    return planned(name, x, transforms)


def planned(
    name: str, x: Array, transforms: tuple[Transform, ...], *, argument: str = "a"
) -> Array:
    """Return the result by a plan; ``argument`` is the user's name of ``x``."""
    check_chunk_sizes(argument, x)
    check_container(argument, x)
    return transform_axes(x, transforms, name, output_layout=fft_output_layout())


def public(function: Function, module: str, name: str, doc: str) -> Function:
    """Return a function with the attributes of a public one, also for pickle."""
    function.__module__, function.__name__, function.__qualname__ = module, name, name
    function.__doc__ = doc
    return function


def _same_in_dask(arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments mean the same to Dask and to NumPy.

    Dask's chunks take entries of ``None`` and -1 in ``s`` literally. With ``s`` but no
    ``axes`` Dask counts axes from the start.
    """
    s = arguments.get("s")
    return s is None or (arguments["axes"] is not None and not {None, -1} & set(s))


def _explicit(transforms: tuple[Transform, ...], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    lengths = tuple(transform.n for transform in transforms)
    axes = tuple(transform.axis for transform in transforms)
    return {**arguments, "s": lengths, "axes": axes}
