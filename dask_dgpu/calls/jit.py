"""Functions of Dask arrays that the workers keep as programs, and call.

Examples
--------
>>> import dask.array as da, dask_dgpu as dgpu
>>> step = dgpu.jit(lambda x, rate: x - rate * x)
>>> x = da.ones((4, 6), chunks=2)
>>> for _ in range(3):
...     x = step(x, 0.5)
>>> float(x.sum())
3.0
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from operator import index
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import dask
from dask.array.core import Array
from dask.base import persist

from dask_dgpu.arguments import expected
from dask_dgpu.kinds import as_dasks, as_expressions, is_expression, taking_expressions
from dask_dgpu.observe.explain import Explanation, explain
from dask_dgpu.optimizer import GraphOptimizer

if TYPE_CHECKING:
    from dask_dgpu.calls.ranks.calls import Ranks
    from dask_dgpu.calls.trace import Program

logger = logging.getLogger(__name__)

MOST_PROGRAMS = 64
"""Number of programs that a function keeps."""

NUMBERS = (bool, int, float, complex)

TRACED: ContextVar[bool] = ContextVar("TRACED", default=False)
"""Whether a program is being made; functions that are called for it are a part of it."""


class Step:
    """A function of Dask arrays whose calls are messages to the workers; see :func:`jit`.

    Parameters
    ----------
    function : callable
        The function.
    donate : tuple of int
        The positions of arrays that are not used after a call.
    """

    def __init__(self, function: Callable[..., Any], donate: tuple[int, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._donate = donate
        self._programs: dict[Any, Program | str] = {}
        self._ranks: WeakSet[Ranks] = WeakSet()  # with programs
        self.loops: dict[Any, Any] = {}  # those of which it is the body

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; return what it returns, with arrays that stay on the workers.

        Raises
        ------
        TypeError
            If an argument is neither a Dask array nor a number.
        GangError
            If an array was donated to an earlier call, or is lost and cannot be computed again.
        """
        if any(map(is_expression, arguments)):
            return as_expressions(self.of_dasks(*as_dasks(arguments)))
        for i, argument in enumerate(arguments):
            if not isinstance(argument, (Array, *NUMBERS)):
                expected(f"argument {i}", "a Dask array or a number", argument, TypeError)
        if TRACED.get():
            return self._function(*arguments)
        if (known := self.known(arguments)) is not None:
            from dask_dgpu.calls.result import called

            returned = known[1].returned
            return rebuilt(returned, called(*known, arguments, self._donate))
        returned = self._function(*arguments)
        return rebuilt(returned, persist(*listed(returned)))

    @functools.cached_property
    def of_dasks(self) -> Step:
        """The same for a function of dask_array's arrays, but it takes Dask's."""
        return Step(taking_expressions(self._function), self._donate)

    def lower(self, *arguments: Any) -> Explanation:
        """Return how the workers would compute a call; see :func:`explain`."""
        return explain(*listed(self._function(*arguments)))

    def clear(self) -> None:
        """Forget all programs, here and on the workers."""
        programs = [program for program in self._programs.values() if not isinstance(program, str)]
        self._programs.clear()
        for ranks in self._ranks:
            ranks.forget(programs)
        self._ranks.clear()
        for loop in self.loops.values():
            loop.clear()
        self.loops.clear()

    def known(self, arguments: tuple[Any, ...]) -> tuple[Ranks, Program] | None:
        """Return the ranks and the program of a call, ``None`` if it is persisted."""
        planner = dask.config.get("array_optimize", None)
        if TRACED.get() or not isinstance(planner, GraphOptimizer) or not planner.facts.workers:
            return None
        from dask_dgpu.calls.result import ranks_of  # which needs distributed

        ranks = ranks_of(planner)
        program = "" if ranks is None else self._program(arguments, planner, ranks)
        if ranks is None or isinstance(program, str):
            return None
        self._ranks.add(ranks)
        return ranks, program

    def _program(
        self, arguments: tuple[Any, ...], planner: GraphOptimizer, ranks: Ranks
    ) -> Program | str:
        """Return the program for arguments like these, or why there is none."""
        from dask_dgpu.calls.trace import NotOneProgramError, trace

        kinds = tuple(map(_kind, arguments))
        values = *kinds, *(value for value in arguments if type(value) is float)
        keys = (planner, kinds), (planner, values)
        key = next((key for key in keys if key in self._programs), None)
        if key is None:
            try:
                program = trace(self._function, arguments, planner, ranks.client)
                key = keys[len(program.scalars) < kinds.count(float)]
                self._keep(key, program)
            except NotOneProgramError as reason:
                key = keys[0]
                self._keep(key, str(reason))
        elif not isinstance(known := self._programs[key], str) and known.fault:
            self._keep(key, known.fault)
        return self._programs[key]

    def _keep(self, key: Any, found: Program | str) -> None:
        """Keep a program, or why there is none."""
        if isinstance(found, str):
            logger.info("%s: calls are persisted, because %s", self, found)
        else:
            logger.info("%s: a new program of %s results", self, len(found.results))
        if len(self._programs) >= MOST_PROGRAMS:
            self.clear()
        self._programs[key] = found

    def __repr__(self) -> str:
        """Return the function's name."""
        return f"<jit {getattr(self._function, '__name__', self._function)}>"


def jit(function: Callable[..., Any], *, donate: int | Iterable[int] = ()) -> Step:
    """Return a function of Dask arrays whose calls are messages to the workers, not graphs.

    Parameters
    ----------
    function : callable
        It takes Dask arrays and numbers, and returns a Dask array, or a tuple or list of them. It
        is plain Dask code, which is called only for arguments of a new kind.
    donate : int or iterable of int, optional
        The positions of arrays that are not used after a call: their memory is free for others.

    Returns
    -------
    Step
        A function of the same arguments. It returns at once, with Dask arrays whose blocks stay
        on the workers. ``step.lower(*arrays)`` explains a call, and ``step.clear()`` forgets all
        programs.

    Raises
    ------
    TypeError
        If ``function`` cannot be called, or ``donate`` has no integers.

    See Also
    --------
    enable : Choose the cluster.

    Notes
    -----
    The first call with arrays of new chunks, dtype or block type builds the graph, and makes one
    program of it. Numbers of type float are its arguments; other numbers, and those whose value
    the function itself looks at, make a new program for each value.

    Results are Dask arrays. If they enter any other graph, Dask gets to know their blocks first.
    Values of at most 64 KiB come with the answer, so ``float(r)`` and ``np.asarray(r)`` wait for
    nothing else. An error of the function is raised where a result is read.

    If the graph is not wholly one program, or no cluster is enabled, calls are
    :func:`dask.persist`; a message of level INFO says why.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> step = dgpu.jit(lambda x: x / x.sum())
    >>> float(step(da.ones(4, chunks=2)).max())
    0.25
    """
    if not callable(function):
        expected("function", "callable", function, TypeError)
    positions = donate if isinstance(donate, Iterable) else (donate,)
    return Step(function, tuple(index(at) for at in positions))


def _kind(argument: Any) -> Any:
    """Return what a program depends on."""
    if isinstance(argument, Array):
        return argument.chunks, argument.dtype, type(argument._meta)
    return float if type(argument) is float else (type(argument), argument)


def listed(returned: Any) -> list[Any]:
    """Return the arrays that a function has returned."""
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def rebuilt(returned: Any, arrays: Any) -> Any:
    """Return what a function has returned, with other arrays."""
    if not isinstance(returned, tuple | list):
        return arrays[0]
    if hasattr(returned, "_make"):
        return returned._make(arrays)
    return type(returned)(arrays)
