"""The site of the documentation, the course and the gallery: for the longer suite."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from escala.experiment import load
from escala.probes import PROBES
from escala.report.tables.base import dtypes
from tests.conftest import ROOT
from tests.documented import commands

pytestmark = pytest.mark.sweep

DOCS = ROOT / "docs"
GALLERY = DOCS / "gallery"
#: What an entry quotes, and the name of its page.
ANSWERS = {
    name: quote
    for quote, name in re.findall(
        r"^> ([^\n]*).*?\]\(([\w-]+)\.html\)", (GALLERY / "index.md").read_text(), re.M | re.S
    )
}
EXERCISES = sorted((DOCS / "course").glob("[0-9]-*.md"))
SOLUTIONS = [DOCS / "course" / "solutions" / path.name for path in EXERCISES]
EXPERIMENTS = sorted((ROOT / "experiments" / "course").glob("*.yaml"))


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


class _Page(HTMLParser):
    """Reads the text of a page, and its title."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.inside, self.title, self.text = "", "", ""
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.inside = tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.title += data if self.inside == "h1" else ""


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def test_each_page_of_the_gallery_gives_the_answer_that_its_entry_quotes(monkeypatch):
    monkeypatch.setenv("ESCALA_TORCH", sys.executable)
    assert {page.stem for page in GALLERY.glob("*.html")} == set(ANSWERS)
    files = {
        command.words[command.words.index("-e") + 1] if "-e" in command.words else "config.yaml"
        for command in commands(GALLERY / "index.md")
        if command.words[:2] in (("escala", "run"), ("escala", "study"))
    }
    titles = {each.name: each.title for each in (load(ROOT / file) for file in files)}
    for name, answer in ANSWERS.items():
        page = _Page(GALLERY / f"{name}.html")
        assert _plain(page.title) == _plain(titles[name])
        assert _plain(answer) in _plain(page.text)
        text = (GALLERY / f"{name}.html").read_text()
        assert re.findall(r"(?<![\w.])/(?:home|root|work|tmp|mnt|srv)/[\w./-]*", text) == []


def blocks(page: Path, language: str) -> str:
    """Return the blocks of a page in a language, one after the other."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return "".join(text for name, text in found if name == language)


@pytest.mark.parametrize("page", SOLUTIONS, ids=lambda path: path.stem)
def test_a_solution_computes_what_it_prints(page):
    """Each line is `name = expression = value`; an expression may use the names before it."""
    values: dict[str, float] = {}
    for line in blocks(page, "text").splitlines():
        name, expression, printed = line.strip().split(" = ")
        values[name] = eval(expression, {"__builtins__": {}, "max": max}, values)
        decimals = len(printed.partition(".")[2])
        assert values[name] == pytest.approx(float(printed), abs=0.501 * 10**-decimals), line
    assert values


def in_pytorch(file: Path, folder: Path) -> Path:
    """Return the experiment of an exercise in PyTorch, as the course makes it."""
    made = folder / file.name.replace(".yaml", "-torch.yaml")
    call = ["sed", "-f", ROOT / "experiments/course/torch.sed", file]
    made.write_text(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    return made


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_exercise_trains_as_often_in_pytorch_and_as_its_page_says(file, tmp_path):
    [page] = [each for each in EXERCISES if f"{file.stem}.yaml" in each.read_text()]
    both = [load(file), load(in_pytorch(file, tmp_path))]
    assert [each.name for each in both] == [file.stem, f"{file.stem}-torch"]
    strategies = [{run.strategy for run in each.runs} for each in both]
    assert strategies[0] <= {"single", "horovod-mpi", "hybrid"}
    assert strategies[1] <= {"torch-single", "ddp-gloo", "ddp-hybrid"}
    counts = [len(each.runs) + sum(len(each.probed(probe)) for probe in PROBES) for each in both]
    if times := re.search(r"trains (\d+) times", page.read_text()):
        assert counts == [int(times[1])] * 2
    for name, path in re.findall(r"results/([\w-]+)/runs/([^*\s]*)/run\.json", page.read_text()):
        *configuration, probe = path.split("/")
        {each.name: each for each in both}[name].run(*configuration, None, probe)


@pytest.mark.parametrize("page", EXERCISES, ids=lambda path: path.stem)
def test_tables_that_an_exercise_reads_have_its_columns(page):
    read = r"tables/(\w+)\.csv'\)[^\n]*\n(.*?)(?:\n\w+ = pandas|\"$)"
    for table, columns in re.findall(read, page.read_text(), re.M | re.S):
        # A value that a column is compared with is no column.
        names = re.sub(r"[!=]= '[^']*'", "", columns)
        assert set(re.findall(r"'(\w+)'", names)) <= set(dtypes(table))
