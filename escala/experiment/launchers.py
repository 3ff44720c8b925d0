"""How a program that somebody starts already finds its processes, read from its command and script.

Only what is certain is taken for known: the launcher that a command begins with, and what its
script imports or calls. Nothing is started.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from escala.core.errors import InputError
from escala.strategies import STRATEGIES
from escala.workloads.program import PLACEHOLDERS

PYTHON = re.compile(r"python[0-9.]*")
#: Placeholders by which a program that starts its ranks itself learns how many.
NUMBERS = ("ranks", "ranks_of_node")
_MPI_PROGRAMS = ("mpirun", "mpiexec", "orterun", "srun")


@dataclass(frozen=True)
class _Launcher:
    """A launcher that Escala takes the place of.

    Attributes
    ----------
    strategy : the one that starts the same processes.
    values : how many words follow an option that has other than none; those in the form
        `--option=value` have none.
    flags : options without a value.
    python : whether what it starts is a script or, after `-m`, a module of Python.
    """

    strategy: str
    values: dict[str, int]
    flags: tuple[str, ...]
    python: bool = False


def _ones(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1)


_TORCHRUN = _Launcher(
    "torch-ddp",
    _ones(
        *("--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"),
        *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--max-restarts"),
        *("--monitor-interval", "--start-method", "--log-dir", "--redirects", "--tee", "--role"),
        *("--local-addr", "--local-ranks-filter", "-r", "-t"),
    ),
    ("--standalone", "--use-env", "--module", "--no-python", "-m"),
    python=True,
)
_MPIRUN = _Launcher(
    "mpi",
    {
        **_ones(
            "-np", "--np", "-n", "-c", "-N", "-npernode", "--npernode", "-H", "-host", "--host"
        ),
        **_ones("-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f", "-ppn", "-x"),
        **_ones(
            "-bind-to", "--bind-to", "-map-by", "--map-by", "-rank-by", "--rank-by", "--ntasks"
        ),
        **_ones("--nodes", "--cpus-per-task", "--ntasks-per-node", "--mpi", "-p", "-t", "-J", "-G"),
        **dict.fromkeys(("-mca", "--mca", "-genv", "-env"), 2),
    },
    (
        *("--oversubscribe", "-oversubscribe", "--allow-run-as-root", "-allow-run-as-root"),
        *("--report-bindings", "--tag-output", "--use-hwthread-cpus", "--display-map", "-q"),
        *("--exclusive", "--overlap", "-l", "-v"),
    ),
)
_HOROVODRUN = _Launcher(
    "horovod-mpi",
    _ones(
        *("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile", "-p", "--ssh-port"),
        *("--start-timeout", "--network-interface", "--network-interfaces", "--mpi-args"),
        *("--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity", "--timeline-filename"),
    ),
    ("--gloo", "--mpi", "--verbose", "--use-gloo", "--use-mpi", "--autotune"),
)
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
    said : sentences on what was taken for known.
    """

    command: list[str]
    strategy: str | None = None
    said: list[str] = field(default_factory=list)


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
    found = Known(list(words))
    own = asked == "own-launcher" or any(
        f"{{{name}}}" in word for word in words for name in (*NUMBERS, "nodes", "node")
    )
    launcher = _launcher(words)
    if launcher and own:
        found.strategy = "own-launcher"
        itself = words[0] if words[1:2] != ["-m"] else words[2]
        found.said.append(f"{itself} starts the ranks itself (strategy own-launcher).")
    elif launcher:
        found = _without(launcher, words)
        if found.strategy == "mpi" and "horovod-mpi" in _by_text(script(found.command, folder)):
            found.strategy = "horovod-mpi"
    elif Path(words[0]).name == "accelerate" and words[1:2] == ["launch"] and not own:
        found = _accelerate(words)
    if asked:
        found.strategy = asked
    elif found.strategy is None:
        _take_text(found, folder)
    return found


def _launcher(words: Sequence[str]) -> _Launcher | None:
    name = Path(words[0]).name
    if PYTHON.fullmatch(name) and words[1:2] == ["-m"]:
        name = words[2] if len(words) > 2 else ""
    if name in ("torchrun", "torch.distributed.run", "torch.distributed.launch"):
        return _TORCHRUN
    if name in _MPI_PROGRAMS:
        return _MPIRUN
    return _HOROVODRUN if name == "horovodrun" else None


def _without(launcher: _Launcher, words: Sequence[str]) -> Known:
    """Return what a launcher starts, without the launcher and its options."""
    place = 3 if PYTHON.fullmatch(Path(words[0]).name) else 1
    python = words[0] if place == 3 else "python"
    module, plain, strategy = False, not launcher.python, launcher.strategy
    assigned: list[str] = []
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        word = words[place]
        name = word.replace("_", "-") if launcher.python else word
        if "=" not in word and name not in launcher.values and name not in launcher.flags:
            raise _unclear(words, f"what follows its option {word} is not certain")
        module = module or name in ("-m", "--module")
        plain = plain or name == "--no-python"
        strategy = "horovod-gloo" if name in ("--gloo", "--use-gloo") else strategy
        if launcher is _MPIRUN and name == "-x":
            assigned += [each for each in words[place + 1 : place + 2] if "=" in each]
        place += 1 + (0 if "=" in word else launcher.values.get(name, 0))
    place += words[place : place + 1] == ["--"]
    started = list(words[place:])
    if not started:
        raise _unclear(words, "it starts no program")
    command = started if plain else [python, *(["-m"] if module else []), *started]
    command = ["env", *assigned, *command] if assigned else command
    said = (
        f"{' '.join(words[:place])} is left out: Escala starts the ranks itself (strategy "
        f"{strategy})."
    )
    return Known(command, strategy, [said])


def _unclear(words: Sequence[str], why: str) -> InputError:
    return InputError(
        "command",
        " ".join(words),
        f"begins with the launcher {words[0]}, and {why}",
        "write what it starts, with --torch, --mpi or --horovod; or keep it: --launcher, with "
        "{ranks_of_node} in the place of its number of processes",
    )


def _accelerate(words: Sequence[str]) -> Known:
    """Return an `accelerate launch` that takes nodes and processes from Escala."""
    kept, rest = [], list(words[2:])
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if word.endswith(".py"):
            # What follows are the script's own options.
            return _accelerated(words, [*kept, word, *rest])
        if name.replace("-", "_").replace("__", "--", 1) in _ACCELERATE:
            if not equals and rest:
                rest.pop(0)
            continue
        kept.append(word)
    return _accelerated(words, kept)


def _accelerated(words: Sequence[str], kept: Sequence[str]) -> Known:
    options = [word for pair in _ACCELERATE.items() for word in pair]
    said = (
        "accelerate launch starts the ranks itself (strategy own-launcher); the numbers of its "
        "processes and machines are Escala's."
    )
    return Known([*words[:2], *options, *kept], "own-launcher", [said])


def _take_text(found: Known, folder: Path) -> None:
    """Complete what is known by what the script imports and calls."""
    named = {name for word in found.command for name in PLACEHOLDERS if f"{{{name}}}" in word}
    file = script(found.command, folder)
    strategies = _by_text(file)
    if len(strategies) == 1:
        [(found.strategy, why)] = strategies.items()
        found.said.append(f"{file.name} {why}: strategy {found.strategy}.")
    elif strategies:
        several = ", ".join(f"{name} ({why})" for name, why in strategies.items())
        found.said.append(
            f"{file.name} may be started in several ways: {several}. Name one: --strategy NAME."
        )
    elif "ranks_of_node" in named and "rank" not in named:
        found.strategy = "own-launcher"
        found.said.append("The command names {ranks_of_node}: strategy own-launcher.")
    elif {"rank", "ranks"} & named:
        found.strategy = "processes"
        found.said.append("The command names its rank or their number: strategy processes.")


def script(command: Sequence[str], folder: Path) -> Path | None:
    """Return the script of Python that a command names, None if it names none that is there."""
    files = (folder / word for word in command if word.endswith(".py"))
    return next(filter(Path.is_file, files), None)


def module(command: Sequence[str]) -> str | None:
    """Return the module of Python that a command names after `-m`."""
    return next(iter(command[command.index("-m") + 1 :]), None) if "-m" in command else None


def _by_text(file: Path | None) -> dict[str, str]:
    """Return the strategies that a script is written for, each with what tells so."""
    if file is None:
        return {}
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return {}
    names = {name for _, name in imports(tree)}
    packages = {name.partition(".")[0] for name in names}
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    found = {}
    if "horovod" in packages:
        found["horovod-mpi"] = "imports horovod"
    if "mpi4py" in packages:
        found["mpi"] = "imports mpi4py"
    if "MultiWorkerMirroredStrategy" in called:
        found["tf-config"] = "calls MultiWorkerMirroredStrategy"
    if "torch" in packages and "init_process_group" in called:
        itself = "spawn" in called
        name = "own-launcher" if itself else "torch-ddp"
        found[name] = "calls spawn" if itself else "calls init_process_group"
    return {name: why for name, why in found.items() if name in STRATEGIES}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the level and the name of each module that a script imports, or may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node.level, module
            inner = (f"{module}.{alias.name}".strip(".") for alias in node.names)
            yield from ((node.level, name) for name in inner)
