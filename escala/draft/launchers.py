"""How a program that somebody starts already finds its processes, read from its command and script.

Only what is certain is taken for known: the launcher that a command begins with, and what its
script imports or calls. Nothing is started.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from escala.core.errors import InputError
from escala.core.variables import restore_shell
from escala.draft import program_source
from escala.draft.program_source import OWN
from escala.programs.program import PLACEHOLDERS

PYTHON = re.compile(r"python[0-9.]*")
#: Placeholders by which a program that starts its ranks itself learns how many.
NUMBERS = ("ranks", "ranks_of_node")
#: A command that starts its ranks itself.
EXAMPLE = "torchrun --nproc-per-node {ranks_of_node} train.py"
#: Programs that start another one, which may be a launcher.
WRAPPERS = re.compile(
    "env|nice|nohup|time|timeout|numactl|taskset|stdbuf|unbuffer|setsid|ionice|chrt|prlimit"
)
#: The same, in an environment of Python that they choose.
_ENVIRONMENTS = re.compile(
    "uv|uvx|rye|poetry|pipenv|pdm|hatch|pixi|conda|mamba|micromamba|apptainer|singularity"
)
#: Launchers that always start the ranks themselves.
_STARTERS = frozenset(("deepspeed", "fabric", "composer", "colossalai"))
#: Hands each process its number on its node as an option of the script.
_HANDS_RANK = "torch.distributed.launch"


#: Launchers that Escala takes the place of, with the strategy that starts the same processes.
_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torch-ddp"),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "srun"), "mpi"),
    "horovodrun": "horovod-mpi",
}
#: Their options that are whole by themselves. Another one may be followed by a word of its own, or
#: by two.
_FLAGS = {
    "torch-ddp": "--standalone --use-env --module --no-python -m",
    "mpi": "--oversubscribe -oversubscribe --allow-run-as-root -allow-run-as-root --tag-output "
    "--report-bindings --use-hwthread-cpus --display-map -q --exclusive --overlap -l -v",
    "horovod-mpi": "--gloo --mpi --verbose --use-gloo --use-mpi --autotune",
}
_TWO_WORDS = re.compile("--?mca|-g?env")
#: Options of `accelerate launch` that say how many processes there are, and their placeholders.
_ACCELERATE = {
    "--num_processes": "{ranks}",
    "--num_machines": "{nodes}",
    "--machine_rank": "{node}",
    "--main_process_ip": "{address}",
    "--main_process_port": "{port}",
}


@dataclass
class Known:
    """What is known of a command.

    Attributes
    ----------
    command : the words to start, without the launcher whose place Escala takes.
    strategy : the one that starts its ranks; None if it is not known.
    said : sentences on what was assumed.
    guessed : whether only its script tells its strategy.
    """

    command: list[str]
    strategy: str | None = None
    said: list[str] = field(default_factory=list)
    guessed: bool = False


def known(words: Sequence[str], asked: str | None, folder: Path) -> Known:
    """Return what a command and its script tell of how its processes are started.

    Parameters
    ----------
    asked : the strategy that the user named, which is taken in any case.
    folder : where the command is started.

    Raises
    ------
    InputError : the command begins with a launcher, and it is not certain what that starts.
    """
    before = _wrapped(words)
    before, words = list(words[:before]), words[before:]
    found, itself = Known(list(words)), _itself(words)
    own = asked == OWN or any(
        f"{{{name}}}" in word for word in words for name in (*NUMBERS, "nodes", "node")
    )
    launcher = _LAUNCHERS.get(itself)
    if (launcher and own) or itself in _STARTERS:
        found = Known(list(words), OWN, [f"{itself} starts the ranks itself (strategy {OWN})."])
    elif launcher:
        path = restore_shell().get("PATH", os.defpath)
        chosen = any(_ENVIRONMENTS.fullmatch(Path(word).name) for word in before)
        file = None if chosen else shutil.which(words[0], path=path)
        found = _without(words, launcher, (file and interpreter_of(Path(file))) or "python")
        script = program_source.script(found.command, folder)
        if itself == _HANDS_RANK and "--use-env" not in found.said[0].replace("_", "-"):
            # A script gets its number on its node by the option that it spells.
            text = script.read_text(encoding="utf-8", errors="replace") if script else ""
            old = "--local_rank" in text and "--local-rank" not in text
            option = "--local_rank" if old else "--local-rank"
            place = found.command.index("-m") + 2 if "-m" in found.command else 2
            found.command.insert(place, f"{option}={{local_rank}}")
            found.said.append(f"Each process gets its number on its node, as {option}.")
        if found.strategy == "mpi" and "horovod-mpi" in program_source.strategies(script):
            found.strategy = "horovod-mpi"
    elif itself == "accelerate" and words[1:2] == ["launch"] and not own:
        found = _accelerate(words)
    if asked:
        found.strategy = asked
    elif found.strategy is None:
        _take_script(found, folder)
    found.command[:0] = before
    return found


def _wrapped(words: Sequence[str]) -> int:
    """Return where a launcher stands before the script, 0 if there is none."""
    for place in range(len(words)):
        itself = _itself(words[place:])
        if itself in _LAUNCHERS or itself in _STARTERS or itself == "accelerate":
            return place
        if PYTHON.fullmatch(itself) or itself.endswith(".py"):
            break
    return 0


def _itself(words: Sequence[str]) -> str:
    """Return the name of the program, or of the module of Python, that words start."""
    module = _module(words)
    # Where several are installed, they are called mpirun.openmpi or mpiexec.hydra.
    return words[module] if module else re.sub(r"^(mpi\w+)\.\w+$", r"\1", Path(words[0]).name)


def _module(words: Sequence[str]) -> int | None:
    """Return where the name of a module stands that an interpreter of Python starts, or None."""
    place = 1
    while place < len(words) and re.fullmatch("-[bBdEIOPqsSuvx]+", words[place]):
        place += 1
    starts = PYTHON.fullmatch(Path(words[0]).name) and list(words[place : place + 1]) == ["-m"]
    return place + 1 if starts and place + 1 < len(words) else None


def _without(words: Sequence[str], strategy: str, python: str) -> Known:
    """Return what a launcher starts, without the launcher and its options.

    Parameters
    ----------
    strategy : the one that starts the same processes.
    python : what it starts scripts by, unless it is a module of Python.
    """
    at = _module(words)
    first, starter = (at + 1, list(words[: at - 1])) if at else (1, [python])
    flags = _FLAGS[strategy].split()
    place = _start(words, first, flags)
    options, started = words[first:place], list(words[place:])
    if options[-1:] == ["--"]:
        options = options[:-1]
    names = {word.replace("_", "-") for word in options}
    if names & {"--gloo", "--use-gloo"}:
        strategy = "horovod-gloo"
    if not started:
        reason = "it is not certain which of its words is the program"
        raise _unclear(words, reason if names - {*flags} else "it starts no program")
    if strategy == "mpi" and ":" in started:
        raise _unclear(words, "it starts several programs, divided by :")
    command = started
    if strategy == "torch-ddp" and "--no-python" not in names:
        command = [*starter, *(["-m"] if names & {"-m", "--module"} else []), *started]
    assigned = [
        word
        for option, word in itertools.pairwise(options)
        if option == "-x" and strategy == "mpi" and "=" in word
    ]
    command = ["env", *assigned, *command] if assigned else command
    launched = " ".join(words[:place])
    said = f"{launched} is left out: Escala starts the ranks itself (strategy {strategy})."
    return Known(command, strategy, [said])


def _start(words: Sequence[str], first: int, flags: Sequence[str]) -> int:
    """Return where the program stands that a launcher starts: what is before it is the launcher's.

    It begins after `--`, with an interpreter, a script or a program that starts another one, or
    with a word that no option before it may take; the number of words if there is none.
    """
    taken = 0
    for place in range(first, len(words)):
        word, name = words[place], Path(words[place]).name
        if word == "--":
            return place + 1
        if word.startswith("-"):
            whole = "=" in word or re.fullmatch(r"-\w\d+", word)
            option = word.replace("_", "-")
            taken = 0 if whole or option in flags else 2 if _TWO_WORDS.fullmatch(option) else 1
        elif not taken or PYTHON.fullmatch(name) or WRAPPERS.fullmatch(name) or name[-3:] == ".py":
            return place
        else:
            taken -= 1
    return len(words)


def interpreter_of(program: Path) -> str | None:
    """Return the interpreter of a program written in Python, None of another one.

    Its first lines name it. A program without them, as a link, may stand alongside the one of its
    environment.
    """
    try:
        with open(program, "rb") as file:
            first = os.fsdecode(file.read(1024))
    except OSError:
        return None
    # The second is how installers write long paths: sh starts the interpreter.
    named = re.match(r"#!\s*(\S+)(?: +(\S+))?.*\n(?:'''exec' [\"']?(/[^\n\"']+?)[\"']? )?", first)
    name = named and (named[3] or named[1])
    alongside = program.absolute().with_name("python")
    if (alongside.parent.parent / "pyvenv.cfg").is_file() and not named:
        name = str(alongside)
    elif name and Path(name).name == "env":
        name = shutil.which(named[2] or "", path=restore_shell().get("PATH", os.defpath))
    is_python = name and PYTHON.fullmatch(Path(name).name) and os.access(name, os.X_OK)
    return name if is_python else None


def _unclear(words: Sequence[str], why: str) -> InputError:
    reason = f"begins with the launcher {words[0]}, and {why}"
    remedy = (
        "write the command that it starts, with --torch, --mpi or --horovod; or keep it: "
        "--launcher, with {ranks_of_node} in place of its number of processes"
    )
    return InputError("command", " ".join(words), reason, remedy)


def _accelerate(words: Sequence[str]) -> Known:
    """Return an `accelerate launch` that takes nodes and processes from Escala."""
    kept, rest = [], list(words[2:])
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if word.endswith(".py"):
            # What follows are the script's own options.
            kept += [word, *rest]
            break
        if name.replace("-", "_").replace("__", "--", 1) not in _ACCELERATE:
            kept.append(word)
        elif not equals and rest:
            rest.pop(0)
    options = [word for pair in _ACCELERATE.items() for word in pair]
    said = (
        f"accelerate launch starts the ranks itself (strategy {OWN}). Escala sets its numbers of "
        "processes and machines."
    )
    return Known([*words[:2], *options, *kept], OWN, [said])


def _take_script(found: Known, folder: Path) -> None:
    """Complete what is known by what the script imports and calls."""
    named = {name for word in found.command for name in PLACEHOLDERS if f"{{{name}}}" in word}
    file = program_source.script(found.command, folder)
    strategies = program_source.strategies(file)
    said = None
    if "ranks_of_node" in named and "rank" not in named:
        found.strategy, said = OWN, f"The command names {{ranks_of_node}}: strategy {OWN}."
    elif len(strategies) == 1:
        [(found.strategy, why)] = strategies.items()
        found.guessed = True
        said = f"{file.name} {why}: strategy {found.strategy}."
    elif strategies:
        several = ", ".join(f"{name} ({why})" for name, why in strategies.items())
        said = f"{file.name} may be started in several ways: {several}. Name one: --strategy NAME."
    elif {"rank", "ranks"} & named:
        found.strategy = "processes"
        said = "The command names its rank or their number: strategy processes."
    found.said += [said] if said else []
