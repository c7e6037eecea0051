"""The operations that go in batches, by name and by function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import dask.array as da
import numpy as np

from dask_dgpu.arguments import expected, real, unknown
from dask_dgpu.array import fft as transforms
from dask_dgpu.array import reductions
from dask_dgpu.array.conv2d import conv2d
from dask_dgpu.array.einsum import einsum
from dask_dgpu.array.fft.call import DASKS_OWN
from dask_dgpu.array.functions import gelu
from dask_dgpu.array.matmul import matmul
from dask_dgpu.array.stencil import stencil
from dask_dgpu.batches import functions, rules
from dask_dgpu.batches.held import TEMPORARIES
from dask_dgpu.batches.operands import Operand
from dask_dgpu.batches.rules import Rule

Function = Callable[..., Any]

KERNEL = frozenset({"kernel"})
NUMPYS_TRANSFORMS = tuple(DASKS_OWN)
SCIPYS_TRANSFORMS = [
    f"{way}{kind}{n}" for way in ("", "i") for kind in ("dct", "dst") for n in ("", "n")
]


@dataclass(frozen=True)
class Operation:
    """A function of Dask arrays, and the rule that says how calls can be cut.

    ``is_product`` is whether a device computes one large block best, and ranks rectangles of the
    result. Parameters named in ``plain`` are no operands, even if they are arrays.
    ``arrays`` is the number of leading parameters that are arrays, ``None`` if any may be.
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
    plain: frozenset[str] = frozenset()
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
        found = inspect.unwrap(self.function)
        return found if isinstance(found, np.ufunc) else None

    def is_array(self, args: Sequence[Any], at: int) -> bool:
        """Whether a tuple of numbers, as a positional argument, is the shape of an array.

        For functions without a rule it is unless an array is an argument too.
        """
        if self.rule is rules.einsum:  # sublists of axes follow their operands
            return at > 0 if isinstance(args[0], str) else at % 2 == 0 and at + 1 < len(args)
        if self.arrays is not None:
            return at < self.arrays
        return not any(hasattr(each, "shape") for each in args)


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
    left, right = (each.shape for each in operands)
    if left[-1] != right[max(0, len(right) - 2)]:
        raise ValueError(
            f"expected {operands[0].name} and {operands[1].name} of equal inner lengths, "
            f"got shapes {left} and {right}"
        )


def _elementwise(name: str, ufunc: np.ufunc) -> Operation:
    single = ufunc.nout == 1 and ufunc.signature is None
    if name == "matmul":
        return _named()[name]
    rule = rules.elementwise if single else None
    function = functions.of_ufunc(ufunc) if single else ufunc
    return Operation(name, function, rule, arrays=ufunc.nin, temporaries=1)


@cache
def _named() -> dict[str, Operation]:
    product = partial(Operation, is_product=True, arrays=2, temporaries=1)
    unary = partial(Operation, arrays=1)
    transform = partial(unary, rule=rules.transform, temporaries=3, doubled=True)
    found = [
        product("matmul", functions.product, rules.matmul, check=check_inner),
        product("dot", functions.dot, rules.dot, check=check_inner),
        product("tensordot", functions.tensordot, rules.tensordot, check=check_two, temporaries=3),
        product("einsum", einsum, rules.einsum, temporaries=3),
        Operation("conv2d", conv2d, rules.conv2d, arrays=3),
        unary("stencil", functions.stencil, rules.stencil, plain=KERNEL, temporaries=4, kept=2),
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
    return {each.name: each for each in found}


@cache
def _known() -> dict[Any, Operation]:
    """Return the operations by the functions of this package, Dask and NumPy."""
    named = _named()
    found: dict[Any, Operation] = {each.function: each for each in named.values()}
    found |= {matmul: named["matmul"], stencil: named["stencil"]}
    for name in ("matmul", "dot", "tensordot", "einsum"):
        found |= {getattr(np, name): named[name], getattr(da, name): named[name]}
    for name in ("dot", "tensordot"):
        found[getattr(da, name)] = replace(named[name], function=getattr(da, name))
    for name, function in DASKS_OWN.items():
        found |= {getattr(np.fft, name): named[name], function: named[name]}
    for name in ("sum", "mean", "max", "min"):
        by_dask = replace(named[name], function=getattr(da, name))
        found |= {getattr(np, name): by_dask, getattr(da, name): by_dask}
    for name, function in vars(da).items():
        ufunc = getattr(np, name, None)
        if isinstance(ufunc, np.ufunc) and isinstance(function, type(da.exp)):
            found[function] = _elementwise(name, ufunc)
    return found
