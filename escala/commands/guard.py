"""Compare two commits of a git repository: is the second slower than the first?

The repository is that of the working directory. Each commit gets a temporary work tree of its own,
and the command is started in the same folder of it. Runs of both take turns. Your own work tree
stays as it is, and what is not committed is not measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from escala.analysis import verdicts
from escala.commands import flow
from escala.core import console
from escala.core.arguments import Parser
from escala.core.children import capture
from escala.core.console import say
from escala.core.errors import InputError, Unavailable
from escala.core.files import is_file, temporary_folder, write_text
from escala.core.readable import name_first
from escala.draft import pair, trial

SIDES = BASE, HEAD = "base", "head"
#: What is concluded, with the exit code.
SLOWER, NOT_SLOWER, UNDECIDED = "slower", "not slower", "undecided"
CODES = {NOT_SLOWER: console.DONE, SLOWER: console.FAILED, UNDECIDED: console.UNDECIDED}
#: What is concluded from the verdict of the session. It compares the ratio with 1 + threshold:
#: FASTER means that the whole interval is below it. Other verdicts conclude nothing.
_OUTCOMES = {verdicts.SLOWER: SLOWER, verdicts.FASTER: NOT_SLOWER}
#: A job of each forge.
_FORGES = Path(__file__).with_name("forges")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?(%?)")
EXAMPLES = """\
examples:
  escala guard main HEAD -- python train.py --epochs 2
  escala guard v1.2 v1.3 --threshold 2% --repeats 15 -- python bench.py
  escala guard main HEAD --markdown guard.md --json guard.json -- python train.py
  escala guard --ci github > .github/workflows/guard.yml
  escala guard --ci gitlab > .gitlab-ci.yml

exit codes:
  0   not slower by more than the threshold
  1   slower by more than the threshold
  2   an option, a commit or the command cannot be used
  3   undecided: after --minutes the interval holds the threshold, or other work disturbed the runs,
      or too many failed

It stops when the whole interval is above or below the threshold. The interval is that of the paired
runs of this call. The page has a wider one, which also covers how other sessions would differ. Of
100 commits that are exactly as slow as the threshold, about three are called slower.

Data that git does not track are not in a work tree: name them by --data NAME=PATH. Results are in
results/NAME/ of the working directory.
"""


def add(parser: Parser) -> None:
    parser.usage = "escala guard BASE HEAD [OPTION …] -- COMMAND …"
    parser.add_argument("base", nargs="?", metavar="BASE", help="a commit, tag or branch")
    parser.add_argument("head", nargs="?", metavar="HEAD", help="the one that may be slower")
    parser.add_argument(
        "--threshold", type=fraction, default=0.05, metavar="PERCENT",
        help="a slowdown that is no failure; default: 5%%",
    )  # fmt: skip
    flow.add_file(parser, "--markdown", "write the answer as Markdown, for a pull request")
    forges = sorted(file.stem for file in _FORGES.iterdir())
    parser.add_argument(
        "--ci", choices=forges, help="print a job for this forge that guards pull requests, and end"
    )
    flow.add_options(parser)


def fraction(text: str) -> float:
    """Return a fraction of `5%` or `0.05`; a type of `argparse`."""
    match = _PERCENT.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is not a percentage from 0, such as 5%")
    if not match[2] and float(match[1]) >= 1:
        raise argparse.ArgumentTypeError(f"{text} has no percent sign; write {text.strip()}%")
    return float(match[1]) / (100 if match[2] else 1)


def run(arguments: argparse.Namespace) -> int:
    if arguments.ci:
        print((_FORGES / f"{arguments.ci}.yml").read_text(encoding="utf-8"), end="")
        return console.DONE
    try:
        return _compare_commits(arguments)
    except InputError:
        raise
    except Exception as error:  # The usual code of an error is that of a slower commit.
        if isinstance(error, Unavailable):
            say(error)
        else:
            traceback.print_exc()
        return console.UNDECIDED


def _compare_commits(arguments: argparse.Namespace) -> int:
    flow.require_writable("--markdown", arguments.markdown)
    if not arguments.head:
        remedy = "name two: escala guard main HEAD -- python train.py"
        raise InputError("the call", arguments.base, "does not name two commits", remedy)
    top = Path(git(Path(), "rev-parse", "--show-toplevel", refused="is in no git repository"))
    names = {BASE: arguments.base, HEAD: arguments.head}
    commits = {}
    for side, name in names.items():
        words = "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
        commits[side] = git(top, *words, refused=f"has no commit {name}; git fetch may bring it")
    if git(top, "status", "--porcelain", "--untracked-files=no"):
        say("Your work tree has changes that are not committed. They are not measured.")
    side = pair.draft_side(arguments.extra, arguments)
    name = arguments.name or f"guard-{side.name}"[:60]
    title = pair.title_of(
        f"Is {names[HEAD]} slower than {names[BASE]}, by {' '.join(arguments.extra)}?",
        "Is the second of two commits slower?",
    )
    drafted = pair.pair(dict.fromkeys(SIDES, side), name, title, arguments.threshold)
    [workload] = drafted.settings["workloads"].values()
    # The draft lists files of the user's own tree. Without a list, all files that git tracks count.
    del workload["files"]
    with work_trees(top, commits) as trees:
        place = Path.cwd().resolve().relative_to(top)
        for variant, tree in trees.items():
            if not (tree / place).is_dir():
                remedy = "make the call in a folder that both commits hold"
                raise InputError("the commit", names[variant], f"has no folder {place}", remedy)
            drafted.settings["variants"][variant]["directory"] = str(tree / place)
        file = trees[BASE].with_name(f"escala-{name}.yaml")
        experiment = flow.begin(drafted, file, arguments, force=True)
        if not experiment:
            return console.DONE
        trials = trial.try_pair(experiment)
        _refuse_reads_of_own_tree(top, shlex.split(workload["command"]), trials)
        code, content = flow.measure(drafted, file, trials, arguments, arguments.threshold)
    if not content:
        return console.UNDECIDED if code in (console.FAILED, console.NO_TIME) else code
    [compared] = content["comparisons"]
    content["guard"] = {
        "commits": commits,
        "names": names,
        "threshold": arguments.threshold,
        "outcome": _OUTCOMES.get(compared["verdict_of_session"], UNDECIDED),
    }
    content["sentences"] = [sentence(content), *content["sentences"]]
    flow.print_answer(content, arguments)
    if arguments.markdown:
        write_text(arguments.markdown, markdown(content))
    return CODES[content["guard"]["outcome"]]


def git(folder: Path, *words: str, refused: str | None = None) -> str:
    """Return what a git command prints in a folder.

    Parameters
    ----------
    refused : the reason if it fails, before the first line that git says; None: all that it says.

    Raises
    ------
    InputError : git is not there, or the command fails.
    """
    # A hook of the repository is no part of what is measured.
    command = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *words]
    try:
        done = capture(command)
    except FileNotFoundError:
        raise InputError("git", None, "is not installed", "install it") from None
    if done.returncode:
        remedy = "correct the call, or make it in a clone that holds both commits"
        message = done.stderr.strip()
        line = message.partition("\n")[0]
        # It does not trust the repository of another user, as of a checkout in a container.
        if trust := re.search(r"git config .*safe\.directory.*", message):
            reason, remedy = f"git refuses it: {line}", trust[0]
        elif refused:
            reason = f"{refused}: {line}" if line else refused
        else:
            reason = f"git {words[0]} failed: {message}"
        raise InputError("git", str(folder.resolve()), reason, remedy)
    return done.stdout.strip()


@contextmanager
def work_trees(top: Path, commits: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """Yield a temporary work tree of each commit, under the keys of `commits`; then remove it.

    Parameters
    ----------
    top : the repository, whose own work tree is not touched.

    Raises
    ------
    InputError : git cannot make one.
    """
    with temporary_folder("escala-guard") as folder:
        trees = {name: folder / name for name in commits}
        try:
            for name, tree in trees.items():
                git(top, "worktree", "add", "--detach", str(tree), commits[name])
            yield trees
        finally:
            for tree in filter(Path.exists, trees.values()):
                remove = ["git", "-C", str(top), "worktree", "remove", "--force", "--force"]
                subprocess.run([*remove, str(tree)], capture_output=True)


def _refuse_reads_of_own_tree(
    top: Path, command: Sequence[str], trials: Sequence[trial.Trial]
) -> None:
    """Refuse a program that reads tracked files of the user's own tree: both sides read the same.

    It may name them in its command.

    Raises
    ------
    InputError : it does, for example because its package is installed from there.
    """
    named = (
        os.path.realpath(word) for word in command if Path(word).is_absolute() and is_file(word)
    )
    read = {Path(path) for path in chain(named, *(tried.read for tried in trials))}
    inside = sorted(str(path) for path in read if path.is_absolute() and path.is_relative_to(top))
    if inside and (tracked := git(top, "ls-files", "--", *inside).splitlines()):
        reason = f"reads {name_first(tracked)} of {top} itself, so both commits run the same code"
        remedy = "let it import from the folder it is started in, as by env PYTHONPATH=."
        raise InputError("the command", None, reason, remedy)


def sentence(content: Mapping[str, Any]) -> str:
    """Return the answer to the question of `escala guard` in one sentence."""
    guard, [compared] = content["guard"], content["comparisons"]
    head, base = (
        f"{guard['names'][side]} ({guard['commits'][side][:10]})" for side in (HEAD, BASE)
    )
    allowed = f"{100 * guard['threshold']:g} %"
    verdict = {
        SLOWER: f"{head} is slower than {base} by more than {allowed}",
        NOT_SLOWER: f"{head} is not slower than {base} by more than {allowed}",
        UNDECIDED: f"It is not decided whether {head} is slower than {base} by more than {allowed}",
    }[guard["outcome"]]
    return pair.describe(compared, verdict)


def markdown(content: Mapping[str, Any]) -> str:
    """Return an answer as Markdown, for a pull request."""
    guard, machine = content["guard"], content["machine"]
    rows = [
        f"| {side} | `{guard['names'][side]}` | `{guard['commits'][side][:10]}` | "
        + ("–" if row["seconds"] is None else f"{row['seconds']:.3g}")
        + f" | {row['runs']} |"
        for row in content["configurations"]
        for side in [row["variant"]]
    ]
    unit = content["configurations"][0]["seconds_of"]
    lines = [
        f"### {guard['outcome'].capitalize()}",
        "",
        content["sentences"][0],
        "",
        f"| | name | commit | seconds of {'an epoch' if unit == 'epoch' else 'a run'} | runs |",
        "| --- | --- | --- | ---: | ---: |",
        *rows,
        "",
        f"{machine.get('processor')}, {machine.get('cores')} cores. Measured by `escala guard`.",
    ]
    return "\n".join(lines) + "\n"
