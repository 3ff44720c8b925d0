"""A call of Snakemake for the command `escala`. Each error has one message with a remedy.

python -m escala.workflow.called --cores 2 TARGET      as snakemake --cores 2 TARGET
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from escala.core import console, interrupts

if __name__ == "__main__":  # Importing Snakemake takes seconds.
    interrupts.handle()

import psutil
from snakemake.exceptions import (
    InputFunctionException,
    LockException,
    MissingInputException,
    MissingRuleException,
    WorkflowError,
)

from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.experiment import files_by_name
from escala.workflow import internals

#: Words in the command line of a process that is a call of Snakemake.
_CALLS = ("snakemake", "escala.workflow.called")
#: Messages of Snakemake on unknown options, and on a profile that is no folder.
_UNKNOWN = "unrecognized arguments: "
_NO_PROFILE = re.compile(r"profile directory given \((.+?)\), but")


def main() -> int:
    """Make the call; return its exit code."""
    words, codes = sys.argv[1:], [console.FAILED]

    def tell(error: Exception, rules: Collection[str]) -> bool:
        explanation = explain(error, rules, words)
        if explanation is not None:
            say(explanation.text)
            codes.append(explanation.code)
        return explanation is not None

    interrupts.end_if_received()
    if console.BRIEF in os.environ:
        internals.print_little(print if "--dry-run" in words else console.show)
    code = internals.call(words, tell, partial(refusal_of, words))
    if isinstance(code, str):  # By `escala.workflow.experiments.refuse`.
        say(code)
        return console.WRONG
    return codes[-1] if code == console.FAILED else code or console.DONE


class Explanation(NamedTuple):
    """The printed text of an error, and the exit code of the call."""

    text: str
    code: int


def explain(error: Exception, rules: Collection[str], words: Sequence[str]) -> Explanation | None:
    """Return the explanation of an error; None if Snakemake is to print it.

    Parameters
    ----------
    rules : names of the rules that may be targets.
    words : the words of the call.
    """
    text, is_of_input = str(error), isinstance(error, InputFunctionException)
    if isinstance(error, LockException):
        return Explanation(_holder_of_lock(Path.cwd()), console.FAILED)
    if isinstance(error, MissingRuleException) and (
        match := re.match(r"No rule to produce (.+?) \(if you use", text)
    ):
        text = str(_target_error(match[1], rules))
    elif text.startswith("Target rules may not contain wildcards"):
        names = (word for word in words if re.fullmatch(r"[a-z_]+", word))
        target = next(name for name in names if name not in rules)
        reason = "is a step that makes a result of each experiment"
        text = str(_target_error(target, rules, reason))
    elif isinstance(error, MissingInputException):
        files = text.partition("affected files:")[2].split("\n")
        missing = ", ".join(filter(None, map(str.strip, files)))
        reason = "is missing, and no step makes it"
        remedy = "put it there, or correct its path in the experiment"
        text = str(InputError(f"the step {error.rule}", missing, reason, remedy))
    elif isinstance(error, FileNotFoundError) and str(error.filename) in words:
        reason, remedy = "no such file", "correct its path, or leave it out"
        text = str(InputError("the call", error.filename, reason, remedy))
    elif is_of_input:
        # Snakemake's text names a place in the rules, but the error is not there.
        text = str(error.__context__)
    if isinstance(error, InputError) or "Remedy: " in text:
        return Explanation(text, console.WRONG)
    if is_of_input or type(error) is not WorkflowError or error.rule or not text:
        return None
    return Explanation(text, console.FAILED)


def refusal_of(words: Collection[str], message: str, options: Collection[str]) -> InputError:
    """Return the error for words of a call, or for keys of a profile, that Snakemake cannot read.

    Parameters
    ----------
    words : the words of the call.
    message : the message of Snakemake.
    options : all options of Snakemake.
    """
    if profile := _NO_PROFILE.match(message):
        reason = f"{profile[1]} is not a folder with a config.yaml"
        return InputError("--profile", None, reason, "name one, such as profiles/slurm")
    if not message.startswith(_UNKNOWN):
        remedy = "correct it; `snakemake --help` describes all options, and so all keys of profiles"
        return InputError("the call", None, message, remedy)
    unknown = message.removeprefix(_UNKNOWN)
    name = unknown.split("=")[0].split()[0]
    near = difflib.get_close_matches(name, options, 1)
    meant = f", or did you mean {near[0].lstrip('-')}" if near else ""
    if any(word.split("=")[0] == name for word in words):
        return InputError("the call", name, "is not an option of Snakemake", f"leave it out{meant}")
    reason = "is not an option of Snakemake, and so not a key of a profile"
    remedy = f"take it out of the config.yaml of the profile{meant}"
    return InputError("--profile", name.lstrip("-"), reason, remedy)


def _holder_of_lock(folder: Path) -> str:
    """Return a message on the call that makes results in a folder, after Snakemake found a lock."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = [Path(word).name for word in process.cmdline()[:3]]
            is_other = process.pid != os.getpid() and Path(process.cwd()) == folder
            if is_other and any(word in _CALLS for word in words):
                since = datetime.fromtimestamp(process.create_time()).strftime("%H:%M")
                return (
                    f"{folder}: another call makes these results: process {process.pid}, since "
                    f"{since}. Remedy: wait for its end, or end it: kill {process.pid}"
                )
    return (
        f"{folder}: an earlier call was killed and left its lock, or a call on another machine "
        "makes these results. Remedy: if no other call is at work, make this one with "
        "`-- --unlock` at its end, and then again without"
    )


def _target_error(
    target: str,
    rules: Collection[str],
    reason: str = "is neither a result nor a step of the workflow",
) -> InputError:
    """Return the error for a target that no rule makes."""
    files = files_by_name(Path.cwd())
    if target in files:
        file = os.path.relpath(files[target])
        reason = "is the name of an experiment, and not a result"
        return InputError("TARGET", target, reason, f"name its file: {call('run -e', file)}")
    if target.startswith("results/"):
        reason = "is not a result that can be made"
        remedy = f"`{call('run -e FILE -n')}` lists what an experiment makes"
        return InputError("TARGET", target, reason, remedy)
    near = difflib.get_close_matches(target, [*rules, *files], 1)
    remedy = f"perhaps it is {near[0]}" if near else f"one of {', '.join(sorted(rules))}"
    return InputError("TARGET", target, reason, remedy)


if __name__ == "__main__":
    raise SystemExit(main())
