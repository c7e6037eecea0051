"""What is said of a tree that fails: its smallest part that does, as a program."""

from __future__ import annotations

import inspect
import re
from types import FunctionType

from tests.fuzz import functions
from tests.fuzz.tree import Text, Tree
from tests.fuzz.ways import SETTINGS, Way, failure

IMPORTS = """\
from functools import partial
from math import inf, nan
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.fft
from distributed import Client, LocalCluster
from scipy import ndimage

import dask_dgpu as dgpu

"""


def smallest(tree: Tree, way: Way) -> Tree:
    """Return the tree of the first value that fails alone, or the whole."""
    for name in tree.steps:
        part = tree.of(name)
        if failure(part, way) is not None:
            return part
    return tree


def reproduction(tree: Tree, n_workers: int = 0) -> str:
    """Return a program that prints what each way computes.

    Parameters
    ----------
    tree : Tree
        What is computed.
    n_workers : int, optional
        Of a cluster, if there is one.
    """
    bodies = [_body(name, tree) for name in ("numpy", "plain", "ours")]
    text = "\n\n".join(bodies)
    settings = {**SETTINGS, **tree.settings}
    if n_workers:
        del settings["local_ranks"]
        start = f"with Client(LocalCluster(n_workers={n_workers}, threads_per_worker=1)) as client"
        arguments, scheduler = f"client, **{settings}", ""
    else:
        start, arguments = "if True", f"**{settings}"
        scheduler = f", scheduler={tree.scheduler!r}"
    return (
        f"# seed {tree.seed}\n{IMPORTS}\n{_functions(text)}\n{text}\n\n"
        "if __name__ == '__main__':\n"
        "    np.seterr(all='ignore')\n"
        "    print(*numpy(), sep='\\n')\n"
        "    print(*dask.compute(*plain(), scheduler='sync'), sep='\\n')\n"
        f"    {start}:\n"
        f"        with dgpu.enable({arguments}):\n"
        f"            print(*dask.compute(*ours(){scheduler}), sep='\\n')\n"
    )


def _body(text: Text, tree: Tree) -> str:
    lines = [f"    {name} = {getattr(step, text)}" for name, step in tree.steps.items()]
    return "\n".join([f"def {text}():", *lines, f"    return [{', '.join(tree.outputs)}]", ""])


def _functions(text: str) -> str:
    """Return the source of the functions that a text needs."""
    known = {name: f for name, f in vars(functions).items() if isinstance(f, FunctionType)}
    sources: dict[str, str] = {}
    waiting = [text]
    while waiting:
        for name in re.findall(r"\w+", waiting.pop()):
            if name in known and name not in sources:
                sources[name] = inspect.getsource(known[name])
                waiting.append(sources[name])
    return re.sub(r"Sequence\[.*?\]", "Any", "\n\n".join(reversed(sources.values())))
