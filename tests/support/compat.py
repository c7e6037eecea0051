"""Dask's own array tests, with and without dask_dgpu: the outcome must be the same.

Run ``python -m tests.support.compat``; ``--quick`` takes only the files that touch products,
rechunks, linear algebra, reductions and the core.
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
from pathlib import Path

import dask.array

from tests.support.compat_plugin import ENABLE, OUTCOMES
from tests.support.paths import with_project

TESTS = Path(dask.array.__file__).parent / "tests"

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


LIFTED = "test_cant_fft_chunked_axis"
"""It asserts the restriction that dask_dgpu lifts."""


@dataclass(frozen=True)
class Session:
    """How each test ended, and how many pieces were rewritten meanwhile."""

    outcomes: dict[str, str]
    rewritten: int


@dataclass(frozen=True)
class Comparison:
    """Dask's tests without and with dask_dgpu."""

    without: Session
    with_it: Session

    @property
    def differences(self) -> dict[str, tuple[str, str]]:
        """Outcomes without and with dask_dgpu of the tests where they are not the same."""
        before, after = self.without.outcomes, self.with_it.outcomes
        return {
            test: (before.get(test, "not run"), after.get(test, "not run"))
            for test in sorted(before.keys() | after.keys())
            if before.get(test) != after.get(test) and LIFTED not in test
        }


class _Run:
    """A pytest process over some of Dask's tests."""

    def __init__(self, folder: Path, tests: Sequence[str], arguments: Sequence[str], on: bool):
        self.file = folder / f"outcomes-{on}.json"
        self.log = folder / f"log-{on}.txt"
        ini = folder / "pytest.ini"
        ini.write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-c", str(ini), "--tb=short"]
        command += ["--rootdir", str(TESTS), "-p", "no:cacheprovider", "--timeout=600"]
        command += ["-p", "tests.support.compat_plugin", *arguments]
        command += [str(TESTS / test) for test in tests]
        environment = with_project({**os.environ, OUTCOMES: str(self.file)})
        environment.pop(ENABLE, None)
        if on:
            environment[ENABLE] = "1"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self) -> Session:
        """Wait for pytest, and return its outcomes."""
        self.process.wait()
        if not self.file.exists():
            raise RuntimeError(f"pytest did not finish: {self.log.read_text()[-4000:]}")
        return Session(**json.loads(self.file.read_text()))


def compare(tests: Sequence[str] = ("",), arguments: Sequence[str] = ()) -> Comparison:
    """Run Dask's tests without and with dask_dgpu, at the same time.

    Parameters
    ----------
    tests : sequence of str
        Files or test ids within ``dask/array/tests``, all by default.
    arguments : sequence of str
        More arguments for pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = [_Run(Path(folder), tests, arguments, on) for on in (False, True)]
        return Comparison(*(run.wait() for run in runs))


def confirmed(comparison: Comparison) -> Comparison:
    """Run the tests that differ once more, to tell those that fail by chance."""
    tests = list(comparison.differences)
    return compare(tests) if tests else comparison


def main() -> int:
    """Print the differences; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the files that matter most")
    parser.add_argument("arguments", nargs="*", help="more arguments for pytest, after --")
    options = parser.parse_args()
    comparison = compare(QUICK if options.quick else ("",), options.arguments)
    counts = {
        name: sum(outcome == name for outcome in comparison.with_it.outcomes.values())
        for name in sorted(set(comparison.with_it.outcomes.values()))
    }
    print(f"{counts}, {comparison.with_it.rewritten} pieces rewritten")  # noqa: T201
    differences = confirmed(comparison).differences
    for test, (before, after) in differences.items():
        print(f"{test}: {before} without dask_dgpu, {after} with it")  # noqa: T201
    print(f"{len(differences)} of {len(comparison.without.outcomes)} tests differ")  # noqa: T201
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
