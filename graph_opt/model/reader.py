"""What passes see of a graph: array nodes by name. Each kind of graph has a reader of its own."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from graph_opt.model.layout import ArrayNode
from graph_opt.model.piece import Blockwork, Piece

Key = Any


class Reader(Protocol):
    """A graph whose layers are read as arrays, with only the needed layers and blocks.

    Dask's HighLevelGraphs are read by :class:`graph_opt.dask_graph.blockwork.Layers`. A reader of
    another kind of graph gives this, and beside it what turns regions back into tasks:

    - rules that find pieces in the layers (``dask_graph/rules.py``);
    - the layers that a gang can compute without a collective (``dask_graph/members.py``), and the
      recipe of each, which a program takes (``dask_graph/recipes.py``);
    - tasks for regions in place of the layers (``dask_graph/emit.py``).

    Pieces, regions, programs and plans are the same for all readers, so none of these knows layers.
    """

    @property
    def dependencies(self) -> Mapping[str, AbstractSet[str]]:
        """The layers that each layer reads, without cycles."""

    @property
    def readers(self) -> Mapping[str, AbstractSet[str]]:
        """The layers that read each layer."""

    def annotations(self, name: str) -> Mapping[str, Any]:
        """Return the annotations of a layer; a region has layers with equal ones."""

    def piece(self, name: str) -> Piece | None:
        """Return the piece that replaces a layer, ``None`` for other layers."""

    def node(self, name: str) -> ArrayNode:
        """Return the array of a layer, with estimates of what is not declared."""

    def is_stored(self, name: str) -> bool:
        """Whether the blocks of a layer are in memory."""

    def reads(self, name: str) -> AbstractSet[Key]:
        """Return the keys of other layers' blocks that a layer reads: name of the array, index."""

    def work(self, name: str, output: ArrayNode | None) -> Blockwork:
        """Return the work of a layer without a piece; ``output`` is a better declaration."""
