"""Where other processes of Python find the project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def with_project(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the project's packages come before others."""
    path = [str(ROOT), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}
