"""Dask's own array tests: those that do not pass with dask_dgpu end in the same way without it.

Run ``python -m tests.support.compat``; ``--quick`` takes only the files that touch products,
rechunks, linear algebra, reductions and the core. ``--package dask_array`` takes its tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.compat_plugin import ENABLE, ONLY, OUTCOMES
from tests.support.paths import with_project

QUICK = (
    "test_array_core.py",
    "test_array_function.py",
    "test_atop.py",
    "test_fft.py",
    "test_linalg.py",
    "test_masked.py",
    "test_optimization.py",
    "test_overlap.py",
    "test_rechunk.py",
    "test_reductions.py",
    "test_reshape.py",
    "test_routines.py",
)
"""Files that touch products, rechunks, linear algebra, transforms, reductions and the core."""


LIFTED = (
    *("test_cant_fft_chunked_axis", "test_blockwise_fusion", "test_creation_data_producers"),
    "test_fusion_blockwise_contracted_dimensions",
)
"""They assert the restriction that dask_dgpu lifts, count the tasks of Dask's own graph, or give a
function blocks, not lists of them, only once dask_array has fused it."""


@dataclass(frozen=True)
class Session:
    """The tests, how those that ran ended, and how many pieces were rewritten meanwhile."""

    collected: list[str]
    outcomes: dict[str, str]
    rewritten: int


@dataclass(frozen=True)
class Comparison:
    """All of Dask's tests with dask_dgpu; without it those that did not pass."""

    without: Session
    with_it: Session

    @property
    def differences(self) -> dict[str, tuple[str, str]]:
        """Outcomes without and with dask_dgpu of the tests where they are not the same."""
        before, after = (
            dict.fromkeys(session.collected, "not run") | session.outcomes
            for session in (self.without, self.with_it)
        )
        same = {
            test
            for test in before.keys() & after.keys()
            if after[test] in ("passed", before[test]) or any(each in test for each in LIFTED)
        }
        return {
            test: (before.get(test, "not found"), after.get(test, "not found"))
            for test in sorted((before.keys() | after.keys()) - same)
        }


def _run(
    folder: Path,
    package: str,
    tests: Sequence[str],
    arguments: Sequence[str],
    only: Sequence[str] | None = None,
) -> Session:
    """Run pytest over a package's tests with dask_dgpu, or without it over ``only`` some."""
    own = Path(str(import_module(package).__file__)).parent / "tests"
    file, log, ini = folder / "outcomes.json", folder / "log.txt", folder / "pytest.ini"
    file.unlink(missing_ok=True)
    ini.write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ini), "--tb=short"]
    command += ["--rootdir", str(own), "-p", "no:cacheprovider", "--timeout=600"]
    command += ["-p", "tests.support.compat_plugin", *arguments]
    command += [str(own / test) for test in tests]
    environment = with_project({**os.environ, OUTCOMES: str(file)})
    for name in (ENABLE, ONLY):
        environment.pop(name, None)
    if only is None:
        environment[ENABLE] = "1"
    else:
        environment[ONLY] = str(folder / "only.json")
        (folder / "only.json").write_text(json.dumps(only))
    with log.open("w") as output:
        streams: Any = {"stdout": output, "stderr": subprocess.STDOUT}
        subprocess.run(command, cwd=folder, env=environment, check=False, **streams)
    if not file.exists():
        raise RuntimeError(f"pytest did not finish: {log.read_text()[-4000:]}")
    return Session(**json.loads(file.read_text()))


def compare(
    tests: Sequence[str] = ("",), arguments: Sequence[str] = (), package: str = "dask.array"
) -> Comparison:
    """Run a package's tests with dask_dgpu, then without it those that did not pass.

    Parameters
    ----------
    tests : sequence of str
        Files or test ids within its folder ``tests``, all by default.
    arguments : sequence of str
        More arguments for pytest.
    package : str
        ``dask.array`` or ``dask_array``.
    """
    with tempfile.TemporaryDirectory() as name:
        with_it = _run(Path(name), package, tests, arguments)
        doubtful = [test for test in with_it.collected if with_it.outcomes.get(test) != "passed"]
        return Comparison(_run(Path(name), package, tests, arguments, doubtful), with_it)


def confirmed(comparison: Comparison, package: str = "dask.array") -> Comparison:
    """Run the tests that differ once more, to tell those that fail by chance."""
    tests = list(comparison.differences)
    return compare(tests, package=package) if tests else comparison


def main() -> int:
    """Print the differences; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the files that matter most")
    parser.add_argument("--package", default="dask.array", help="dask.array or dask_array")
    parser.add_argument("arguments", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args()
    comparison = compare(QUICK if options.quick else ("",), options.arguments, options.package)
    counts = {
        name: sum(outcome == name for outcome in comparison.with_it.outcomes.values())
        for name in sorted(set(comparison.with_it.outcomes.values()))
    }
    print(f"{counts}, {comparison.with_it.rewritten} pieces rewritten")  # noqa: T201
    differences = confirmed(comparison, options.package).differences
    for test, (before, after) in differences.items():
        print(f"{test}: {before} without dask_dgpu, {after} with it")  # noqa: T201
    print(f"{len(differences)} of {len(comparison.with_it.outcomes)} tests differ")  # noqa: T201
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
