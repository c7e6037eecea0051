"""What iterative solvers share: operators, their programs, and the system of equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import as_array, check_chunk_sizes, check_dtype, expected
from dask_dgpu.calls.jit import Step
from dask_dgpu.calls.loop import Loop, plain

Operator = Callable[[Array], Array] | int | None
"""A function, or the place of its matrix; ``None`` for the identity."""


class Method:
    """The programs of a method with some operators: its start, and the loop.

    ``started`` returns the first state, ``goes_on`` whether the loop goes on from a state, and
    ``advanced`` the next one. At the end of a state are the matrices of the operators.
    """

    started: Callable[..., list[Array]]
    goes_on: Callable[..., Array]
    advanced: Callable[..., list[Array]]

    def __init__(self, *operators: Operator) -> None:
        self.operators = operators
        self.start = Step(self.started, ())
        self.loop = Loop(self.goes_on, self.advanced)

    def clear(self) -> None:
        """Forget the programs."""
        self.start.clear()
        self.loop.clear()

    def times(self, at: int, x: Array, matrices: Sequence[Array]) -> Array:
        """Return what an operator makes of an array, in its chunks and dtype."""
        operator = self.operators[at]
        if operator is None:
            return x
        product = matrices[operator] @ x if isinstance(operator, int) else operator(x)
        return like("the result of a function", product, x)


Kind = TypeVar("Kind", bound=Method)

OF_MATRICES: dict[Any, Any] = {}
"""The programs of methods whose operators are all matrices."""


def like(name: str, found: Any, x: Array) -> Array:
    """Return an array in the chunks and dtype of another one of its shape."""
    if not isinstance(found, Array) or found.shape != x.shape:
        expected(name, f"a Dask array of shape {x.shape}", found)
    return found.astype(x.dtype).rechunk(x.chunks)


def conj(x: Array) -> Array:
    """Return the conjugate; of real numbers, the array itself."""
    return x.conj() if x.dtype.kind == "c" else x


def dot(x: Array, y: Array) -> Array:
    """Return the inner product."""
    return (conj(x) * y).sum()


def norm(x: Array) -> Array:
    """Return the 2-norm."""
    return da.sqrt(dot(x, x).real)


def kept(kind: type[Kind], *operators: Any) -> Kind:
    """Return a method's programs for arrays, functions or none.

    They are kept, unless one is a function that does not come from ``jit``.
    """
    matrices = iter(range(len(operators)))
    places = tuple(
        next(matrices) if isinstance(operator, Array) else operator for operator in operators
    )
    functions = [place for place in places if callable(place)]
    created = kind(*(plain(place) if callable(place) else place for place in places))
    if not all(isinstance(function, Step) for function in functions):
        return created
    where = functions[0].loops if functions else OF_MATRICES
    method: Kind = where.setdefault((kind, places), created)
    return method


def system(A: Any, b: Any, x0: Any, M: Any) -> tuple[Array, Array | int, list[Array]]:
    """Return the right side and the first guess in one dtype and chunks, and the matrices.

    Raises
    ------
    TypeError
        If ``A`` or ``M`` are neither arrays nor callable, or arguments are not of numbers.
    ValueError
        If shapes do not fit, or chunk sizes are unknown.
    """
    b = as_array("b", b)
    first = None if x0 is None else as_array("x0", x0)
    for name, each in (("A", A), ("M", M)):
        if not isinstance(each, Array):
            if not callable(each) and (each is not None or name == "A"):
                expected(name, "a Dask array or callable", each, TypeError)
        elif b.ndim != 1 or each.shape != 2 * b.shape:
            expected(name, f"a square matrix for b of shape {b.shape}", each)
    for name, each in (("b", b), ("x0", first)):
        if each is not None:
            check_dtype(name, each)
            check_chunk_sizes(name, each)
            if each.shape != b.shape:
                expected(name, f"of shape {b.shape}", each)
    kinds = [b, A if isinstance(A, Array) else plain(A)(b), *([] if first is None else [first])]
    chunks = (A.chunks[0],) if isinstance(A, Array) else b.chunks
    dtype = dtype_of(*kinds)
    guess = 0 if first is None else first.astype(dtype).rechunk(chunks)
    return b.astype(dtype).rechunk(chunks), guess, [x for x in (A, M) if isinstance(x, Array)]


def dtype_of(*arrays: Array) -> np.dtype[Any]:
    """Return the dtype of floats in which to solve."""
    dtype = np.result_type(*(array.dtype for array in arrays))
    return dtype if dtype.char in "fdFD" else np.result_type(dtype, np.float64)
