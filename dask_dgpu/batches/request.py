"""What a user asks for: an operation, its arguments, and where it is computed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dask_dgpu.batches import functions
from dask_dgpu.batches.operands import Operand, Template, check_out
from dask_dgpu.batches.operations import Operation
from dask_dgpu.batches.rules import Shape
from dask_dgpu.batches.selected import selected
from dask_dgpu.batches.sites import Site


@dataclass(frozen=True)
class Request:
    """An operation, its arguments, and the site where it is computed."""

    operation: Operation
    template: Template
    site: Site

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The array arguments."""
        return self.template.operands

    @property
    def title(self) -> str:
        """The operation, shapes and dtypes."""
        return f"{self.operation.name} of {', '.join(map(str, self.operands))}"

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by name, those of ufuncs by number."""
        args, options = self.template.args, self.template.options
        if self.operation.ufunc is not None:
            return {str(at): value for at, value in enumerate(args)} | dict(options)
        try:
            bound = inspect.signature(self.operation.function).bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"expected the arguments of {self.operation.name}: {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def of(self, arrays: Sequence[Any]) -> Any:
        """Return what the operation returns for these arrays in place of the operands."""
        return self.template.call(self.operation.function, arrays)

    def check_casts(self, **out: Any) -> None:
        """Raise NumPy's error if a ufunc's ``casting`` forbids the casts of its operands."""
        ufunc, operands = self.operation.ufunc, self.operands
        if ufunc is not None and "casting" in self.template.options:
            checked = partial(functions.of_nothing, ufunc, **out)
            self.template.call(checked, [np.empty(0, each.source.dtype) for each in operands])

    def target(self, out: Any, shape: Shape, dtype: Any) -> Any:
        """Return the array for a result: ``out``, once it is checked, or a new one."""
        if out is None:
            return np.empty(shape, dtype)
        check_out(out, shape, np.dtype(dtype), self.template.values, self._casting)
        return out

    def writer(self, target: Any) -> Any:
        """Return the target, or what writes only elements that a ufunc's ``where`` selects."""
        return target if self.operation.ufunc is None else selected(self.template, target)

    def _casting(self, out: Any) -> str:
        """Return which casts to ``out`` are allowed; raise NumPy's error for a ufunc's own."""
        self.check_casts(out=np.empty(0, out.dtype))
        is_own = self.operation.ufunc is not None and "casting" in self.template.options
        return str(self.template.options["casting"]) if is_own else "same_kind"
