"""The documentation: links, examples, generated reference, length, its site and its course."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from escala.experiment import Experiment, load
from escala.experiment import schema as experiment
from escala.probes import PROBES
from escala.programs.program import PLACEHOLDERS
from escala.report.tables import TABLES, schema
from escala.report.tables.base import dtypes
from escala.strategies import STRATEGIES
from scripts.docs_reference import describe, pages, stale_pages
from tests.conftest import ROOT
from tests.documented import PAGES, files, tokens

DOCS = ROOT / "docs"
TROUBLES = DOCS / "reference" / "troubles.md"
EXERCISES = sorted((DOCS / "course").glob("[0-9]-*.md"))
EXPERIMENTS = sorted((ROOT / "experiments" / "course").glob("*.yaml"))


def _anchors(page: Path) -> set[str]:
    """Return the anchors that a Git host gives the headings of a page, or the views of an SVG."""
    if page.suffix == ".svg":
        return set(re.findall(r'<view id="([^"]+)"', page.read_text()))
    headings = [
        "".join(each.content for each in title.children or ())
        for opening, title in pairwise(tokens(page))
        if opening.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files and headings that do not exist."""
    parsed = [child for token in tokens(page) for child in (token, *(token.children or ()))]
    links = [token.attrs.get("href") or token.attrs.get("src") for token in parsed]
    parts = [(link, urlsplit(str(link))) for link in links if link]
    return [
        str(link)
        for link, part in parts
        if not part.scheme
        for target in [(page.parent / part.path).resolve() if part.path else page]
        if not target.exists() or (part.fragment and part.fragment not in _anchors(target))
    ]


def test_links_lead_somewhere_on_a_git_host(tmp_path):
    pages_of_all = [*PAGES, ROOT / "results" / "README.md", ROOT / "CHANGELOG.md"]
    broken = {str(page): broken_links(page) for page in pages_of_all}
    assert {page: links for page, links in broken.items() if links} == {}
    page = tmp_path / "a.md"
    page.write_text("# `a.B` here\n[x](#ab-here) [y](#b) [z](b.md) [w](https://example.org)\n")
    assert broken_links(page) == ["#b", "b.md"]


#: Files of the project as pages name them. In the archive, those of its history have a commit.
NAMED_FILE = re.compile(
    r"(?<![\w/:.<-])(?:experiments/[a-z]+|benchmarks|docs|escala|rules|schemas|scripts|tests)/"
    r"[\w/-]+\.(?:cc|md|py|sed|smk|yaml)\b"
)


def test_files_that_pages_name_exist():
    named = {
        file: page.name
        for page in PAGES
        for file in NAMED_FILE.findall(page.read_text())
        # Exercises make these.
        if not re.fullmatch(r"experiments/course/.*-torch\.yaml|.*NAME.*", file)
    }
    assert len(named) > 100
    assert {file: page for file, page in named.items() if not (ROOT / file).is_file()} == {}


def test_readme_changelog_and_how_tos_are_short():
    assert len((ROOT / "README.md").read_text().split()) <= 500
    assert len((ROOT / "CHANGELOG.md").read_text().split()) <= 1500
    texts = {page.name: page.read_text() for page in (DOCS / "how-to").glob("*.md")}
    assert len(texts) <= 25
    words = {name: len(re.findall(r"\S*\w\S*", text)) for name, text in texts.items()}
    assert {name: words[name] for name in texts if words[name] > 700} == {}
    assert [name for name, text in texts.items() if len(text.splitlines()) > 100] == []


def pages_of(nav: object) -> Iterator[Path]:
    """Yield the pages in the navigation of the site."""
    if isinstance(nav, str):
        yield DOCS / nav
    for entry in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from pages_of(entry)


def test_the_site_shows_every_page_that_is_not_left_out_and_is_short():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    shown = [*pages_of(config["nav"])]
    assert config["exclude_docs"].split() == ["decisions/", "SKILL.md"]
    hidden = {*DOCS.joinpath("decisions").glob("*.md"), DOCS / "SKILL.md"}
    assert {*DOCS.rglob("*.md")} - hidden == {*shown} and len({*shown}) == len(shown)
    # The site shows no comment.
    texts = {page: re.sub("<!--.*?-->", "", page.read_text(), flags=re.DOTALL) for page in shown}
    words = {page: len(re.findall(r"\S*\w\S*", text)) for page, text in texts.items()}
    assert sum(words.values()) <= 45000
    assert sum(n for page, n in words.items() if page.parent.name == "reference") <= 14900
    assert words[DOCS / "security.md"] <= 700 and words[TROUBLES] <= 1200


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module; `…` stands for a value that is put into one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                getattr(part, "value", "") if isinstance(part, ast.Constant) else "…"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_each_message_among_the_troubles_is_one_of_the_code():
    code = [
        text
        for module in (ROOT / "escala").rglob("*.py")
        for text in texts_of(ast.parse(module.read_text()))
    ]
    rows = [line for line in TROUBLES.read_text().splitlines() if line.startswith("| ")]
    messages = [match[1] for row in rows if (match := re.match(r"\| `(.+?)` \|", row))]
    assert 40 <= len(messages) == len({*messages}) and min(map(len, messages)) > 10
    assert [message for message in messages if not any(message in text for text in code)] == []


def test_pages_show_the_files_of_examples_as_they_are():
    shown = [(n, text) for page in PAGES for n, text in files(page).items() if "examples/" in n]
    assert shown and all((ROOT / name).read_text() == text for name, text in shown)
    all_text = "".join(page.read_text() for page in PAGES)
    assert [p.name for p in (ROOT / "examples").iterdir() if p.name not in all_text] == []


@pytest.mark.usefixtures("registries")
def test_the_guide_for_scripts_has_a_valid_experiment_and_every_placeholder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    guide = DOCS / "start" / "script-in-detail.md"
    assert Experiment(yaml.safe_load(files(guide)["train.yaml"]), "train.yaml").runs
    text = guide.read_text() + (DOCS / "start" / "your-script.md").read_text()
    names = {f"{{{name}}}" for name in PLACEHOLDERS}
    names |= {name for name, strategy in STRATEGIES.items() if not strategy.engine}
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_reference_is_up_to_date(tmp_path):
    assert [*stale_pages(DOCS / "reference")] == [], "run python scripts/docs_reference.py"
    (tmp_path / "configuration.md").write_text("something else")
    assert [*stale_pages(tmp_path)] == ["configuration.md", "tables.md", "commands.md"]


def _keys(node: object) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_keys, node))
    if not isinstance(node, dict):
        return set()
    described = {k for k, v in node.get("properties", {}).items() if "description" in v}
    return described.union(*(_keys(value) for value in node.values()))


def test_every_key_of_the_settings_and_every_column_is_on_its_page():
    texts = pages()
    keys = _keys(experiment.compose_schema(yaml.safe_load(experiment.SCHEMA.read_text())))
    assert {"resources", "vocabulary", "fractions"} <= keys
    assert [key for key in keys - {"type"} if f"{key}`" not in texts["configuration.md"]] == []
    # A mark stands for the ends of an interval.
    columns = {
        f"`{column.get('end_of', key)}`{' ±' * ('end_of' in column)}"
        for name in TABLES
        for key, column in schema(name)["properties"].items()
    }
    assert [column for column in columns if column not in texts["tables.md"]] == []


def test_what_a_key_may_be_is_told_and_what_is_described_alike_stands_once():
    fraction = {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5}
    properties = {
        "a": {"description": "First.", "$ref": "#/$defs/fraction", "unit": "s"},
        "b": {"description": "Either `x`.", "enum": ["x", "y", None]},
        "c": {"description": "A `p` or a `q`.", "enum": ["p", "q"], "default": "q"},
        "d": {"description": "Many.", "type": "array", "items": {"type": "integer", "minimum": 2}},
        "e": {
            "description": "Inner.",
            "properties": {"f": {"type": ["string", "null"], "description": "Its own."}},
        },
        "g": {"description": "A column.", "type": ["number", "null"]},
        "g_low": {"description": "The lower end.", "type": "number", "end_of": "g"},
    }
    one = {"description": "One.", "required": ["d"], "properties": properties}
    other = {
        "properties": {
            "b": properties["b"],
            "d": properties["d"],
            "h": {"description": "Many.", "type": "array", "items": {"type": "integer"}},
            "i": {"type": "integer", "minimum": 1, "maximum": 10**9, "read_by": ["p", "q"]},
            "k": {"type": "integer", "minimum": 1, "maximum": 10**9},
        }
    }
    root = {"$defs": {"fraction": fraction}}
    assert [*describe([("one", one), ("two", other)], root)] == [
        "## Keys of several sections",
        "- `b` (`x`, `y`): Either `x`.",
        "## one",
        "One.",
        "[See above](#keys-of-several-sections): `b`.",
        "- `a` (0 to 1, s, = `0.5`): First.\n"
        "- `c` (= `q`): A `p` or a `q`.\n"
        "- **`d`** (integers, ≥ 2): Many.\n"
        "- `e`: Inner.\n"
        "    - `f` (text?): Its own.\n"
        "- `g` ± (number?): A column.",
        "## two",
        "[See above](#keys-of-several-sections): `b`.",
        "- `d` (integers, ≥ 2): Many.\n- `h` (integers): Many.\n- `k` (integer)",
        "Read by `p`, `q`:",
        "- `i` (integer)",
    ]
    assert [*describe([("two", other)], root, are_columns=True)] == [
        "## two",
        "- `b` (`x`, `y`): Either `x`.\n- `d`, `h`: Many.\n- `k`",
        "Read by `p`, `q`:",
        "- `i`",
    ]


def test_keys_that_follow_each_other_are_named_by_the_first_and_the_last():
    keys = {key: {"type": "string", "description": key.upper()} for key in "abcdef"}
    sections = [("one", {"properties": keys}), ("two", {"properties": keys})]
    sections += [("three", {"properties": {key: keys[key] for key in "abcef"}})]
    *_, last = describe(sections, {})
    assert last == "[See above](#keys-of-several-sections): `a` … `c`, `e`, `f`."


@pytest.mark.sweep
@pytest.mark.docs
def test_the_site_is_built_without_a_broken_link_and_loads_nothing_from_elsewhere(tmp_path):
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]+)")
    found = {u for page in tmp_path.rglob("*.html") for u in loaded.findall(page.read_text())}
    assert found == set()


def in_pytorch(file: Path, folder: Path) -> Path:
    """Return the experiment of an exercise in PyTorch, as the course makes it."""
    made = folder / file.name.replace(".yaml", "-torch.yaml")
    call = ["sed", "-f", ROOT / "experiments/course/torch.sed", file]
    made.write_text(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    return made


@pytest.mark.sweep
@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_exercise_trains_as_often_in_pytorch_and_as_its_page_says(file, tmp_path):
    [page] = [each for each in EXERCISES if f"{file.stem}.yaml" in each.read_text()]
    both = [load(file), load(in_pytorch(file, tmp_path))]
    assert [each.name for each in both] == [file.stem, f"{file.stem}-torch"]
    strategies = [{run.strategy for run in each.runs} for each in both]
    assert strategies[0] <= {"single", "horovod-mpi", "hybrid"}
    assert strategies[1] <= {"torch-single", "ddp-gloo", "ddp-hybrid"}
    counts = [
        len(each.runs) + sum(len(each.probe_runs(probe)) for probe in PROBES) for each in both
    ]
    if times := re.search(r"trains (\d+) times", page.read_text()):
        assert counts == [int(times[1])] * 2
    for name, path in re.findall(r"results/([\w-]+)/runs/([^*\s]*)/run\.json", page.read_text()):
        *configuration, folder = path.split("/")
        probe, _, repeat = folder.partition(".rep")
        experiment = {each.name: each for each in both}[name]
        experiment.run(*configuration, int(repeat) if repeat else None, probe)


@pytest.mark.sweep
@pytest.mark.parametrize("page", EXERCISES, ids=lambda path: path.stem)
def test_tables_that_an_exercise_reads_have_its_columns(page):
    read = r"tables/(\w+)\.csv'\)[^\n]*\n(.*?)(?:\n\w+ = pandas|\"$)"
    for table, columns in re.findall(read, page.read_text(), re.M | re.S):
        # A value that a column is compared with is no column.
        names = re.sub(r"[!=]= '[^']*'", "", columns)
        assert set(re.findall(r"'(\w+)'", names)) <= set(dtypes(table))
