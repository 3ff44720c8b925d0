"""The gallery: every entry has its page, the command that makes it, and what the page answers."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from escala.experiment import load
from tests.conftest import ROOT
from tests.documented import commands

GALLERY = ROOT / "docs" / "gallery"
TEXT = (GALLERY / "index.md").read_text()
#: What an entry quotes, and the name of its page.
ANSWERS = {
    name: quote
    for quote, name in re.findall(r"^> ([^\n]*).*?\]\(([\w-]+)\.html\)", TEXT, re.M | re.S)
}
#: Characters of a page, and of those of very many runs.
LARGEST, OF_MANY_RUNS = 220_000, dict.fromkeys(["outlines-torch-seeds", "side-by-side"], 260_000)


class _Page(HTMLParser):
    """Reads the title and the text of a page."""

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


def test_every_question_has_a_page_and_every_page_an_entry():
    assert TEXT.count("\n## ") == 10
    assert {page.stem for page in GALLERY.glob("*.html")} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_entry_has_a_small_page_of_its_experiment_that_gives_the_answer(name, monkeypatch):
    monkeypatch.setenv("ESCALA_TORCH", sys.executable)
    page = GALLERY / f"{name}.html"
    assert page.stat().st_size <= OF_MANY_RUNS.get(name, LARGEST)
    files = {
        command.words[command.words.index("-e") + 1] if "-e" in command.words else "config.yaml"
        for command in commands(GALLERY / "index.md")
        if command.words[:2] in (("escala", "run"), ("escala", "study"))
    }
    experiments = {each.name: each for each in (load(ROOT / file) for file in files)}
    read = _Page(page)
    assert _plain(read.title) == _plain(experiments[name].title)
    assert _plain(ANSWERS[name]) in _plain(read.text)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_names_no_folder_of_the_machine_that_made_it(name):
    text = (GALLERY / f"{name}.html").read_text()
    assert re.findall(r"(?<![\w.])/(?:home|root|work|tmp|mnt|srv)/[\w./-]*", text) == []
