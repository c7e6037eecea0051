"""What is transformed where: the frozen plan of a transform along several axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from graph_opt.model.dtype import real_of
from graph_opt.model.layout import even_spans

Chunks = tuple[tuple[int, ...], ...]

FOURIER = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
TRIGONOMETRIC = ("dct1", "dct2", "dct3", "dct4", "dst1", "dst2", "dst3", "dst4")
KINDS = FOURIER + TRIGONOMETRIC
TO_HALF_COMPLEX = ("rfft", "ihfft")
TO_REAL = ("irfft", "hfft")


@dataclass(frozen=True)
class Transform:
    """One discrete Fourier, cosine or sine transform along one axis.

    Parameters
    ----------
    kind : str
        A function of ``numpy.fft``: ``"fft"``, ``"ifft"``, ``"rfft"``, ``"irfft"``, ``"hfft"``
        or ``"ihfft"``; or ``"dct"`` or ``"dst"`` of ``scipy.fft`` and the type, from
        ``"dct1"`` to ``"dst4"``.
    axis : int
        The axis, from 0.
    n : int
        Length of the transform: of its input after cropping or padding, or of its
        output for ``irfft`` and ``hfft``.
    norm : {"backward", "ortho", "forward"}, optional
        As in ``numpy.fft`` and ``scipy.fft``.

    Raises
    ------
    ValueError
        When the kind is unknown or ``n`` is less than 1, or than 2 for ``"dct1"``.
    """

    kind: str
    axis: int
    n: int
    norm: str = "backward"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}, it must be one of {', '.join(KINDS)}")
        least = 2 if self.kind == "dct1" else 1
        if self.n < least:
            raise ValueError(f"n is {self.n}, it must be at least {least} for {self.kind}")

    @property
    def input_length(self) -> int:
        """Elements of the input along the axis that are used at most."""
        return self.n // 2 + 1 if self.kind in TO_REAL else self.n

    @property
    def output_length(self) -> int:
        """Length of the output along the axis."""
        return self.n // 2 + 1 if self.kind in TO_HALF_COMPLEX else self.n

    @property
    def flops(self) -> float:
        """Floating-point operations a line, by the usual estimate."""
        complex_flops = 5 * self.n * math.log2(self.n)
        return complex_flops if self.kind in ("fft", "ifft") else complex_flops / 2

    def output_dtype(self, dtype: str) -> str:
        """Return the dtype that NumPy, or SciPy, gives the result for input of a dtype."""
        if self.kind in TRIGONOMETRIC:
            least = np.float64 if np.dtype(dtype).kind in "biu" else np.float32
            return np.result_type(np.dtype(dtype), least).name
        if self.kind in TO_REAL:
            real = real_of(dtype)
            return np.result_type(real, 1.0).name
        return np.result_type(np.dtype(dtype), 1j).name


@dataclass(frozen=True)
class Stage:
    """Transforms that each block does for itself.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Chunks of the array that the stage reads; a single one along each axis
        that it transforms.
    transforms : tuple of Transform
        In the order in which they are done.
    """

    chunks: Chunks
    transforms: tuple[Transform, ...]

    @property
    def output_chunks(self) -> Chunks:
        """Chunks of the array that the stage makes."""
        return transformed(self.chunks, self.transforms)


@dataclass(frozen=True)
class Exchange:
    """An array that changes its chunks between two stages.

    Parameters
    ----------
    source, target : tuple of tuple of int
        Chunks before and after. Where ``target`` is the shorter along an axis, what
        is beyond its end is left out.
    dtype : str
        The dtype of the array.
    """

    source: Chunks
    target: Chunks
    dtype: str

    @property
    def local(self) -> bool:
        """Whether every block stays what it is, or is cropped at most."""
        return all(
            len(new) <= len(old)
            and new[:-1] == old[: len(new) - 1]
            and new[-1] <= old[len(new) - 1]
            for old, new in zip(self.source, self.target, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the array after it."""
        return math.prod(shape_of(self.target)) * np.dtype(self.dtype).itemsize

    def moved(self, ranks: int) -> float:
        """Return the bytes that all ranks together are expected to send.

        Ranks form a mesh over the blocks. Nothing crosses a cut that stays, so ranks
        are in groups that exchange nothing with each other, and in a group of ``g``
        each rank keeps one in ``g`` of what it has. Fewer ranks than blocks are taken to
        have a mesh of the same proportions.
        """
        if self.local:
            return 0.0
        pairs = zip(self.source, self.target, strict=True)
        kept = math.prod(1 + len(_cuts(old) & _cuts(new)) for old, new in pairs)
        blocks = math.prod(map(len, self.target))
        groups = min(ranks, blocks) ** (math.log(kept) / math.log(blocks)) if kept > 1 else 1
        return self.nbytes * (1 - groups / ranks)


@dataclass(frozen=True)
class PencilPlan:
    """The plan of a transform along some axes of an array.

    Before each stage, and after the last, the array changes to the chunks that come
    next, where they differ from those it has: :attr:`exchanges` lists these steps.

    Parameters
    ----------
    input_chunks : tuple of tuple of int
        Chunks of the input.
    dtype : str
        The dtype of the input.
    stages : tuple of Stage
        What is done, in order.
    output_chunks : tuple of tuple of int
        Chunks of the output.
    output_dtype : str
        The dtype of the output, that which NumPy gives it.
    """

    input_chunks: Chunks
    dtype: str
    stages: tuple[Stage, ...]
    output_chunks: Chunks
    output_dtype: str

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What happens before each stage and after the last, which may be nothing."""
        return tuple(self._exchanges())

    def _exchanges(self) -> Iterator[Exchange]:
        chunks, dtype = self.input_chunks, self.dtype
        for stage in self.stages:
            yield Exchange(chunks, stage.chunks, dtype)
            chunks, dtype = stage.output_chunks, result_dtype(dtype, stage.transforms)
        yield Exchange(chunks, self.output_chunks, dtype)

    def moved(self, ranks: int) -> float:
        """Return the bytes that so many ranks are expected to send, all together."""
        return sum(exchange.moved(ranks) for exchange in self.exchanges)

    @property
    def flops(self) -> float:
        """Floating-point operations, by the usual estimate."""
        total = 0.0
        for stage in self.stages:
            shape = list(shape_of(stage.chunks))
            for transform in stage.transforms:
                lines = math.prod(shape[: transform.axis] + shape[transform.axis + 1 :])
                total += lines * transform.flops
                shape[transform.axis] = transform.output_length
        return total


def _cuts(sizes: tuple[int, ...]) -> set[int]:
    """Return where an axis is cut, its ends left out."""
    return set(itertools.accumulate(sizes[:-1]))


def even_chunks(length: int, parts: int) -> tuple[int, ...]:
    """Return up to so many chunks of an axis, whose lengths differ by one at most."""
    return tuple(hi - lo for lo, hi in even_spans(0, length, max(1, min(parts, length))))


def shape_of(chunks: Chunks) -> tuple[int, ...]:
    """Return the length of each axis."""
    return tuple(sum(sizes) for sizes in chunks)


def transformed(chunks: Chunks, transforms: Iterable[Transform]) -> Chunks:
    """Return the chunks after some transforms."""
    lengths = {transform.axis: transform.output_length for transform in transforms}
    return tuple(
        (lengths[axis],) if axis in lengths else sizes for axis, sizes in enumerate(chunks)
    )


def result_dtype(dtype: str, transforms: Iterable[Transform]) -> str:
    """Return the dtype after some transforms, as NumPy gives it."""
    for transform in transforms:
        dtype = transform.output_dtype(dtype)
    return dtype
