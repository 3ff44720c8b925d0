"""Write the file of an experiment on your own data or program, with a comment on each key.

Without --data and --command, it asks questions in a terminal. The experiment is checked before its
file is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from escala.core.arguments import Parser
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import write_text
from escala.data.genomes.acquire.files import is_fasta
from escala.draft import program as draft_program
from escala.draft.data import DEFAULTS, SIMULATED, Dataset, draft, examine, recognise
from escala.draft.file import Draft
from escala.experiment import Experiment

EXAMPLES = """\
examples:
  escala new                                            it asks
  escala new --data flowers.csv --epochs 20 --output flowers.yaml
  escala new --data sequences.fasta.gz --labels metadata.tsv --label host
  escala new --data pictures/ --strategies ddp-gloo --layouts 1x2
  escala new --command 'python train.py --batch {rows}'   for your own program

Then call escala run -e flowers.yaml --dry-run, and the same without --dry-run.
"""


def add(parser: Parser) -> None:
    # Programs have options of the same names with other meanings.
    if any(word.partition("=")[0] == "--command" for word in sys.argv[1:]):
        parser.description = "Write the file that `escala try` writes, and measure nothing."
        parser.add_argument("--command", required=True, metavar="TEXT", help="the program to start")
        draft_program.add_options(parser)
        _add_output(parser, "escala-NAME.yaml")
        return
    for option, metavar, text in (
        ("--data", "PATH",
         "a folder of FASTA files, one for each class, or one FASTA file with --labels; a CSV or "
         "TSV file; a folder with a folder of pictures for each class; MNIST or CIFAR-10; a .npz "
         "file or a folder of .npy files; or "
         f"`{SIMULATED}`"),
        ("--labels", "TABLE",
         "a CSV or TSV file with a row for each record of one FASTA file"),
        ("--label", "COLUMN", "the column of the class; default: found in --labels, or the last"),
        ("--command", "TEXT",
         "in place of --data: your own program, as in 'python train.py --batch {rows}'; its "
         "options are those of escala try: escala new --command TEXT --help"),
        ("--workload", "NAME|FOLDER", "a network, or your own; default: a network for such data"),
    ):  # fmt: skip
        parser.add_argument(option, metavar=metavar, help=text, default=argparse.SUPPRESS)
    text = "columns of a table to leave out"
    parser.add_argument("--drop", nargs="+", metavar="COLUMN", help=text)
    for name, metavar in (("strategies", "NAME"), ("layouts", "NODESxPROCS")):
        parser.add_argument(
            f"--{name}", nargs="+", metavar=metavar, help=f"default: {_default(name)}"
        )
    for name in ("epochs", "repeats"):
        parser.add_argument(f"--{name}", type=int, help=f"default: {_default(name)}")
    _add_output(parser, "experiments/DATA.yaml")


def run(arguments: argparse.Namespace) -> int | None:
    if "command" in arguments:
        arguments.name = arguments.name or (arguments.output and arguments.output.stem)
        drafted = draft_program.draft([arguments.command], arguments)
        output = arguments.output or draft_program.file_of(drafted.name)
        return _write(drafted, output, arguments.force)
    options = {name: value for name, value in vars(arguments).items() if value is not None}
    force = options.pop("force")
    if "data" in options:
        options["data"] = _recognise(options)
    else:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            reason = "is missing, and there is no terminal to ask in"
            raise InputError("--data", None, reason, f"name your data, or {SIMULATED}")
        try:
            options = _ask(options, force)
        except EOFError:
            print("\nescala: no answer, so nothing is written", file=sys.stderr)
            return 1
    dataset = options.pop("data")
    output = options.pop("output", None) or _default_output(dataset)
    return _write(examine(draft(output.stem, dataset, **options)), output, force)


def _recognise(options: dict[str, Any]) -> Dataset:
    """Return the dataset of the options, which are removed."""
    data, labels, label, drop = (options.pop(k, None) for k in ("data", "labels", "label", "drop"))
    return recognise(data, labels, label, drop or ())


def _suggest_output(output: Path) -> str:
    """Return the option that names another file, for the message on an existing file."""
    return f"--output {output.with_name('NAME.yaml')}"


def _write(experiment: Draft, output: Path, force: bool) -> None:
    content = experiment.content(output, force, _suggest_output(output))
    write_text(output, content)
    print("\n".join([*experiment.sentences, f"Written: {output}"]))
    print(f"Next: {call('run --dry-run --experiment', output)}")


def _add_output(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"default: {default}")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")


def _default(name: str) -> str:
    """Return a default as the user would write it."""
    value = DEFAULTS[name]
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _default_output(dataset: Dataset) -> Path:
    return Path("experiments", f"{dataset.name}.yaml")


def _ask(options: dict[str, Any], force: bool) -> dict[str, Any]:
    """Return options, completed by answers of the user.

    An answer is checked together with the earlier answers. If it is refused, the question comes
    again.

    Raises
    ------
    InputError : an option is refused.
    """
    answers: dict[str, Any] = {}

    def check() -> None:
        settings = dict(answers)
        dataset = settings.pop("data")
        if output := settings.pop("output", None):
            draft(output.stem, dataset, **settings).content(output, force, _suggest_output(output))
        else:
            Experiment(draft("draft", dataset, **settings).settings, "draft")

    def ask(name: str, question: str, default: str | None, convert: Callable[[str], Any]) -> None:
        if name in options:
            answers[name] = options[name]
            check()
            return
        while True:
            answer = input(f"{question}{f' [{default}]' if default else ''}: ").strip()
            if not (answer or default):
                continue
            try:
                answers[name] = convert(answer or default)
                check()
            except ValueError as error:
                print(error)
            else:
                return

    def recognise_answer(answer: str) -> Dataset:
        if is_fasta(Path(answer)) and not options.get("labels"):
            question = "Table with a row for each record, such as metadata.tsv: "
            named = {"labels": input(question).strip()}
            dataset = _recognise(options | named | {"data": answer})
            options.update(named)
            return dataset
        return _recognise(options | {"data": answer})

    question = f"Your data: a folder or a file, or `{SIMULATED}`"
    ask("data", question, None, recognise_answer)
    # With the default, no workload is set, so the draft has every workload for such data.
    default = answers["data"].workload
    ask(
        "workload",
        "Workload: a name, or your folder",
        default,
        lambda answer: None if answer == default else answer,
    )
    for name, question, convert in (
        ("strategies", "Strategies to compare with one process", str.split),
        ("layouts", "Layouts, NODESxPROCS", str.split),
        ("epochs", "Epochs", _whole),
        ("repeats", "Repeats; an interval needs five", _whole),
    ):
        ask(name, question, _default(name), convert)
    ask("output", "File to write", str(_default_output(answers["data"])), Path)
    return answers


def _whole(answer: str) -> int:
    if not answer.isdecimal():
        raise ValueError(f"{answer!r} is not a whole number, such as 5")
    return int(answer)
