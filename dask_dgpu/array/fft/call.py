"""A call whose arguments are understood: Dask's own function, or a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from dask.array.core import Array
from dask.utils import typename

from dask_dgpu.algorithms.pencil_fft import Transform
from dask_dgpu.array.fft.long_axis import transform_axes
from dask_dgpu.array.inputs import check_chunk_sizes, check_container
from dask_dgpu.environment.settings import fft_output_layout
from graph_opt.model.node import CUPY

NAMES = (
    *("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"),
    *("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"),
)
# the name dask.array.fft is that of something else while array.query-planning is on
DASK_FFT = import_module("dask.array.fft")
DASKS_OWN = {name: getattr(DASK_FFT, name) for name in NAMES}


def transformed(
    name: str, x: Array, transforms: tuple[Transform, ...], arguments: Mapping[str, Any]
) -> Array:
    """Return the result of a call.

    Parameters
    ----------
    name : str
        Which function was called.
    x : dask.array.Array
        What it was called on.
    transforms : tuple of Transform
        What the other arguments mean.
    arguments : mapping of str to value
        The other arguments as they were given.
    """
    container = typename(type(x._meta))
    unknown = [axis for axis, length in enumerate(x.shape) if math.isnan(length)]
    whole = all(len(x.chunks[transform.axis]) == 1 for transform in transforms)
    plain = _understood_by_dask(arguments)
    # Dask calls its function on an empty CuPy array to see what comes out, which fails
    if whole and (container != CUPY or unknown) and (plain or not unknown):
        given = arguments if plain else _explicit(transforms, arguments)
        result: Array = DASKS_OWN[name](x, **given)
        return result
    return planned(name, x, transforms)


def planned(
    name: str, x: Array, transforms: tuple[Transform, ...], *, argument: str = "a"
) -> Array:
    """Return the result of a call by a plan; ``argument`` is what the caller calls ``x``."""
    check_chunk_sizes(argument, x)
    check_container(argument, x)
    return transform_axes(x, transforms, name, output_layout=fft_output_layout())


def _understood_by_dask(arguments: Mapping[str, Any]) -> bool:
    """Whether Dask and NumPy agree on what the arguments mean.

    Dask takes ``s`` literally in its chunks, entries of ``None`` and -1 too, and with
    ``s`` but no ``axes`` it counts axes from the start.
    """
    s = arguments.get("s")
    return s is None or (arguments["axes"] is not None and not {None, -1} & set(s))


def _explicit(transforms: tuple[Transform, ...], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    lengths = tuple(transform.n for transform in transforms)
    axes = tuple(transform.axis for transform in transforms)
    return {**arguments, "s": lengths, "axes": axes}
