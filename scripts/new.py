"""Write the file of an experiment on your own data or program, with a comment on each key.

Without --data and --command, in a terminal, it asks. The experiment is checked before it is
written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from escala import cli
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import atomic
from escala.core.variables import CALLERS_PATH
from escala.experiment import Experiment, draft_program
from escala.experiment.draft import DEFAULTS, draft, text
from escala.experiment.draft_program import Draft
from escala.experiment.files import owners
from escala.experiment.recognise import SIMULATED, recognised


def main() -> int | None:
    if any(word.partition("=")[0] == "--command" for word in sys.argv[1:]):
        return _write_program()
    arguments = _parser().parse_args()
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    force = given.pop("force")
    if "data" not in given:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise InputError(
                "--data",
                None,
                "is missing, and there is no terminal to ask in",
                f"name your data, or {SIMULATED}",
            )
        try:
            given = _asked(given, force)
        except EOFError:
            print("\nescala: no answer, so nothing is written", file=sys.stderr)
            return 1
    output = given.pop("output", None) or _default_output(given["data"])
    content = _checked(given, output, force)
    with atomic(output) as temporary:
        temporary.write_text(content, encoding="utf-8")
    if not_read := recognised(given["data"]).not_read:
        print(f"Not read in {given['data']}: {', '.join(not_read)}")
    print(f"Written: {output}\nNext: {call(f'run --experiment {output} --dry-run')}")
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="escala new", description=__doc__)
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="a folder of FASTA files, one for each class; a CSV file; a folder with a folder of "
        f"pictures for each class; MNIST or CIFAR-10; a .npz file or a folder of .npy files; or "
        f"`{SIMULATED}`",
    )
    parser.add_argument(
        "--command",
        metavar="TEXT",
        help="in place of --data: your own program, as in 'python train.py --batch {rows}'; its "
        "options are those of escala try: escala new --command TEXT --help",
    )
    parser.add_argument(
        "--workload", metavar="NAME|FOLDER", help="default: one for such data; FOLDER: your own"
    )
    parser.add_argument(
        "--strategies", nargs="+", metavar="NAME", help=f"default: {_default('strategies')}"
    )
    parser.add_argument(
        "--layouts", nargs="+", metavar="NODESxPROCS", help=f"default: {_default('layouts')}"
    )
    parser.add_argument("--epochs", type=int, help=f"default: {_default('epochs')}")
    parser.add_argument("--repeats", type=int, help=f"default: {_default('repeats')}")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: experiments/DATA.yaml"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    return parser


def _write_program() -> None:
    """Write the file that `escala try` writes, and measure nothing."""
    parser = argparse.ArgumentParser(prog="escala new", description=_write_program.__doc__)
    parser.add_argument("--command", required=True, metavar="TEXT", help="the program to start")
    draft_program.add_options(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: escala-NAME.yaml"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    arguments = parser.parse_args()
    output = arguments.output
    arguments.name = arguments.name or (output and output.stem)
    drafted = draft_of_program([arguments.command], arguments)
    output = output or drafted.file
    Experiment(drafted.settings, output)
    content = text(drafted.settings, drafted.notes, "escala new")
    require_place(output, drafted.name, content, arguments.force)
    with atomic(output) as temporary:
        temporary.write_text(content, encoding="utf-8")
    print("\n".join([*drafted.said, f"Written: {output}"]))
    print(f"Next: {call(f'run --experiment {output} --dry-run')}")


def draft_of_program(command: Sequence[str], options: argparse.Namespace) -> Draft:
    """Return the draft of a program that is looked for where the shell of the user does."""
    path = os.environ.get(CALLERS_PATH, os.environ.get("PATH", os.defpath))
    return draft_program.draft(command, options, path)


def require_place(file: Path, name: str, content: str, force: bool) -> None:
    """Refuse to replace another experiment, or to take the name of one.

    Raises
    ------
    InputError : the file exists and holds something else, the name belongs to another file, or the
        folder cannot be written to.
    """
    if file.exists() and file.read_text(errors="replace") != content and not force:
        raise InputError(
            file,
            file.name,
            "exists, and differs from what these options give",
            f"measure it as it is: escala run -e {file}; or add --force, or --name",
        )
    check_owner(name, file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=file.parent).close()
    except OSError as error:
        folder, reason = str(file.parent.absolute()), f"cannot be written to: {error.strerror}"
        raise InputError("the folder", folder, reason, "go to a folder of your own") from None


def _default(name: str) -> str:
    """Return a default as the user would write it."""
    value = DEFAULTS[name]
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _default_output(data: str) -> Path:
    return Path("experiments", f"{recognised(data).name}.yaml")


def _checked(settings: dict[str, Any], output: Path, force: bool) -> str:
    """Return the text of the file, once its experiment is valid and its place is free."""
    try:
        drafted = draft(output.stem, **settings)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("--layouts", settings["layouts"], str(error), "write it as 1x2") from None
    if output.exists() and not force:
        raise InputError(output, output.name, "exists", "choose another name, or add --force")
    Experiment(drafted, output)
    check_owner(drafted["experiment"], output)
    return text(drafted)


def check_owner(name: str, output: Path) -> None:
    """Refuse a name whose results belong to another file in the working directory."""
    for owner in owners(name, Path()):
        if not (output.exists() and owner.samefile(output)):
            raise InputError(output, name, f"is the name of {owner}", "choose another one")


def _asked(given: dict[str, Any], force: bool) -> dict[str, Any]:
    """Return the options, with an answer of the user for each that is not given.

    Every answer is checked together with those before it, and asked again if it is refused.
    """
    answers: dict[str, Any] = {}

    def ask(name: str, question: str, default: str | None, convert: Callable[[str], Any]) -> None:
        if name in given:
            answers[name] = given[name]
            return
        while True:
            answer = input(f"{question}{f' [{default}]' if default else ''}: ").strip()
            if not (answer or default):
                continue
            try:
                answers[name] = convert(answer or default)
                settings = {key: value for key, value in answers.items() if key != "output"}
                if "output" in answers:
                    _checked(settings, answers["output"], force)
                else:
                    Experiment(draft("draft", **settings), "draft")
            except ValueError as error:
                print(error)
            else:
                return

    ask("data", f"Your data: a folder or a file, or `{SIMULATED}`", None, str)
    dataset = recognised(answers["data"])
    # The default has further workloads beside it, so it is not the same as its name.
    usual = dataset.workload
    ask(
        "workload",
        "Workload: a name, or your folder",
        usual,
        lambda it: None if it == usual else it,
    )
    for name, question, convert in (
        ("strategies", "Strategies to compare with one process", str.split),
        ("layouts", "Layouts, NODESxPROCS", str.split),
        ("epochs", "Epochs", _whole),
        ("repeats", "Repeats; an interval needs six", _whole),
    ):
        ask(name, question, _default(name), convert)
    ask("output", "File to write", str(_default_output(answers["data"])), Path)
    return answers


def _whole(answer: str) -> int:
    if not answer.isdecimal():
        raise ValueError(f"{answer!r} is no whole number, such as 5")
    return int(answer)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
