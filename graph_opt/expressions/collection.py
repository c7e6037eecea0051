"""An array of Dask as an expression of dask_array: the way back."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from dask.array.core import Array
from dask_array._collection import Array as ExpressionArray
from dask_array._expr import ArrayExpr
from dask_array._new_collection import new_collection


class Gang(ArrayExpr):
    """A leaf: the layers of an array of Dask, under its name, as ``FromGraph`` of dask_array."""

    _parameters: ClassVar = ["array"]

    def __init__(self, array: Array) -> None:
        """Keep dask_array from sharing nodes: arrays of one name may hold other futures."""

    def lower_once(self, lowered: Any) -> Gang:
        """Return the node itself, which no cache of dask_array may hold."""
        return self

    @cached_property
    def _name(self) -> str:
        name: str = self.array.name
        return name

    @cached_property
    def _meta(self) -> Any:
        return self.array._meta

    @cached_property
    def chunks(self) -> Any:
        """Of the array."""
        return self.array.chunks

    def _layer(self) -> dict[Any, Any]:
        return dict(self.array.__dask_graph__())


def from_dask(array: Array) -> ExpressionArray:
    """Return an array of Dask as one of dask_array."""
    expression: ExpressionArray = new_collection(Gang(array))
    return expression
