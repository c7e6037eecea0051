"""The files of the packages in which functions are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(str(ROOT / package) for package in ("dask_dgpu", "graph_opt"))


def noting(found: set[str]) -> Callable[[FrameType, str, object], None]:
    """Return a profile hook that adds the files, relative to the project."""

    def hook(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            found.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))

    return hook
