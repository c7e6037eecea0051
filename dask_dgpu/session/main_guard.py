"""Noticing a script without ``if __name__ == "__main__":`` before it starts processes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from dask_dgpu.errors import DgpuError


def require_main_guard(what: str) -> None:
    """Raise if the running script calls ``what`` where its workers would call it too.

    Workers are new processes that import the script. Outside of the guard each
    would start a cluster of its own, which Python reports once a process, at length.
    """
    for frame in _frames():
        if frame.f_globals.get("__name__") in ("__main__", "__mp_main__"):
            path = Path(frame.f_globals.get("__file__") or "")
            script = frame.f_code.co_name == "<module>" and path.suffix == ".py"
            if script and path.is_file() and not _guarded(path.read_text(), frame.f_lineno):
                raise DgpuError(
                    f"{what} is called at line {frame.f_lineno} of {path.name} outside of "
                    '`if __name__ == "__main__":`, where every worker would call it again; '
                    "move it there"
                )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _guarded(source: str, line: int) -> bool:
    """Whether a line of a script stands in an ``if`` that asks for ``__name__``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and node.lineno <= line <= (node.end_lineno or line):
            names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
            if "__name__" in names:
                return True
    return False
