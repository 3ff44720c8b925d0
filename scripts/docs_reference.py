"""Write the reference pages of the documentation from schemas and commands, or check them."""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

from escala import cli, command
from escala.core import console
from escala.core.errors import InputError
from escala.core.files import atomic
from escala.reference import GENERATED, ROOT, outdated, pages

#: Columns of a help text, and what every one has.
WIDTH, HELP = 100, re.compile(r"  -h, --help .*\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "reference")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if outdated")
    arguments = parser.parse_args()
    if not arguments.check:
        for name, text in all_pages().items():
            with atomic(arguments.folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return
    stale = outdated(arguments.folder, all_pages())
    if stale:
        reason = "differs from the schemas or commands"
        raise InputError(arguments.folder, stale, reason, "run scripts/docs_reference.py")


def all_pages() -> dict[str, str]:
    """Return the reference pages: name of the file in `docs/reference/` → Markdown."""
    return {**pages(), "commands.md": commands()}


def commands() -> str:
    """Return the page of the command `escala`: its exit codes, and the help of each subcommand."""
    codes = [f"| {code} | {meaning} |" for code, meaning in console.MEANINGS.items()]
    lines = [
        "# Commands",
        "",
        GENERATED.format("escala/command.py", "the help texts in `escala/commands/`"),
        "",
        "## Exit codes",
        "",
        *("| code | meaning |", "| --- | --- |", *codes),
    ]
    for name, parser in command.parsers().items():
        parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
        text = HELP.sub("", parser.format_help()).rstrip()
        # The options say what an automatic line of usage repeats.
        text = text if parser.usage else text.partition("\n\n")[2]
        lines += ["", f"## escala {name}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
