"""The documentation, as a site and on a Git host: links lead somewhere, and both look alike."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from markdown_it.token import Token

from tests.conftest import ROOT
from tests.documented import tokens

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
#: What a reader sees of the structure of a page; a table's cells are those of its rows.
SEEN = ("h1", "h2", "h3", "h4", "li", "pre", "table", "tr", "td", "img", "strong", "em")


def _all_tokens(page: Path) -> Iterator[Token]:
    for token in tokens(page):
        yield token
        yield from token.children or ()


def _anchors(page: Path) -> set[str]:
    """Return the anchors that a Git host gives the headings of a page."""
    headings = [
        "".join(each.content for each in title.children or ())
        for opening, title in pairwise(tokens(page))
        if opening.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def _broken(page: Path) -> list[str]:
    """Return the links of a page to files and headings that do not exist."""
    links = [t.attrs.get("href") or t.attrs.get("src") for t in _all_tokens(page)]
    parts = [(link, urlsplit(str(link))) for link in links if link]
    return [
        str(link)
        for link, part in parts
        if not part.scheme
        for target in [(page.parent / part.path).resolve() if part.path else page]
        if not target.exists() or (part.fragment and part.fragment not in _anchors(target))
    ]


@pytest.mark.parametrize(
    "page",
    [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")), *PAGES],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere_on_a_git_host(page):
    assert _broken(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# `a.B` here\n[x](#ab-here) [y](#b) [z](b.md) [w](https://example.org)\n")
    assert _broken(page) == ["#b", "b.md"]


def _listed(nav: list | str | dict) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from _listed(each)


def test_the_readme_has_at_most_500_words():
    assert len((ROOT / "README.md").read_text().split()) <= 500


def test_how_tos_are_at_most_25_of_two_screens_each():
    texts = {page.name: page.read_text() for page in (DOCS / "how-to").glob("*.md")}
    assert len(texts) <= 25
    words = {name: len(re.findall(r"\S*\w\S*", text)) for name, text in texts.items()}
    assert {name: words[name] for name in texts if words[name] > 700} == {}
    assert [name for name, text in texts.items() if len(text.splitlines()) > 100] == []


def test_every_page_is_in_the_navigation_or_in_the_archive_once():
    archive = DOCS / "decisions"
    names = [str(page.relative_to(DOCS)) for page in PAGES if page.parent != archive]
    navigation = list(_listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(navigation) == sorted([*names, "decisions/index.md"])
    linked = [
        token.attrs["href"]
        for token in _all_tokens(archive / "index.md")
        if token.tag == "a" and token.attrs
    ]
    assert sorted([*linked, "index.md"]) == [page.name for page in PAGES if page.parent == archive]


def _build(folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    done = _build(folder)
    assert done.returncode == 0, done.stdout
    return folder / "site"


class _Article(HTMLParser):
    """Counts the tags of a page's article, without its permanent links."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.tags = False, Counter()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.inside |= tag == "article"
        self.tags[tag] += self.inside

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "article"


@pytest.mark.docs
@pytest.mark.sweep
def test_the_site_shows_what_a_git_host_shows(site):
    """Markdown of Python nests lists by four spaces, and needs blank lines where others do not."""
    different = {}
    for page in PAGES:
        expected = Counter(token.tag for token in _all_tokens(page) if token.nesting != -1)
        expected["pre"] = sum(token.type in ("fence", "code_block") for token in _all_tokens(page))
        article = _Article()
        article.feed((site / page.relative_to(DOCS).with_suffix(".html")).read_text())
        differing = {
            tag: (expected[tag], article.tags[tag])
            for tag in SEEN
            if expected[tag] != article.tags[tag]
        }
        if differing:
            different[str(page.relative_to(DOCS))] = differing
    assert different == {}


@pytest.mark.docs
@pytest.mark.sweep
def test_pages_of_the_site_load_nothing_from_elsewhere(site):
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(https?:[^\s\">]+)")
    found = {url for page in site.rglob("*.html") for url in loaded.findall(page.read_text())}
    assert found == set()


@pytest.mark.docs
@pytest.mark.sweep
def test_broken_links_end_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    links = "[one](missing.md) [two](index.md#missing) [three](../README.md)"
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n{links}\n")
    (tmp_path / "README.md").touch()
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text()) | {"nav": ["index.md"]}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    done = _build(tmp_path)
    assert done.returncode != 0
    assert all(f"index.md:3:{column} " in done.stdout for column in (7, 34, 51))
