"""What every transport does with buffers: check, flatten, reduce in fixed order.

The functions use NumPy's ufuncs and the array's own methods alone. CuPy arrays
answer to both, so they are served without importing CuPy, but for :func:`settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dask_dgpu.comm.protocol import Buffer, Reduction

_UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def flat(buffer: Buffer) -> Buffer:
    """View a C-contiguous array as one-dimensional."""
    if not buffer.flags.c_contiguous:
        raise ValueError("A communication buffer must be C-contiguous.")
    return buffer.reshape(-1)


def as_bytes(buffer: Buffer) -> Buffer:
    """View a C-contiguous array of any dtype as its bytes."""
    return flat(buffer).view(np.uint8)


def settle(*buffers: Buffer) -> None:
    """Let the caller's stream finish with the buffers before others than it use them."""
    if any(hasattr(buffer, "__cuda_array_interface__") for buffer in buffers):
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def pieces(buffer: Buffer, counts: Sequence[int]) -> list[Buffer]:
    """Cut a one-dimensional array into views of ``counts`` elements."""
    stops = list(accumulate(counts))
    return [buffer[stop - n : stop] for n, stop in zip(counts, stops, strict=True)]


def even_counts(total: int, parts: int) -> list[int]:
    """Part ``total`` elements as evenly as integers allow, larger parts first."""
    each, rest = divmod(total, parts)
    return [each + (part < rest) for part in range(parts)]


def check_peers(peers: Sequence[int], size: int) -> None:
    """Refuse ranks that do not exist."""
    for peer in peers:
        if not 0 <= peer < size:
            raise ValueError(f"There is no rank {peer} among {size} ranks.")


def check_gather(whole: Buffer, part: Buffer, size: int) -> None:
    """Refuse a ``whole`` that is not ``size`` times ``part``."""
    if whole.dtype != part.dtype:
        raise ValueError(f"The dtypes {whole.dtype} and {part.dtype} differ.")
    if whole.size != size * part.size:
        raise ValueError(
            f"The whole has {whole.size} elements instead of {size} times {part.size}."
        )


def check_all_to_all(
    out: Buffer,
    out_counts: Sequence[int],
    whole: Buffer,
    in_counts: Sequence[int],
    rank: int,
    size: int,
) -> None:
    """Refuse counts that do not fit the buffers or the number of ranks."""
    if whole.dtype != out.dtype:
        raise ValueError(f"The dtypes {whole.dtype} and {out.dtype} differ.")
    for buffer, counts in ((out, out_counts), (whole, in_counts)):
        if len(counts) != size or min(counts) < 0:
            raise ValueError(f"One count for each of {size} ranks is needed.")
        if sum(counts) != buffer.size:
            raise ValueError(
                f"The counts add up to {sum(counts)}, but the buffer has {buffer.size} elements."
            )
    if out_counts[rank] != in_counts[rank]:
        raise ValueError("The counts of what a rank sends to itself differ.")


def check_reduction(buffer: Buffer, op: Reduction) -> None:
    """Refuse an unknown reduction, and the order that complex numbers lack."""
    if op not in _UFUNCS:
        raise ValueError(f"There is no reduction {op!r}.")
    if op != "sum" and buffer.dtype.kind == "c":
        raise ValueError(f"Complex numbers have no {op}.")


def reduce_parts(out: Buffer, parts: Sequence[Buffer], op: Reduction) -> None:
    """Reduce ``parts`` into ``out``, from the first to the last.

    The order is fixed, so the bits of the result depend on nothing but the
    parts. ``out`` may be the first part, but no other. For bool, the sum and
    the maximum are "or", the minimum is "and".
    """
    if out is not parts[0]:
        out[...] = parts[0]
    for part in parts[1:]:
        _UFUNCS[op](out, part, out=out)
