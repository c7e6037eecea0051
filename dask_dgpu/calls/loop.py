"""Loops of which each iteration is a program, and which the workers run without the client.

A loop is one message: the workers decide alike when it ends. If an iteration is no program, each is
persisted, and the client decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import as_array, expected, integer
from dask_dgpu.calls.jit import NUMBERS, Step, listed, rebuilt
from dask_dgpu.kinds import of_functions_of_either_kind

Function = Callable[..., Any]


class Loop:
    """A loop over arrays, whose programs are kept.

    Parameters
    ----------
    cond : callable or None
        Returns of the arrays whether the loop goes on; ``None`` if it has a number of iterations.
    body : callable
        Returns the next arrays.
    """

    def __init__(self, cond: Function | None, body: Function) -> None:
        self._cond = cond
        self._body = body
        self._start = Step(self._started, ())
        self._advance = Step(self._advanced, ())

    def run(self, state: Sequence[Any], most: int) -> list[Array]:
        """Return the arrays after at most so many iterations."""
        size = len(state)
        arrays: list[Array] = self._start(*state)
        if not most:
            return arrays[:size]
        known = self._advance.known(tuple(arrays[:size]))
        if known is not None:
            from dask_dgpu.calls.result import looped  # which needs distributed

            return looped(*known, arrays, most, waits=self._cond is not None)
        for _ in range(most):
            if not all(map(bool, arrays[size:])):
                break
            arrays = self._advance(*arrays[:size])
        return arrays[:size]

    def clear(self) -> None:
        """Forget the programs."""
        self._start.clear()
        self._advance.clear()

    def _started(self, *state: Any) -> list[Array]:
        """Return the state as arrays, and whether the loop goes on."""
        like = next((each for each in state if isinstance(each, Array)), da.zeros(()))
        arrays = [each if isinstance(each, Array) else _number(each, like) for each in state]
        return arrays + self._goes_on(arrays)

    def _advanced(self, *state: Array) -> list[Array]:
        """Return the next state, and whether the loop goes on."""
        after: list[Any] = self._body(*state)
        if len(after) != len(state):
            raise TypeError(f"expected body to return {len(state)} arrays, got {len(after)}")
        for i, (old, new) in enumerate(zip(state, after, strict=True)):
            if not isinstance(new, Array) or _kind(new) != _kind(old):
                got = _kind(new) if isinstance(new, Array) else type(new).__name__
                raise TypeError(f"expected body to return {_kind(old)} at {i}, got {got}")
        return after + self._goes_on(after)

    def _goes_on(self, state: list[Array]) -> list[Array]:
        if self._cond is None:
            return []
        goes_on = self._cond(*state)
        if not isinstance(goes_on, Array) or goes_on.ndim or goes_on.dtype != bool:
            expected("the result of cond", "a Dask array of bool without axes", goes_on, TypeError)
        return [goes_on]


def _number(value: Any, like: Array) -> Array:
    """Return a number as an array, with the blocks of another."""
    like = like.real  # Dask warns if a complex one is like an integer
    return da.full_like(like, value, shape=(), chunks=(), dtype=np.asarray(value).dtype)


def _kind(array: Array) -> str:
    """Return what the arrays of a state keep."""
    return f"{array.dtype} in chunks {array.chunks} of {type(array._meta).__name__}"


@of_functions_of_either_kind
def while_loop(cond: Function, body: Function, state: Any, *, max_iterations: int) -> Any:
    """Call a function on its own result as long as a condition holds, on the workers.

    Parameters
    ----------
    cond : callable
        It takes the state, and returns a Dask array of bool without axes.
    body : callable
        It takes the state, and returns the next one, of the same chunks and dtypes.
    state : dask.array.Array, number, or tuple of these
        The first state. Numbers become arrays without axes, such as a counter of iterations.
    max_iterations : int
        The loop ends after so many iterations.

    Returns
    -------
    dask.array.Array or tuple of dask.array.Array
        The last state.

    Raises
    ------
    TypeError
        If ``cond`` or ``body`` cannot be called or return other arrays, or ``max_iterations`` is
        no integer.
    ValueError
        If ``max_iterations`` is negative.

    See Also
    --------
    fori_loop : Repeat a number of times.
    jit : Call a function of Dask arrays on the workers.

    Notes
    -----
    ``cond`` and ``body`` are plain Dask code, which is called only to make a program of each
    iteration. If they come from :func:`jit`, further loops of the same functions use the same
    program. The client sends one message, and hears of the workers at the end. Ctrl-C ends a loop
    for which the client waits. Errors are raised where a result is read.

    Without a cluster, or if an iteration is no single program, each is :func:`dask.persist`.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x, k = dgpu.while_loop(
    ...     lambda state: state[0].sum() < 100,
    ...     lambda state: (2 * state[0], state[1] + 1),
    ...     (da.ones(4, chunks=2), 0),
    ...     max_iterations=50,
    ... )
    >>> float(x.sum()), int(k)
    (128.0, 5)
    """
    for name, function in (("cond", cond), ("body", body)):
        if not callable(function):
            expected(name, "callable", function, TypeError)
    most = integer("max_iterations", max_iterations, 0)

    def create(kind: Any) -> Loop:
        goes_on, advanced = plain(cond), plain(body)
        return Loop(
            lambda *arrays: goes_on(rebuilt(kind, arrays)),
            lambda *arrays: listed(advanced(rebuilt(kind, arrays))),
        )

    loop = _kept(cond, body, state, create)
    return rebuilt(state, loop.run(_numbers(state), most))


@of_functions_of_either_kind
def fori_loop(n: int, body: Function, state: Any) -> Any:
    """Call a function a number of times on its own result, on the workers.

    Parameters
    ----------
    n : int
        The number of iterations.
    body : callable
        It takes the number of the iteration, an array of int64 without axes, and the state. It
        returns the next state, of the same chunks and dtypes.
    state : dask.array.Array, number, or tuple of these
        The first state. Numbers become arrays without axes.

    Returns
    -------
    dask.array.Array or tuple of dask.array.Array
        The last state.

    Raises
    ------
    TypeError
        If ``body`` cannot be called or returns other arrays, or ``n`` is no integer.
    ValueError
        If ``n`` is negative.

    See Also
    --------
    while_loop : Repeat as long as a condition holds; its notes apply here too.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> float(dgpu.fori_loop(4, lambda i, x: x + i, da.zeros(4, chunks=2)).sum())
    24.0
    """
    if not callable(body):
        expected("body", "callable", body, TypeError)
    most = integer("n", n, 0)

    def create(kind: Any) -> Loop:
        advanced = plain(body)
        return Loop(None, lambda i, *arrays: [i + 1, *listed(advanced(i, rebuilt(kind, arrays)))])

    _, *arrays = _kept(None, body, state, create).run([0, *_numbers(state)], most)
    return rebuilt(state, arrays)


def _numbers(state: Any) -> list[Any]:
    """Return the parts of a state, Dask arrays or numbers."""
    parts = listed(state)
    if not parts:
        expected("state", "an array, or a tuple of arrays", state)
    return [
        part if isinstance(part, (Array, *NUMBERS)) else as_array("state", part) for part in parts
    ]


def plain(function: Function) -> Function:
    """Return the function of the user that ``jit`` was called with."""
    return getattr(function, "__wrapped__", function) if isinstance(function, Step) else function


def _kept(cond: Function | None, body: Function, state: Any, create: Callable[[Any], Loop]) -> Loop:
    """Return the loop of these functions, which ends with the body if they come from ``jit``."""
    kind = rebuilt(state, [None] * len(listed(state)))
    if not isinstance(body, Step) or not isinstance(cond, Step | None):
        return create(kind)
    key = cond, type(kind)
    if key not in body.loops:
        body.loops[key] = create(kind)
    loop: Loop = body.loops[key]
    return loop
