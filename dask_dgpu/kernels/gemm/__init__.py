"""Matrix multiplication ``out += a @ b`` on one device, without a temporary as large as ``out``.

Factors are read where they lie: transposed, or parts of larger arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

Array = Any
Call = Callable[..., None]
"""``call(routine, dtype, *arguments)`` calls BLAS or cuBLAS.

Their arguments have the same order: options as strings, integers, and arrays for addresses.
"""

BLAS = ("float32", "float64", "complex64", "complex128")
"""The dtypes of BLAS."""

SLAB_BYTES = 1 << 20
"""Approximate size of the temporaries of integer products."""


SMALL_BYTES = 1 << 15
"""Size of a product on a host for which a call takes about as long as the product."""


def factor_dtype(kind: str, dtype: str) -> str:
    """Return the dtype of the factors of a product of ``dtype`` on a kind of device."""
    return "float32" if kind == "cpu" and dtype == "float16" else dtype  # no BLAS has float16


def accumulate(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out``, on the current stream if the arrays are CuPy's.

    Parameters
    ----------
    out : numpy.ndarray or cupy.ndarray
        Of shape (m, n), with adjacent elements in each row. On a GPU float32 if the factors are
        float16, else of their dtype.
    a, b : numpy.ndarray or cupy.ndarray
        Of shapes (m, k) and (k, n) and the dtype :func:`factor_dtype`. Factors are copied unless
        rows or columns have adjacent elements.

    Notes
    -----
    BLAS and cuBLAS add in place: BLAS without the GIL, cuBLAS in full precision, no TF32. NumPy's
    loops and CuPy's own kernel multiply integers and booleans, which wrap around as in NumPy.
    """
    if 0 in (*out.shape, a.shape[1]):
        return
    on_host = isinstance(out, np.ndarray)
    if not on_host and a.dtype == np.float16:
        from dask_dgpu.kernels.gemm.cuda import accumulate_half

        accumulate_half(out, a, b)
    elif out.dtype.name not in BLAS:
        accumulate_slabs(out, a, b, SLAB_BYTES if on_host else SLAB_BYTES << 8)
    elif on_host:
        from dask_dgpu.kernels.gemm.host import accumulate_host

        accumulate_host(out, *(each.astype(out.dtype, copy=False) for each in (a, b)))
    else:
        from dask_dgpu.kernels.gemm.cuda import accumulate_cuda

        accumulate_cuda(out, *(each.astype(out.dtype, copy=False) for each in (a, b)))


def accumulate_group(products: Sequence[tuple[Array, Array, Array]]) -> None:
    """Add ``a @ b`` to ``out`` for each ``(out, a, b)``, as :func:`accumulate` for each.

    Parameters
    ----------
    products : sequence of tuple
        Arrays of one device. No two of ``out`` share memory.

    Notes
    -----
    cuBLAS multiplies small blocks of one shape in one launch: a launch takes longer than such a
    product. Large ones are launched alone, because cuBLAS splits only these over the whole GPU, and
    so are products with a vector, for which it has a quicker routine.
    """
    if len(products) > 1 and not isinstance(products[0][0], np.ndarray):
        from dask_dgpu.kernels.gemm.cuda import accumulate_batches

        products = accumulate_batches(products)
    for product in products:
        accumulate(*product)


def accumulate_stack(out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out`` for stacks of matrices, as :func:`accumulate` for each matrix.

    Parameters
    ----------
    out, a, b : numpy.ndarray or cupy.ndarray
        Of shapes (batch, m, n), (batch, m, k) and (batch, k, n), and dtypes as there.

    Notes
    -----
    Small matrices are multiplied in one call for many, through a temporary.
    """
    on_host = isinstance(out, np.ndarray)
    each, small = out[:1].nbytes, SMALL_BYTES if on_host else SLAB_BYTES
    if each > small or a.dtype != out.dtype or not (on_host or out.dtype.name in BLAS):
        for matrices in zip(out, a, b, strict=True):
            accumulate(*matrices)
        return
    step = max(1, SLAB_BYTES // max(1, each))
    for first in range(0, len(out), step):
        some = slice(first, first + step)
        out[some] += a[some] @ b[some]


def column_major(matrix: Array) -> tuple[str, int, Array]:
    """Return how a column-major library reads a matrix: "N" or "T", leading dimension, and array.

    The array is the matrix, or a copy if neither its rows nor its columns have adjacent elements.
    """
    rows, columns = matrix.shape
    down, right = (stride // matrix.itemsize for stride in matrix.strides)
    whole = not any(stride % matrix.itemsize for stride in matrix.strides)
    if whole and (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return "N", max(rows, right) if columns > 1 else rows, matrix
    if whole and (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return "T", max(columns, down) if rows > 1 else columns, matrix
    return "N", rows, matrix.copy(order="F")


def accumulate_slabs(out: Array, a: Array, b: Array, nbytes: int) -> None:
    """Add ``a @ b`` to ``out`` through temporaries of about this size, slabs of rows."""
    rows = max(1, nbytes // (out.shape[1] * out.itemsize))
    for top in range(0, out.shape[0], rows):
        slab = out[top : top + rows]
        slab += a[top : top + rows] @ b


@cache
def one_of(dtype: np.dtype[Any]) -> Array:
    """Return the factor 1 of a dtype, in memory for the library to read."""
    one = np.ones(1, dtype)
    one.flags.writeable = False
    return one


def add_product(call: Call, out: Array, a: Array, b: Array) -> None:
    """Add ``a @ b`` to ``out`` by the library's product, ``out.T += b.T @ a.T``."""
    (m, k), n, dtype = a.shape, b.shape[1], out.dtype
    (left, ld_left, b), (right, ld_right, a) = column_major(b.T), column_major(a.T)
    ld_out = max(n, out.strides[0] // out.itemsize)
    one = one_of(dtype)
    call("gemm", dtype, left, right, n, m, k, one, b, ld_left, a, ld_right, one, out, ld_out)


def add_vector(call: Call, out: Array, matrix: Array, vector: Array) -> None:
    """Add ``matrix @ vector`` to ``out`` by the library's product of these."""
    option, leading, matrix = column_major(matrix)
    shape = matrix.shape if option == "N" else matrix.shape[::-1]
    steps = [max(1, each.strides[0] // each.itemsize) for each in (vector, out)]
    if vector.size > 1 and vector.strides[0] != steps[0] * vector.itemsize:
        vector, steps[0] = vector.copy(), 1
    one, (step, out_step) = one_of(out.dtype), steps
    given = one, matrix, leading, vector, step, one, out, out_step
    call("gemv", out.dtype, option, *shape, *given)
