"""Checks, views and reductions of buffers, for all transports.

The functions use only NumPy's ufuncs and the array's own methods. CuPy arrays support both, so
only :func:`settle` imports CuPy.
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
        raise ValueError(f"expected a C-contiguous buffer, got strides {buffer.strides}")
    return buffer.reshape(-1)


def as_bytes(buffer: Buffer) -> Buffer:
    """View a C-contiguous array of any dtype as its bytes."""
    return flat(buffer).view(np.uint8)


def settle(*buffers: Buffer) -> None:
    """Wait until the caller's stream has finished with the buffers."""
    if any(hasattr(buffer, "__cuda_array_interface__") for buffer in buffers):
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def pieces(buffer: Buffer, counts: Sequence[int]) -> list[Buffer]:
    """Cut a one-dimensional array into views of ``counts`` elements."""
    stops = list(accumulate(counts))
    return [buffer[stop - n : stop] for n, stop in zip(counts, stops, strict=True)]


def even_counts(total: int, parts: int) -> list[int]:
    """Divide ``total`` elements as evenly as integers allow, larger parts first."""
    each, rest = divmod(total, parts)
    return [each + (part < rest) for part in range(parts)]


def own_messages(
    rank: int, sends: Sequence[tuple[int, Buffer]], recvs: Sequence[tuple[int, Buffer]]
) -> list[tuple[Buffer, Buffer]]:
    """Return source and target of the messages of a batch from a rank to itself."""
    sources = [flat(buffer) for peer, buffer in sends if peer == rank]
    targets = [flat(buffer) for peer, buffer in recvs if peer == rank]
    sizes = [source.size for source in sources]
    if sizes != [target.size for target in targets]:
        raise ValueError(f"rank {rank} does not receive its own messages of {sizes} elements")
    return list(zip(sources, targets, strict=True))


def check_peers(peers: Sequence[int], size: int) -> None:
    """Refuse ranks that do not exist."""
    for peer in peers:
        if not 0 <= peer < size:
            raise ValueError(f"expected a rank from 0 to {size - 1}, got {peer}")


def check_gather(whole: Buffer, part: Buffer, size: int) -> None:
    """Refuse a ``whole`` that is not ``size`` times ``part``."""
    _check_dtypes(whole, part)
    if whole.size != size * part.size:
        raise ValueError(f"expected a whole of {size * part.size} elements, got {whole.size}")


def check_all_to_all(
    out: Buffer,
    out_counts: Sequence[int],
    whole: Buffer,
    in_counts: Sequence[int],
    rank: int,
    size: int,
) -> None:
    """Refuse counts that do not fit the buffers or the number of ranks."""
    _check_dtypes(whole, out)
    for buffer, counts in ((out, out_counts), (whole, in_counts)):
        if len(counts) != size or min(counts) < 0:
            raise ValueError(f"expected a count for each of {size} ranks, got {list(counts)}")
        if sum(counts) != buffer.size:
            raise ValueError(f"expected counts of {buffer.size} elements in all, got {sum(counts)}")
    if out_counts[rank] != in_counts[rank]:
        raise ValueError(
            f"rank {rank} sends itself {in_counts[rank]} elements, receives {out_counts[rank]}"
        )


def check_reduction(buffer: Buffer, op: Reduction) -> None:
    """Refuse an unknown reduction, and the minimum or maximum of complex numbers."""
    if op not in _UFUNCS:
        raise ValueError(f"expected a reduction of {sorted(_UFUNCS)}, got {op!r}")
    if op != "sum" and buffer.dtype.kind == "c":
        raise ValueError(f"complex numbers have no {op}")


def reduce_parts(out: Buffer, parts: Sequence[Buffer], op: Reduction) -> None:
    """Reduce ``parts`` into ``out``, from the first to the last.

    The order is fixed, so the bits of the result depend only on the parts. ``out`` may be the
    first part, but no other. For bool, the sum and the maximum are "or", the minimum is "and".
    """
    if out is not parts[0]:
        out[...] = parts[0]
    for part in parts[1:]:
        _UFUNCS[op](out, part, out=out)


def _check_dtypes(whole: Buffer, part: Buffer) -> None:
    if whole.dtype != part.dtype:
        raise ValueError(f"expected buffers of one dtype, got {whole.dtype} and {part.dtype}")
