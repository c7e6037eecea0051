"""The table of operations that go in batches: functions of Dask arrays, with NumPy's dtypes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from numbers import Number
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import Array

from dask_dgpu.arguments import expected, real, unknown
from dask_dgpu.array import fft as transforms
from dask_dgpu.array import reductions
from dask_dgpu.array import stencil as stencils
from dask_dgpu.array.conv2d import conv2d
from dask_dgpu.array.einsum import einsum
from dask_dgpu.array.fft.call import DASKS_OWN
from dask_dgpu.array.functions import gelu
from dask_dgpu.array.matmul import matmul
from dask_dgpu.batches import rules
from dask_dgpu.batches.held import TEMPORARIES
from dask_dgpu.batches.rules import Rule
from dask_dgpu.batches.sources import Operand
from graph_opt.dask_graph.internals import elemwise

Function = Callable[..., Any]

NUMPYS_TRANSFORMS = tuple(DASKS_OWN)
SCIPYS_TRANSFORMS = [
    f"{way}{kind}{n}" for way in ("", "i") for kind in ("dct", "dst") for n in ("", "n")
]


@dataclass(frozen=True)
class Operation:
    """A function of Dask arrays, and the rule that says how calls can be cut.

    ``is_product`` is whether a device computes one large block best, and ranks rectangles of the
    result. Only the first ``arrays`` parameters are operands, if they are arrays; ``None`` for any.
    ``temporaries`` are arrays as large as a block that its computation needs, by default one for
    each layer of Dask's graph, and ``kept`` those as large as a part that its tasks leave for
    others, such as sweeps before exchanges of ghost cells. ``beside`` are the blocks that a task
    allocates beside its result if the call runs as one graph. Numbers in single precision may be
    ``doubled`` on the way. ``check`` raises for wrong operands if Dask's message is unclear.
    """

    name: str
    function: Function
    rule: Rule | None = None
    is_product: bool = False
    arrays: int | None = None
    temporaries: int | None = None
    kept: int = 0
    beside: float = TEMPORARIES
    doubled: bool = False
    check: Callable[[Sequence[Operand]], None] | None = None

    def declaring(self, temporaries: float) -> Operation:
        """Return the operation with another number of blocks ``beside``; raise for a wrong one."""
        number = real("temporaries", temporaries, "a number of at least 0")
        if number < 0:
            expected("temporaries", "a number of at least 0", temporaries)
        return replace(self, beside=number)

    @property
    def ufunc(self) -> np.ufunc | None:
        """The ufunc of NumPy that it computes, ``None`` for other operations."""
        function = inspect.unwrap(self.function)
        return function if isinstance(function, np.ufunc) else None

    def is_array(self, args: Sequence[Any], at: int) -> bool:
        """Whether a tuple of numbers, as a positional argument, is the shape of an array.

        For functions without a rule it is unless an array is an argument too.
        """
        if self.rule is rules.einsum:  # sublists of axes follow their operands
            return at > 0 if isinstance(args[0], str) else at % 2 == 0 and at + 1 < len(args)
        if self.arrays is not None:
            return at < self.arrays
        return not any(hasattr(argument, "shape") for argument in args)


def resolve(op: Any) -> Operation:
    """Return the operation of a name or a function; raise for anything else."""
    if isinstance(op, str):
        if op in _named():
            return _named()[op]
        ufunc = getattr(np, op, None)
        if isinstance(ufunc, np.ufunc):
            return _elementwise(op, ufunc)
        raise ValueError(unknown("op", op, sorted(_named())))
    if not callable(op):
        expected("op", "the name of an operation or a function", op, TypeError)
    name = str(getattr(op, "__name__", type(op).__name__))
    if isinstance(op, np.ufunc):
        return _elementwise(name, op)
    try:
        return _known().get(op) or Operation(name, op)
    except TypeError:  # objects that cannot be hashed
        return Operation(name, op)


def check_two(operands: Sequence[Operand]) -> None:
    """Raise unless both factors are arrays with axes."""
    if len(operands) != 2:
        raise TypeError(f"expected two arrays with axes, got {len(operands)}")


def check_inner(operands: Sequence[Operand]) -> None:
    """Raise for factors without axes or of different inner lengths."""
    check_two(operands)
    left, right = (operand.shape for operand in operands)
    if left[-1] != right[max(0, len(right) - 2)]:
        raise ValueError(
            f"expected {operands[0].name} and {operands[1].name} of equal inner lengths, "
            f"got shapes {left} and {right}"
        )


def _product(a: Array, b: Array, *, strategy: Any = "auto", **options: Any) -> Array:
    """Multiply as :func:`dask_dgpu.matmul`; matrices too small for a strategy have none."""
    matrices = max(a.ndim, b.ndim) <= 2
    rows, columns = (a.ndim > 1 and a.numblocks[0] > 1), (b.ndim > 1 and b.numblocks[1] > 1)
    divides = {"row": rows, "column": columns, "summa": rows and columns, "inner": a.shape[-1] > 1}
    chosen: Any = "auto" if matrices and not divides.get(strategy, True) else strategy
    return matmul(a, b, strategy=chosen, **options)


def _dot(a: Array, b: Array) -> Array:
    """Return ``da.dot`` with the dtype of ``numpy.dot``: Dask's of small integers is int64."""
    return da.dot(a, b).astype(np.result_type(a, b), copy=False)


def _tensordot(a: Array, b: Array, axes: Any = 2) -> Array:
    """Return ``da.tensordot`` with the dtype of ``numpy.tensordot``; raise for wrong axes."""
    first, second = rules.contracted_axes(axes, a.ndim)
    try:
        conform = [a.shape[at] for at in first] == [b.shape[at] for at in second]
    except IndexError:
        conform = False
    if not conform:
        raise ValueError(
            "expected arrays[0] and arrays[1] of equal lengths along the contracted axes, "
            f"got shapes {a.shape} and {b.shape} with axes={axes}"
        )
    # Dask gets negative axes wrong
    axes = [at % a.ndim for at in first], [at % b.ndim for at in second]
    return da.tensordot(a, b, axes=axes).astype(np.result_type(a, b), copy=False)


def _of_ufunc(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return a ufunc on Dask arrays that computes in its ``dtype``, with the casts of ``casting``.

    Dask only casts the result, knows no ``casting``, and has no clear errors for wrong dtypes.
    Elements outside ``where`` mean nothing.
    """

    @wraps(ufunc)
    def call(*args: Any, **options: Any) -> Any:
        if len(args) != ufunc.nin:  # NumPy would write to the next one
            number = f"{ufunc.nin} positional argument{'s' if ufunc.nin > 1 else ''}"
            raise TypeError(f"expected {number} of {ufunc.__name__}, got {len(args)}")
        dtype = of_nothing(ufunc, *args, **options).dtype
        if options.get("dtype") is None and not {"casting", "where"} & options.keys():
            options.pop("dtype", None)
            return ufunc(*args, **options)
        where = options.pop("where", True)
        if where is True:
            return elemwise(partial(ufunc, **options), *args, dtype=dtype)
        return elemwise(partial(_of_selected, ufunc, **options), *args, where, dtype=dtype)

    return call


def _of_selected(ufunc: np.ufunc, *blocks: Any, **options: Any) -> Any:
    """Return a ufunc of blocks where the last, a mask, is true; other elements mean nothing.

    Devices compute all elements, since CuPy's ufuncs know no ``where``.
    """
    *arrays, where = blocks
    if all(isinstance(array, np.ndarray | np.generic | Number) for array in arrays):
        return ufunc(*arrays, where=where, out=None, **options)
    values = ufunc(*arrays, **options)
    return np.broadcast_to(values, np.broadcast_shapes(values.shape, np.shape(where)))


def of_nothing(ufunc: np.ufunc, *args: Any, **options: Any) -> Any:
    """Return a ufunc of arrays of these dtypes, but without elements; raise NumPy's errors."""
    options = {"out": None} | {name: _empty(each) for name, each in options.items()}
    return ufunc(*map(_empty, args), **options)


def _empty(value: Any) -> Any:
    """Return an array without elements for one with axes; other values stay."""
    value = np.asarray(value) if isinstance(value, list | tuple) else value
    return np.empty(0, value.dtype) if np.ndim(value) or isinstance(value, Array) else value


def _elementwise(name: str, ufunc: np.ufunc) -> Operation:
    single = ufunc.nout == 1 and ufunc.signature is None
    if name == "matmul":
        return _named()[name]
    rule = rules.elementwise if single else None
    function = _of_ufunc(ufunc) if single else ufunc
    return Operation(name, function, rule, arrays=ufunc.nin, temporaries=1)


@cache
def _named() -> dict[str, Operation]:
    product = partial(Operation, is_product=True, arrays=2, temporaries=1)
    unary = partial(Operation, arrays=1)
    transform = partial(unary, rule=rules.transform, temporaries=3, doubled=True)
    named = [
        product("matmul", _product, rules.matmul, check=check_inner),
        product("dot", _dot, rules.dot, check=check_inner),
        product("tensordot", _tensordot, rules.tensordot, check=check_two, temporaries=3),
        product("einsum", einsum, rules.einsum, arrays=None, temporaries=3),
        Operation("conv2d", conv2d, rules.conv2d, arrays=3),
        unary("stencil", stencils.stencil, rules.stencil, temporaries=4, kept=2),
        unary("gelu", gelu, rules.elementwise),
        unary("sum", reductions.sum, rules.reduction("add")),
        unary("mean", reductions.mean, rules.reduction("mean")),
        unary("max", reductions.max, rules.reduction("max")),
        unary("min", reductions.min, rules.reduction("min")),
        *(
            transform(name, getattr(transforms, name))
            for name in (*NUMPYS_TRANSFORMS, *SCIPYS_TRANSFORMS)
        ),
    ]
    return {each.name: each for each in named}


@cache
def _known() -> dict[Any, Operation]:
    """Return the operations by the functions of this package, Dask and NumPy."""
    named = _named()
    operations: dict[Any, Operation] = {each.function: each for each in named.values()}
    operations[matmul] = named["matmul"]
    for name in ("matmul", "dot", "tensordot", "einsum"):
        operations |= {getattr(np, name): named[name], getattr(da, name): named[name]}
    for name in ("dot", "tensordot"):
        operations[getattr(da, name)] = replace(named[name], function=getattr(da, name))
    for name, function in DASKS_OWN.items():
        operations |= {getattr(np.fft, name): named[name], function: named[name]}
    for name in ("sum", "mean", "max", "min"):
        by_dask = replace(named[name], function=getattr(da, name))
        operations |= {getattr(np, name): by_dask, getattr(da, name): by_dask}
    for name, function in vars(da).items():
        ufunc = getattr(np, name, None)
        if isinstance(ufunc, np.ufunc) and isinstance(function, type(da.exp)):
            operations[function] = _elementwise(name, ufunc)
    return operations
