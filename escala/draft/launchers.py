"""How a program that somebody starts already finds its processes, read from its command and script.

Only what is certain is taken for known: the launcher that a command begins with, and what its
script imports or calls. Nothing is started.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from escala.core.errors import InputError
from escala.core.variables import restore_shell
from escala.draft import program_source
from escala.workloads.program import PLACEHOLDERS

PYTHON = re.compile(r"python[0-9.]*")
#: Placeholders by which a program that starts its ranks itself learns how many.
NUMBERS = ("ranks", "ranks_of_node")
OWN = "own-launcher"
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


@dataclass(frozen=True)
class _Launcher:
    """A launcher that Escala takes the place of.

    Attributes
    ----------
    strategy : the one that starts the same processes.
    flags, one, two : options that no word, one word or two words follow; those in the form
        `--option=value` have none.
    python : whether what it starts is a script or, after `-m`, a module of Python.
    """

    strategy: str
    flags: str
    one: str
    two: str = ""
    python: bool = False

    def words_after(self, option: str) -> int | None:
        """Return how many words follow an option, None if it is not known."""
        for count, options in enumerate((self.flags, self.one, self.two)):
            if option in options.split():
                return count
        return None


_TORCHRUN = _Launcher(
    "torch-ddp",
    flags="--standalone --use-env --module --no-python -m",
    one="--nnodes --nproc-per-node --node-rank --master-addr --master-port --rdzv-backend "
    "--rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval --start-method "
    "--log-dir --redirects --tee --role --local-addr --local-ranks-filter -r -t",
    python=True,
)
_MPIRUN = _Launcher(
    "mpi",
    flags="--oversubscribe -oversubscribe --allow-run-as-root -allow-run-as-root --report-bindings "
    "--tag-output --use-hwthread-cpus --display-map -q --exclusive --overlap -l -v",
    one="-np --np -n -c -N -npernode --npernode -H -host --host -hostfile --hostfile -machinefile "
    "--machinefile -f -ppn -x -bind-to --bind-to -map-by --map-by -rank-by --rank-by --ntasks "
    "--nodes --cpus-per-task --ntasks-per-node --mpi -p -t -J -G",
    two="-mca --mca -genv -env",
)
_HOROVODRUN = _Launcher(
    "horovod-mpi",
    flags="--gloo --mpi --verbose --use-gloo --use-mpi --autotune",
    one="-np --num-proc -H --hosts -hostfile --hostfile -p --ssh-port --start-timeout "
    "--network-interface --network-interfaces --mpi-args --fusion-threshold-mb --cycle-time-ms "
    "--cache-capacity --timeline-filename",
)
_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "srun"), _MPIRUN),
    "horovodrun": _HOROVODRUN,
}
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
        found = _without(launcher, words, (file and interpreter_of(Path(file))) or "python")
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
    """Return where a launcher stands after programs that start another one, 0 if there is none."""
    first = Path(words[0]).name
    if WRAPPERS.fullmatch(first) or _ENVIRONMENTS.fullmatch(first):
        for place in range(1, len(words)):
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


def _without(launcher: _Launcher, words: Sequence[str], python: str) -> Known:
    """Return what a launcher starts, without the launcher and its options.

    Parameters
    ----------
    python : what it starts scripts by, unless it is a module of Python.
    """
    at = _module(words)
    place, starter = (at + 1, list(words[: at - 1])) if at else (1, [python])
    module, plain, strategy = False, not launcher.python, launcher.strategy
    assigned: list[str] = []
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        word = words[place]
        name = word.replace("_", "-") if launcher.python else word
        is_joined = "=" in word or re.fullmatch(r"-\w\d+", word)
        following = 0 if is_joined else launcher.words_after(name)
        if following is None:
            raise _unclear(words, f"what follows its option {word} is not certain")
        module = module or name in ("-m", "--module")
        plain = plain or name == "--no-python"
        strategy = "horovod-gloo" if name in ("--gloo", "--use-gloo") else strategy
        if launcher is _MPIRUN and name == "-x":
            assigned += [each for each in words[place + 1 : place + 2] if "=" in each]
        place += 1 + following
    place += words[place : place + 1] == ["--"]
    started = list(words[place:])
    if not started:
        raise _unclear(words, "it starts no program")
    if launcher is _MPIRUN and ":" in started:
        raise _unclear(words, "it starts several programs, divided by :")
    command = started if plain else [*starter, *(["-m"] if module else []), *started]
    command = ["env", *assigned, *command] if assigned else command
    launched = " ".join(words[:place])
    said = f"{launched} is left out: Escala starts the ranks itself (strategy {strategy})."
    return Known(command, strategy, [said])


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
