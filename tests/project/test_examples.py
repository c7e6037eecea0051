"""The examples run, and draw what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import with_project

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
DIFFERS = {
    r"\b[\d.]+ [num]?s\b": "T s",
    r"─+": "─",
    r"│ +\d+\.\d{3}(?= │)": "│ T",
    r".* is faster here, by a factor of \S+": "FASTER",
    r"\b\d\.?\d*e[-+]\d+": "E",
    r"^rates: .*": "rates: RATES",
    r"\b\d+ panels?": "PANELS",
    r"\b[\d.]+ [kM]?B\b": "BYTES",
}
"""Times, widths of columns, rounding errors and places of blocks differ between runs."""


def expected(name: str) -> str:
    """Return what an example prints, as its documentation shows it."""
    if name == "eigen_patches":
        readme = (ROOT / "README.md").read_text()
        part = readme[readme.index("<!-- docs: demo -->") :]
        return re.findall(r"```text\n(.*?)```", part, re.S)[0]
    return (EXAMPLES / "output" / f"{name}.txt").read_text()


def plain(text: str) -> list[str]:
    """Return the lines without what differs; the planner may find pieces in another order."""
    for pattern, same in DIFFERS.items():
        text = re.sub(pattern, same, text, flags=re.MULTILINE)
    return sorted(" ".join(line.split()) for line in text.splitlines())


def drawn(name: str, folder: Path) -> str:
    """Run an example, which draws a picture; return what it prints."""
    command = [sys.executable, "-m", "tests.support.script", str(EXAMPLES / f"{name}.py")]
    environment = with_project(os.environ)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "build" / f"{name}.png").stat().st_size > 10_000
    assert plain(done.stdout) == plain(expected(name))
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_example_says_what_it_prints(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()
    page = (ROOT / "docs/examples.md").read_text()
    if name == "eigen_patches":
        assert "It prints what the README shows" in source
        assert "<!-- docs: demo -->" in page
    else:
        assert f"It prints what ``examples/output/{name}.txt`` shows" in source
        assert f"{{literalinclude}} ../examples/output/{name}.txt" in page
    assert expected(name)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)  # most of it is plain Dask, for comparison
def test_eigen_patches(tmp_path: Path) -> None:
    told = drawn("eigen_patches", tmp_path)
    assert "inner" in told


@pytest.mark.cluster
@pytest.mark.slow
def test_spectral_filter(tmp_path: Path) -> None:
    told = drawn("spectral_filter", tmp_path)
    assert told.count("transformed in 2 stages") == 2
    (line,) = (line for line in told.splitlines() if line.startswith("largest difference"))
    assert float(line.rpartition(" ")[2]) < 1e-5


@pytest.mark.cluster
@pytest.mark.slow
def test_edges(tmp_path: Path) -> None:
    told = drawn("edges", tmp_path)
    assert told.count("by space in 4 tiles") == 2
    assert "one program" in told
    (line,) = (line for line in told.splitlines() if line.startswith("largest difference"))
    assert float(line.rpartition(" ")[2]) < 1e-5


@pytest.mark.cluster
@pytest.mark.slow
def test_rock_salt(tmp_path: Path) -> None:
    told = drawn("rock_salt", tmp_path)
    assert "one program" in told
    rows = [line.split("│") for line in told.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["in the crystal", "at its surface"]
    for row in rows:
        coarse, middle, fine, limit, known = (float(cell) for cell in row[2:7])
        assert abs(limit - known) < 5e-6 < abs(fine - known) / 100
        assert abs(fine - known) < abs(middle - known) / 3.5 < abs(coarse - known) / 3.5**2
    assert "-8.924 eV" in told


@pytest.mark.cluster
@pytest.mark.slow
def test_hillslopes(tmp_path: Path) -> None:
    told = drawn("hillslopes", tmp_path)
    assert "one program" in told
    assert "swept in blocks" in told
    assert "same bits: True" in told
    years = re.findall(r"steps of ([\d,]+) years; the bound for stability is ([\d,]+)", told)[0]
    step, bound = (int(number.replace(",", "")) for number in years)
    assert step < bound
    rows = re.findall(r"mean height (\S+) m, steepest slope (\S+)", told)
    today, linear, steep = ((float(mean), float(slope)) for mean, slope in rows)
    assert today[0] == linear[0] == steep[0]  # to all digits: no soil is lost
    assert today[1] > linear[1] > steep[1]
    assert float(re.findall(r"Gaussian of 160 m: within (\S+) m", told)[0]) < 2


@pytest.mark.slow
def test_energy_balance(tmp_path: Path) -> None:
    told = drawn("energy_balance", tmp_path)
    *sums, chunkings, _ = told.splitlines()
    errors = [
        dict(part.split(" ") for part in line.split("error ")[1].split(", ")) for line in sums
    ]
    eps = 2.0**-23
    assert max(float(error["compensated"]) for error in errors) < eps
    assert max(float(error["reproducible"]) for error in errors) < eps
    assert max(float(error["dask"]) for error in errors) > 10 * eps
    assert chunkings.endswith("reproducible 1")
