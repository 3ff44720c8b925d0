"""How a program ended, in words, and what may be the cause of a bad end."""

from __future__ import annotations

import errno
import re
import signal
from itertools import dropwhile, pairwise
from pathlib import Path

_LAST_LINES = 5
#: A line that names an error: what programs write of their options, the last line of a traceback of
#: Python, perhaps after the number of a rank, one of a log, or the fatal one of glog's, as of XLA.
_USAGE = re.compile(r"^(\S+: )?(fatal )?error: ", re.IGNORECASE)
ERROR = re.compile(
    rf"^(\[\w+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(: .*)?$"
    rf"|(?i:{_USAGE.pattern})|\b(ERROR|FATAL|CRITICAL)\b|^F\d{{4}} [\d:.]+ "
)
TRACEBACK = "Traceback (most recent call last)"
#: Before a traceback of an error that ends no program: Python, `logging` and `asyncio` go on.
_GOES_ON = re.compile(
    "Exception ignored |Exception in thread |Error in atexit|--- Logging error|^(future|task): <"
)
#: A program that ends of an error says no more after it: a message, and what other ranks say.
_MOST_AFTER = 20
_CHAINED = re.compile("^(During handling of|The above exception was)")


def how(code: int) -> str:
    """Return in words how a process ended, from its exit code or the negative of a signal."""
    if code < 0:
        return f"signal {-code} ({signal.strsignal(-code) or 'unknown'})"
    # A shell ends so whose last command a signal ended.
    name = signal.strsignal(code - 128) if 128 < code <= 128 + 64 else None
    return f"exit code {code}" + (f" (of signal {code - 128}, {name})" if name else "")


def worded(text: str) -> list[str]:
    """Return the lines of a text that have a letter or a digit; others are rules and banners."""
    return [line for line in text.splitlines() if re.search(r"[^\W_]", line)]


def has_failed(said: str) -> bool:
    """Return whether a program's last words have a traceback of an error that is not ignored.

    A program that said much after it has gone on.
    """
    lines, goes_on, failed = worded(said), False, None
    for number, (before, line) in enumerate(pairwise(["", *lines])):
        if TRACEBACK in line:
            goes_on = bool(_GOES_ON.search(before) or (goes_on and _CHAINED.search(before)))
            failed = failed if goes_on else number
    if failed is None:
        return False
    frame = lines[failed].partition(TRACEBACK)[0] + " "  # after what tells its rank
    after = dropwhile(lambda line: line.startswith(frame), lines[failed + 1 :])
    return len(list(after)) <= _MOST_AFTER


#: What a shell does itself, unless there is a program of this name.
_BUILTINS = re.compile(
    r"time|cd|source|\.|export|set|unset|exec|eval|alias|ulimit|module|command|builtin"
)
_BOM = "before its first line stands a mark of its encoding (BOM), as Windows writes it"
_ASKS = "It asks for input, and gets none here. Remedy: give what it asks for as an argument"
#: What programs write at their end that names a cause, and what to say of it.
_HINTS = (
    (
        r"python\S*: can't open file '",
        "Its script is not there. Remedy: write its whole path, or make the call in its folder",
    ),
    (
        r"ModuleNotFoundError|ImportError|No module named",
        "Its interpreter lacks a module. Remedy: environment: {python: DIR/bin/python} names the "
        "one that has it",
    ),
    (
        r"SyntaxError|IndentationError|TabError",
        "Its interpreter does not read this code; is it for another version? Remedy: environment: "
        "{python: DIR/bin/python}",
    ),
    (r"EOF when reading a line", _ASKS),
    (
        r"not a tty|inappropriate ioctl|\bstty\b",
        "It asks for a terminal, as for its size. Remedy: terminal: true",
    ),
    (
        r"Address already in use|EADDRINUSE",
        "Remedy: take the port of MASTER_PORT or {port}, which is free",
    ),
    (
        r"Duplicate GPU detected|invalid device ordinal",
        "There are more processes than GPUs. Remedy: as many as GPUs, or fewer",
    ),
    (
        r"unrecognized arguments|invalid choice|the following arguments are required|"
        r"[Nn]o such option|unrecognized option|invalid option",
        "Remedy: give it only options that it knows",
    ),
)


_CRLF = "lines end with CR LF, as on Windows"
_WITHOUT_CR = "Remedy: sed -i 's/\\r$//'"
#: What shells say of such lines.
_OF_CRLF = re.compile(
    r"(\\r|\r|\^M)['’\"]*: ?((command )?not found|No such file|bad interpreter|invalid option)|"
    r"near unexpected token.*(\\r|\r)"
)


def not_started(program: Path, error: OSError) -> str:
    """Return why a program cannot be started, which its first line may tell, and the remedy.

    Parameters
    ----------
    program : where it is, or is looked for.
    """
    try:
        with open(program, "rb") as file:
            first = file.readline(4096).decode(errors="replace")
    except OSError:
        first = ""
    interpreter = first.removeprefix("#!").strip(" \t\n").split(" ")[0]
    if error.errno == errno.ENOENT and interpreter.endswith("\r"):
        return f"its {_CRLF}, so it asks for {interpreter!r}. {_WITHOUT_CR} {program}"
    if error.errno == errno.ENOENT and first.startswith("#!"):
        return f"its first line asks for {interpreter}, which is not there. Remedy: correct it"
    if error.errno == errno.ENOENT and _BUILTINS.fullmatch(program.name):
        return (
            "it is a word of the shell, and no program. Remedy: leave it out; or let a shell run "
            "all: sh -c 'COMMAND'"
        )
    if error.errno == errno.EACCES and program.is_file():
        return f"it may not be executed. Remedy: chmod +x {program}"
    if error.errno == errno.ENOEXEC and first.startswith("\ufeff"):
        return f"{_BOM}. Remedy: sed -i '1s/^\\xef\\xbb\\xbf//' {program}"
    if error.errno == errno.ENOEXEC and first.startswith("\x7fELF"):
        return "it is built for another processor. Remedy: build it on this machine"
    if error.errno == errno.ENOEXEC:
        return "its first line names no interpreter. Remedy: begin it with one, as #!/bin/sh"
    return (
        f"{error.strerror}. Remedy: name a program on the PATH, or an interpreter: environment: "
        "{python: DIR/bin/python}"
    )


def hint(code: int, said: str, asked: bool) -> str:
    """Return what may be the cause of a bad end and its remedy, or an empty text."""
    if _OF_CRLF.search(said):
        return f". The {_CRLF}. {_WITHOUT_CR} and the name of its script"
    if code in (126, 127):
        return ". The command was not found, or is not a program"
    lines = worded(said)
    # What was printed before may arrive after it.
    wrong = filter(_USAGE.search, lines[:-_LAST_LINES])
    last = "\n".join([*wrong, *lines[-_LAST_LINES:]])
    for pattern, words in _HINTS:
        if re.search(pattern, last, re.IGNORECASE):
            return f". {words}"
    return f". {_ASKS}" if asked else ""
