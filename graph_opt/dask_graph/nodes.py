"""The nodes of an expression while layers are read, and operands among them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from graph_opt.model.expression import Apply, Constant, Node
from graph_opt.model.layout import ArrayNode


@dataclass(frozen=True)
class Operand:
    """A node among the arguments of a function, with the declared dtype and number of axes."""

    node: int
    dtype: str
    ndim: int

    @classmethod
    def of(cls, array: ArrayNode | None, number: int) -> Operand:
        """Return the node of a block of an array."""
        if array is None:
            raise ValueError(f"expected an array for node {number}, got None")
        return cls(number, array.dtype, array.ndim)

    def like(self, number: int) -> Operand:
        """Return a node that is computed from this one."""
        return replace(self, node=number)


@dataclass
class Nodes:
    """The nodes of an expression so far; equal nodes are one."""

    nodes: list[Node] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """Return the number of a node, perhaps an earlier one; 0.0 equals -0.0, and 1 True."""
        if isinstance(node, Constant):
            key: Any = type(node.value), repr(node.value)
        else:
            key = node, repr(getattr(node, "options", ()))
        if key not in self.known:
            self.known[key] = len(self.nodes)
            self.nodes.append(node)
        return self.known[key]

    def number(self, argument: Any) -> int:
        """Return the number of an argument that is a node or a scalar."""
        return argument.node if isinstance(argument, Operand) else self.add(Constant(argument))

    def apply(self, function: str, *arguments: Any, **options: Any) -> int:
        """Add a call of a function of NumPy's."""
        numbers = tuple(map(self.number, arguments))
        return self.add(Apply(function, numbers, tuple(sorted(options.items()))))
