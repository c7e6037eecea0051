"""The sources of the documentation: links, examples, messages, settings, versions, charts."""

from __future__ import annotations

import ast
import doctest
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path

import pytest
import yaml

import dask_dgpu as dgpu
from tests.project.test_project import ARCHITECTURE, CONSTANTS, PUBLIC

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"generated", "notebooks"}
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if not GENERATED & set(path.relative_to(DOCS).parts)
)
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
GUIDE = [path for path in PAGES if path.parent.name in ("getting-started", "guide")]
WITH_EXAMPLES = [path for path in PAGES if "```pycon" in path.read_text()]
COSTLY = ("convolutions", "host-arrays", "memory", "products", "stencils")
"""Pages with examples that compute for seconds."""
GAP = "..."
WIDEST = 100


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=name_of)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    files = [link.partition("#")[0] for link in links if "://" not in link]
    assert [file for file in files if file and not (page.parent / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_included_parts_exist(page: Path) -> None:
    found = re.findall(r"```\{include\} (\S+)\n((?::.*\n)*)```", page.read_text())
    for file, options in found:
        text = (page.parent / file).read_text()
        for mark in re.findall(r':start-after: "(.+)"', options):
            assert text.count(mark) == 1
            assert "<!-- docs: end -->" in text[text.index(mark) :]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short(page: Path) -> None:
    long = [line for line in prose(page).splitlines() if len(line) > WIDEST]
    assert [line for line in long if not line.startswith(("|", "`", "!["))] == []


def checker() -> doctest.OutputChecker:
    """Return a checker that ignores what depends on the machine."""
    from fill_examples import plain

    class Predicted(doctest.OutputChecker):
        def check_output(self, want: str, got: str, optionflags: int) -> bool:
            return super().check_output(plain(want), plain(got), optionflags)

    return Predicted()


@pytest.fixture
def disabled() -> Iterator[None]:
    yield
    dgpu.disable()


@pytest.mark.usefixtures("disabled")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem in COSTLY else [])
        for page in WITH_EXAMPLES
    ],
    ids=name_of,
)
def test_examples_print_what_the_page_shows(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    examples = "\n".join(re.findall(r"^```pycon\n(.*?)^```", page.read_text(), re.M | re.S))
    test = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    assert test.examples
    flags = doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(checker(), verbose=False, optionflags=flags)
    lines: list[str] = []
    runner.run(test, out=lines.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(lines)


@cache
def messages() -> frozenset[str]:
    """Return the texts of the sources; what is formatted in is a gap."""
    found = set()
    for package in ("dask_dgpu", "graph_opt"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [v.value if isinstance(v, ast.Constant) else GAP for v in node.values]
                    found.add("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(re.sub(r"%[dsr]", GAP, node.value))
    return frozenset(found)


def exists(quoted: str) -> bool:
    """Whether a quoted message is a text of the sources, or the middle of one."""
    parts = [part.strip() for part in quoted.split(GAP)]
    pattern = re.compile(".*?".join(re.escape(part) for part in parts if part), re.S)
    return any(pattern.search(text) for text in messages())


def quoted() -> list[str]:
    """Return the messages that troubleshooting explains."""
    page = (DOCS / "guide/troubleshooting.md").read_text()
    return re.findall(r"^`([^`]+)`\n: ", page, re.M)


@pytest.mark.parametrize("message", quoted())
def test_message_of_troubleshooting_exists(message: str) -> None:
    assert exists(message)


def test_there_are_messages() -> None:
    assert len(quoted()) > 25
    assert not exists("this message does not exist")


def reasons() -> list[str]:
    """Return the reasons in the table of `explain`."""
    page = (DOCS / "guide/explain.md").read_text()
    table = page[page.index("| `why` | what to do |") :].split("\n\n")[0]
    return re.findall(r"^\| `([^`]+)` \|", table, re.M)[1:]


@pytest.mark.parametrize("reason", reasons())
def test_reason_of_explain_exists(reason: str) -> None:
    assert exists(reason)


def declined() -> set[str]:
    """Return the reasons in the sources: of rules, of unsupported arrays, and of the planner."""
    functions = {"unsupported", "hindrance_of", "foregone", "refusal", "_refusal"}
    found = set()
    for package in ("dask_dgpu", "graph_opt"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                texts: list[ast.expr] = []
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "Declined":
                    texts = node.args[1:]
                elif isinstance(node, ast.FunctionDef) and node.name in functions:
                    returns = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
                    texts = [value for value in returns if value is not None]
                for text in texts:
                    if isinstance(text, ast.JoinedStr):
                        parts = [
                            str(v.value) if isinstance(v, ast.Constant) else GAP
                            for v in text.values
                        ]
                        found.add("".join(parts))
                    elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                        found.add(text.value)
    return found


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\.\.\.", GAP, text))


@pytest.mark.slow
def test_every_reason_of_the_sources_is_explained() -> None:
    assert len(declined()) > 12
    assert {plain(reason) for reason in declined()} <= set(map(plain, reasons()))


def test_operations_that_are_accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's tables have each operation, and come from what the optimizer does."""
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import operations

    found = operations.examples()
    assert {example.code for example in found if example.promised} == {
        example.code for example in found if example.gang
    }
    assert sum(example.gang and not example.operations for example in found) > 8
    text = operations.tables()
    names = re.findall(r"^\| (\w+) \| `graph_opt/pieces/", ARCHITECTURE, re.M)
    assert len(names) > 7
    for name in names:
        assert text.count(f"\n| `{name}` | `") == 1
    assert "```{operations}" in (DOCS / "guide/accelerated.md").read_text()
    with dgpu.enable(local_ranks=3, when="always", on_error="raise"):
        for code, said in re.findall(r"^\| `(.+)` \| (.+) \|$", text.rpartition("|---|")[2], re.M):
            shown = dgpu.explain(eval(code, operations.names()))._repr_html_()
            assert f">{escape(said)}</td>" in shown
    sys.modules.pop("operations")


def test_charts_have_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every topic is on the page, and each of its numbers is the median of a recorded run."""
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import charts

    page = (DOCS / "performance.md").read_text()
    assert set(re.findall(r"```\{chart\} (\S+)", page)) == charts.TOPICS.keys()
    for topic in charts.TOPICS.values():
        ways = [way for each in topic.problems.values() for way in each]
        gpus = {json.dumps(way.record["machine"]["gpus"]) for way in ways}
        assert len(gpus) == 1
        table = charts.table(topic).replace("\N{NO-BREAK SPACE}", " ")
        assert all(f"| {charts.shown(way.seconds)} |" in table for way in ways)
    name, topic = next(iter(charts.TOPICS.items()))
    charts.draw(topic, tmp_path / f"{name}.svg")
    assert (tmp_path / f"{name}.svg").stat().st_size > 5_000
    sys.modules.pop("charts")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_in_the_tables_of_the_api(name: str) -> None:
    page = (DOCS / "api/index.md").read_text()
    short = name.removeprefix("dask_dgpu.")
    assert len(re.findall(rf"^   {re.escape(short)}$", page, re.M)) == 1


@pytest.mark.parametrize("name", CONSTANTS)
def test_constant_is_on_the_page_of_the_api(name: str) -> None:
    page = (DOCS / "api/index.md").read_text()
    assert re.search(rf"^\.\. data:: {name}$", page, re.M)


def test_page_of_settings_has_every_setting_and_its_default() -> None:
    def leaves(tree: dict[str, object], prefix: str) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value in tree.items():
            path = f"{prefix}.{name}"
            found |= leaves(value, path) if isinstance(value, dict) else {path: value}
        return found

    page = (DOCS / "guide/settings.md").read_text()
    rows = dict(re.findall(r"^\| `(dgpu\.[\w.-]+)` \| `([^`]+)` \|", page, re.MULTILINE))
    found = {name: yaml.safe_load(default) for name, default in rows.items()}
    defaults, schema = (
        yaml.safe_load((ROOT / "dask_dgpu" / each).read_text())
        for each in ("dgpu.yaml", "dgpu-schema.yaml")
    )
    assert found == leaves(defaults["dgpu"], "dgpu")
    assert schema["properties"]["dgpu"]["properties"].keys() == defaults["dgpu"].keys()


def test_versions_that_work_together() -> None:
    """The table has the pins of the tests and the versions that benchmarks recorded."""
    page = (DOCS / "getting-started/install.md").read_text()
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in page.splitlines()
        if line.startswith("| ")
        for cells in [line.strip("|").split("|")]
    }
    pins = dict(
        line.split("==")
        for line in (ROOT / "ci/constraints.txt").read_text().splitlines()
        if "==" in line
    )
    records = (ROOT / "benchmarks/results/region-gpu-tcp.jsonl").read_text().splitlines()
    recorded = json.loads(records[-1])["versions"]
    assert rows["dask, distributed"] == [pins["dask"], recorded["dask"]]
    assert pins["distributed"] == pins["dask"]
    assert rows["NumPy"] == [pins["numpy"], recorded["numpy"]]
    assert rows["torch"][0].startswith(pins["torch"])
    assert rows["torch"][1].startswith(recorded["torch"])
    assert rows["CuPy"][1] == recorded["cupy"]
    assert rows["UCXX"] == [pins["ucxx-cu13"], recorded["ucxx"]]
    assert rows["Python"][1] == recorded["python"]


@pytest.mark.parametrize("name", ["landing", "guide", "notebook"])
def test_screenshots_are_small(name: str) -> None:
    picture = DOCS / "images" / f"{name}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200_000


def test_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers differ between machines; names of sections and rows do not."""

    def names(text: str) -> list[str]:
        lines = text.splitlines()[1:]
        found = [re.split(r"  +", line.strip())[0] for line in lines if line]
        return [name for name in found if not name.startswith(("GPU", "driver"))]

    dgpu.show_versions()
    shown = (DOCS / "_static/versions.txt").read_text()
    assert names(capsys.readouterr().out) == names(shown)


def test_predictions_for_many_hosts_are_those_of_the_script() -> None:
    path = ROOT / "benchmarks/results/hosts-model.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    page = (ROOT / "docs/performance/hosts.md").read_text()
    for line in lines:
        cells = f"| {line['hosts']} | {line['ranks']} | {line['predicted_s']:.3g} |"
        assert cells in page
    assert {line["hosts"] for line in lines} == {1, 2, 4, 8, 16, 32, 64}
