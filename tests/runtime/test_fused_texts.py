"""Functions of fused work as text: tasks share one, and graphs are compared by what they hold."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import dask.array as da
import dask.base
import numpy as np
import pytest

import dask_dgpu as dgpu
from dask_dgpu.runtime.fused import Fused
from graph_opt.dask_graph.fusing import Fusion
from graph_opt.dask_graph.gathering import Chain
from graph_opt.dask_graph.internals import Task, TaskRef
from graph_opt.dask_graph.sent import opened, pickled
from graph_opt.model.expression import Expression


def functions(value: Any) -> Iterator[Fused]:
    """Yield the fused functions of tasks, also of tasks in tasks."""
    if isinstance(value, Fused):
        yield value
    elif isinstance(value, Task):
        yield from functions((value.func, *value.args, *value.kwargs.values()))
    elif isinstance(value, dict):
        yield from functions(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from functions(each)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What cloudpickle pickles on its own."""
    found: list[bytes] = []
    dumps = cloudpickle.dumps

    def noted(obj: Any) -> bytes:
        found.append(dumps(obj))
        return found[-1]

    monkeypatch.setattr(cloudpickle, "dumps", noted)
    return found


def test_tasks_of_a_call_share_one_text_and_one_function(texts: list[bytes]) -> None:
    """So a scheduler pickles it once, not for each of its tasks."""
    x = da.from_array(np.arange(48.0).reshape(8, 6), chunks=(4, 3))
    with dgpu.enable():
        graph = dict(dask.base.optimize(np.tanh(x * 2 + 1) - x)[0].dask)
    found = list(functions(graph))
    assert len(found) == 4
    texts.clear()
    travelled = [pickle.loads(pickle.dumps(function)) for function in found]
    assert len(texts) == 1
    assert len({id(each) for each in travelled}) == 1
    assert travelled[0].fusion.expression == found[0].fusion.expression
    pickle.dumps(travelled[0])
    assert len(texts) == 1  # a scheduler passes on the text that it has got


def test_graphs_are_compared_by_what_a_function_holds() -> None:
    """A text would hide arrays, which are pickled as references."""
    held = np.arange(3.0)
    chain = Chain((Task("a", np.add, TaskRef(0), held),), ("a",), (0,))
    function = Fused(Fusion(Expression((), ()), ("float64",), chain))
    known = {"held": held}
    again = opened(pickled(function, known), known)
    assert type(again) is Fused
    assert again.fusion.chain.tasks[0].args[1] is held
