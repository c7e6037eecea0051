"""The guard of scripts that start workers: ``if __name__ == "__main__":``."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType

from dask_dgpu.errors import DgpuError


def require_main_guard(what: str) -> None:
    """Raise if the running script calls ``what`` outside of ``if __name__ == "__main__":``.

    Workers are new processes that import the script. Outside of the guard each would start
    a cluster of its own. Python reports that once per process, at length.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in ("__main__", "__mp_main__"):
            path = Path(frame.f_globals.get("__file__") or "")
            script = frame.f_code.co_name == "<module>" and path.suffix == ".py"
            if script and path.is_file() and not _is_guarded(path.read_text(), frame.f_lineno):
                raise DgpuError(
                    f'expected {what} within `if __name__ == "__main__":`, got a call at line '
                    f"{frame.f_lineno} of {path.name}: every worker would call it again"
                )
        frame = frame.f_back


def _is_guarded(source: str, line: int) -> bool:
    """Whether a line of a script is within an ``if``, ``and`` or the like about ``__name__``."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.If | ast.IfExp | ast.BoolOp):
            continue
        condition = node if isinstance(node, ast.BoolOp) else node.test
        if node.lineno <= line <= (node.end_lineno or line):
            names = {name.id for name in ast.walk(condition) if isinstance(name, ast.Name)}
            if "__name__" in names:
                return True
    return False
