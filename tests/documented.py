"""The commands and files in the blocks of the documentation, and the commands in its sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Markdown as Git hosts read it.
GIT_HOST = MarkdownIt("commonmark").enable("table")
#: A comment above a block. A reader does not see it.
_NOTE = re.compile(r"\s*<!-- (run by|not run): (.+) -->\s*", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")
#: A command inside a sentence or a table; `uv run` alone is none.
_INSIDE = re.compile(r"([A-Z][A-Z0-9_]*=\S+ )*(\.uv/bin/)?uv run (?!-)\S")
#: The name of a file before its content.
_NAMED = re.compile(r"`([\w./-]+\.(?:yaml|py))`:$")


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, its text, the paragraph before it, and what a comment tells.

    `run_by` names a test, and `not_run` has the reason why there is none.
    """

    page: str
    line: int
    language: str
    text: str
    before: str = ""
    run_by: str = ""
    not_run: str = ""


@dataclass(frozen=True)
class Command:
    """One command: its words without `uv run`, and the variables that it is given."""

    page: str
    line: int
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    run_by: str = ""
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


@cache
def tokens(page: Path) -> list[Token]:
    """Return what a page consists of; it is parsed once in a process."""
    return GIT_HOST.parse(page.read_text())


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    name, before, note = str(page.relative_to(ROOT)), "", ("", "")
    for token in tokens(page):
        if token.type == "inline":
            before, note = token.content, ("", "")
        elif token.type == "html_block" and (found := _NOTE.fullmatch(token.content)):
            note = (found[1], found[2])
        elif token.type == "fence":
            notes = {note[0].replace(" ", "_"): note[1]} if note[0] else {}
            line = token.map[0] + 1
            yield Block(name, line, token.info.strip(), token.content, before, **notes)
            before, note = "", ("", "")


def files(page: Path) -> dict[str, str]:
    """Return the content of each block that stands below the name of a file, by this name."""
    named = [(_NAMED.search(block.before), block.text) for block in blocks(page)]
    return {name[1]: text for name, text in named if name}


def commands(page: Path) -> Iterator[Command]:
    """Yield the commands of a page: those of its blocks, and then those in sentences and tables.

    A command in a block gets the variables that were exported before it on the page.
    """
    exported: dict[str, str] = {}
    for block in blocks(page):
        if block.language == "bash":
            for words in split(block.text):
                if words[0] == "export":
                    exported |= dict(word.split("=", 1) for word in words[1:])
                else:
                    yield _command(block.page, block.line, words, exported, block)
    for token in tokens(page):
        for child in token.children or ():
            if child.type == "code_inline" and _INSIDE.match(child.content):
                (words,) = split(child.content)
                yield _command(str(page.relative_to(ROOT)), token.map[0] + 1, words, {})


def split(text: str) -> list[list[str]]:
    """Return the words of each command of a text, as a shell reads them."""
    text = re.sub(r"\s{2,}# .*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t", "", True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&\n"):
            found.append([])
        else:
            found[-1].append(word)
    return [words for words in found if words]


def _command(
    page: str, line: int, words: list[str], exported: dict[str, str], block: Block | None = None
) -> Command:
    own = list(takewhile(_ASSIGNMENT.match, words))
    rest = words[len(own) :]
    if rest[:2] in (["uv", "run"], [".uv/bin/uv", "run"]):
        rest = rest[4:] if rest[2:3] == ["--group"] else rest[2:]
    environment = exported | dict(word.split("=", 1) for word in own)
    notes = {"run_by": block.run_by, "not_run": block.not_run} if block else {}
    return Command(page, line, tuple(rest), tuple(environment.items()), **notes)
