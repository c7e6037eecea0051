"""Which blocks are known before they are computed: they travel without a header.

So are results of collectives, and of functions that are known to return the array as declared, or
a part of a reduction.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dask_dgpu.operations.operation import Shipment, Value
from dask_dgpu.runtime.program import Program
from dask_dgpu.runtime.ship import Form
from graph_opt.dask_graph.parse import DTYPES
from graph_opt.model.layout import NUMPY, Index
from graph_opt.model.piece import OPAQUE
from graph_opt.model.recipe import Block, Returned

NUMBERS = DTYPES - {OPAQUE}


def known_blocks(
    program: Program, shipments: Iterable[Shipment], container: str
) -> dict[Block, Form]:
    """Return what shipped blocks are, of those that are known to be as declared in a container."""
    blocks = {}
    for block in {shipment.block: None for shipment in shipments}:
        number, index = block
        returned = _returned(program, block)
        form = None if returned is None else form_of(program.values[number], index, returned)
        if form is not None and form.container == container:
            blocks[block] = form
    return blocks


def _returned(program: Program, block: Block) -> Returned | None:
    """Return what a block is, ``None`` if it is not known: inputs may be anything."""
    number, index = block
    if number < len(program.inputs):
        return None
    node = program.numbered[number]
    if node.operation is not None:
        return Returned()
    kinds = {at: (program.values[at].dtype, len(program.values[at].cuts)) for at in node.reads}
    kind = program.blockworks[number].returned(index, kinds)
    if kind is None or isinstance(kind, Returned):
        return kind
    part = _returned(program, kind)
    return part if part is not None and part.fields else None


def form_of(value: Value, index: Index, returned: Returned) -> Form | None:
    """Return the form of a block, ``None`` if its declaration does not say.

    Functions of NumPy return scalars for arrays without axes, or such arrays.
    """
    shape, container = value.block_shape(index), value.container
    fields = returned.fields or {"": (value.dtype, ())}
    if any(dtype not in NUMBERS for dtype, _ in fields.values()):
        return None
    if not returned.fields:
        return Form.of_array(value.dtype, shape, container) if shape or container != NUMPY else None
    if "vals" in fields and container == NUMPY:
        return Form.of_array(np.dtype([(key, dtype) for key, (dtype, _) in fields.items()]), shape)
    arrays = [(key, dtype, (*shape, *more)) for key, (dtype, more) in fields.items()]
    arrays.sort(key=lambda array: -np.dtype(array[1]).itemsize)
    if returned.summed:
        return Form("sum", (*arrays, ("count", "int64", ())), container)
    return Form("parts", tuple(arrays), container)
