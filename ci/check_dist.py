"""Check the distributions in ``build/dist``, and try the wheel in an empty environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "build" / "dist"
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
SCRIPT = r"<!-- docs: script -->\s*```python\n(.*?)```"
SOURCES = ("CHANGELOG.md", "Makefile", "README.md", "docs/conf.py", "tests/conftest.py")


def check_wheel(wheel: Path) -> None:
    """Check version, URLs and files of a wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        message = message_from_bytes(archive.read(metadata))
    urls = dict(url.split(", ", 1) for url in message.get_all("Project-URL", []))
    if urls != project["urls"] or not urls:
        sys.exit(f"expected the URLs {project['urls']}, got {urls}")
    description = str(message.get_payload())
    relative = re.findall(r"\]\((?!https?:|#)([^)]+)\)", description)
    if relative or "](" not in description:
        sys.exit(f"expected absolute links in the description, got {relative}")
    source = (ROOT / "dask_dgpu" / "__init__.py").read_text()
    (version,) = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    if message["Version"] != version:
        sys.exit(f"expected version {version}, got {message['Version']}")
    folders = {name.partition("/")[0] for name in names}
    expected = {"dask_dgpu", "graph_opt", metadata.partition("/")[0]}
    if folders != expected or "dask_dgpu/dgpu.yaml" not in names:
        sys.exit(f"expected the folders {sorted(expected)}, got {sorted(folders)}")


def check_sdist(sdist: Path) -> None:
    """Check that the source distribution has the tests and the documentation."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in SOURCES if name not in names]
    if missing:
        sys.exit(f"expected {', '.join(missing)} in {sdist.name}, got none")


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install a wheel into an empty environment, and run the script of the README there."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*install, "-c", str(CONSTRAINTS), str(wheel)], check=True)
    found = re.search(SCRIPT, (ROOT / "README.md").read_text(), re.DOTALL)
    if found is None:
        sys.exit("expected a script in README.md, got none")
    (folder / "product.py").write_text(found[1])
    subprocess.run([python, "-m", "dask_dgpu"], cwd=folder, check=True)
    done = subprocess.run(
        [python, "product.py"], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout)
    *explained, total = done.stdout.splitlines()
    if "runs as a gang" not in explained[0] or abs(float(total) / 17176140662.27775 - 1) > 1e-12:
        sys.exit("expected the output that README.md shows, got the above")


def main() -> None:
    """Check both distributions and try the wheel."""
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    check_wheel(wheel)
    check_sdist(sdist)
    folder = Path(tempfile.mkdtemp(prefix="dist-"))
    try:
        try_wheel(wheel, folder)
    finally:
        shutil.rmtree(folder)
    print(f"{wheel.name} and {sdist.name} are ready in {DIST.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
