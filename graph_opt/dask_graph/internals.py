"""Dask's internals, by name: no other module imports them.

Dask may rename them in any release. A missing name becomes a placeholder: nothing is an instance
of it or identical to it, so rules match nothing, and a call raises ImportError.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

NAMES = {
    "dask._expr": "HLGExpr",
    "dask._task_spec": (
        "Alias DataNode GraphNode List Task TaskRef _execute_subgraph convert_legacy_graph cull"
    ),
    "dask.array.chunk": "argmax argmin astype getitem linspace",
    "dask.array.core": (
        "_concatenate2 _enforce_dtype concatenate_shaped elemwise finalize getter getter_inline "
        "getter_nofancy load_store_chunk"
    ),
    "dask.array.einsumfuncs": "chunk_einsum",
    "dask.array.overlap": "ensure_minimum_chunksize",
    "dask.array.random": "_apply_random _apply_random_func",
    "dask.array.reductions": (
        "_cumprod_merge _cumsum_merge _nanargmax _nanargmin _nanmax_skip _nanmin_skip _sqrt "
        "arg_agg arg_chunk arg_combine chunk_max chunk_min mean_agg mean_chunk mean_combine "
        "moment_agg moment_chunk moment_combine nanarg_agg nannumel"
    ),
    "dask.array.routines": "_chunk_sum _matmul _tensordot",
    "dask.array.slicing": "getitem_variadic",
    "dask.array.wrap": "_broadcast_trick_inner",
    "dask.blockwise": "BlockwiseDep BlockwiseDepDict blockwise_token optimize_blockwise",
    "dask.layers": "ArrayOverlapLayer",
    "dask.local": "get_sync",
    "dask.tokenize": "_normalize_seq_func",
    "dask.utils": "apply methodcaller",
    "tlz": "curry",  # of cytoolz if that is installed, as in Dask
    "tlz.functoolz": "Compose",
}
"""The internals in use, separated by spaces, by module."""

MERGE = "rechunk-merge"
"""What the names of layers that slice and concatenate begin with, if they are a rechunk's.

Nothing else of such a layer tells that no block is dropped or moved. Checked with Dask 2026.7.1.
"""

ONE_VALUE = "-aggregate-"
"""What the names of reductions' last layers have, for which Dask declares one value on an axis.

``topk`` has several. Functions of users may reduce too. Checked with Dask 2026.7.1.
"""

JOINED = "finalize-"
"""What the names of the tasks begin with that join the blocks of a result.

``compute`` requests these in place of blocks. Checked with Dask 2026.7.1.
"""

P2P = "distributed.shuffle._rechunk.P2PRechunkLayer"
"""The type of layers that rechunk by messages: by name, for distributed may be missing."""

MISSING: list[str] = []
"""Full names of the internals that this version of Dask does not have."""


def _placeholder(name: str) -> type:
    """Return a class that cannot be instantiated."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise ImportError(f"expected a dask with {name}")

    return type(name, (), {"__new__": fail})


def _look_up(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        MISSING.append(f"{module}.{name}")
        return _placeholder(MISSING[-1])


globals().update(
    (name, _look_up(module, name)) for module, names in NAMES.items() for name in names.split()
)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
