"""Read a command and its scripts, without starting them: how its processes find each other.

Only certain facts are used: the launcher at the beginning of a command, and the imports and calls
of its script.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from escala.core.errors import InputError
from escala.core.files import is_file
from escala.core.variables import restore_shell
from escala.programs.program import PLACEHOLDERS, PYTHON
from escala.strategies import OPTIONS

#: Placeholders for the number of ranks, for a program that starts its ranks itself.
NUMBERS = ("ranks", "ranks_of_node")
#: A command that starts its ranks itself.
EXAMPLE = "torchrun --nproc-per-node {ranks_of_node} train.py"
#: Programs that start another program, perhaps a launcher.
WRAPPERS = re.compile(
    "env|nice|nohup|time|timeout|numactl|taskset|stdbuf|unbuffer|setsid|ionice|chrt|prlimit"
)
#: Programs that start another program in an environment of Python that they choose.
ENVIRONMENTS = re.compile(
    "uv|uvx|rye|poetry|pipenv|pdm|hatch|pixi|conda|mamba|micromamba|apptainer|singularity"
)
#: Launchers that Escala cannot replace: they start the ranks themselves. Their options say how many
#: there are and where they meet, and take these placeholders.
_STARTERS = {
    "accelerate launch": {
        "--num_processes": "{ranks}",
        "--num_machines": "{nodes}",
        "--machine_rank": "{node}",
        "--main_process_ip": "{address}",
        "--main_process_port": "{port}",
    },
    "fabric run": {
        "--devices": "{ranks_of_node}",
        "--num_nodes": "{nodes}",
        "--node_rank": "{node}",
        "--main_address": "{address}",
        "--main_port": "{port}",
    },
    "deepspeed": {"--num_gpus": "{ranks_of_node}", "--master_port": "{port}"},
    "composer": {
        "--nproc": "{ranks_of_node}",
        "--world_size": "{ranks}",
        "--node_rank": "{node}",
        "--master_addr": "{address}",
        "--master_port": "{port}",
    },
    "colossalai run": {"--nproc_per_node": "{ranks_of_node}", "--master_port": "{port}"},
}
#: These launchers as modules of Python, and other names of their options.
_MODULES = {
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_OTHER_NAMES = {"-n": "--nproc", "--num_accelerators": "--num_gpus"}
#: This launcher hands each process its number on its node, as an option of the script.
_RANK_AS_OPTION_LAUNCHER = "torch.distributed.launch"
#: Launchers that Escala replaces, each with the strategy that starts the same processes.
_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torch-ddp"),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "srun"), "mpi"),
    "horovodrun": "horovod-mpi",
    # A job of a cluster of Ray would not be on the cores of a configuration.
    "ray job submit": None,
}
#: Options by which launchers name the processes of a node.
_PROCESSES = re.compile(
    "-n|-np|--np|--ntasks|--nproc|--nproc_per_node|--num_processes|--num_proc|--num_gpus|"
    "--num_accelerators|--devices"
)
#: What names GPUs in a script, and libraries that take those that they find.
_OF_GPUS = re.compile(
    "cuda|gpu|nccl|accelerat|tensorflow|keras|jax|lightning|transformers|deepspeed|composer", re.I
)
#: Paths where a program may write: not those of devices and of installed programs.
_PATH = re.compile(r"((~|\.\.)(?=/|$)|/(?!(dev|proc|sys|etc|usr|bin|lib)\b))[^\n]{0,200}")
#: Where a path is that is a word of the command.
COMMAND = "the command"
#: The strategy of a program that starts its ranks itself.
LAUNCHER = "own-launcher"


@dataclass
class Reading:
    """The facts that are known about a command.

    Attributes
    ----------
    command : the words to start, without the launcher whose place Escala takes.
    strategy : the one that starts its ranks; None if it is not known.
    sentences : on what was assumed.
    guessed : whether its strategy is known from its script only.
    processes : the number of processes of a node that its launcher names, None if it names none.
    """

    command: list[str]
    strategy: str | None = None
    sentences: list[str] = field(default_factory=list)
    guessed: bool = False
    processes: int | None = None


def read(words: Sequence[str], named: str | None, folder: Path) -> Reading:
    """Return how the processes of a command are started, as the command and its script show.

    Parameters
    ----------
    named : the strategy that the user named; None: it is recognised.
    folder : the folder in which the command is started.

    Raises
    ------
    InputError : the command begins with a launcher, and the started program is not certain.
    """
    start = 0
    for index in range(len(words)):
        program = _program_name(words[index:])
        if program in _LAUNCHERS or program in _STARTERS:
            start = index
            break
        if PYTHON.fullmatch(program) or program.endswith(".py"):
            break
    before, words = list(words[:start]), words[start:]
    reading, program = Reading(list(words)), _program_name(words)
    has_numbers = any(
        f"{{{name}}}" in word for word in words for name in (*NUMBERS, "nodes", "node")
    )
    is_replaced, strategy = program in _LAUNCHERS, _LAUNCHERS.get(program)
    if (program in _STARTERS and has_numbers) or (strategy and (has_numbers or named == LAUNCHER)):
        sentence = f"{program} starts the ranks itself (strategy {LAUNCHER})."
        reading = Reading(list(words), LAUNCHER, [sentence])
    elif is_replaced:
        has_environment = any(ENVIRONMENTS.fullmatch(Path(word).name) for word in before)
        file = None if has_environment else find_program(words[0])
        python = (file and interpreter_of(Path(file))) or "python"
        reading = _without_launcher(words, strategy, python, folder)
        if _program_name(reading.command) in {*_LAUNCHERS, *_STARTERS}:
            # A job step, of `srun torchrun …`, starts another launcher on each node.
            launched = " ".join(words[: len(words) - len(reading.command)])
            reading = read(reading.command, named, folder)
            reading.sentences.insert(0, f"{launched} is left out.")
            reading.command[:0] = before
            return reading
        script = find_script(reading.command, folder)
        if reading.strategy == "mpi" and "horovod-mpi" in find_strategies(script):
            reading.strategy = "horovod-mpi"
    elif program in _STARTERS:
        reading = _set_numbers(words, program)
    if named:
        reading.strategy = named
    elif reading.strategy is None:
        _read_script(reading, folder)
    reading.command[:0] = before
    return reading


def _program_name(words: Sequence[str]) -> str:
    """Return the name of the program, or of the module of Python, that words start.

    The name of a launcher has the words of its subcommand.
    """
    if module := _find_module_word(words):
        return _MODULES.get(words[module], words[module])
    # Where several MPIs are installed, theirs are called mpirun.openmpi or mpiexec.hydra.
    name = re.sub(r"^(mpi\w+)\.\w+$", r"\1", Path(words[0]).name)
    beginnings = (" ".join([name, *words[1:end]]) for end in (3, 2))
    return next((b for b in beginnings if b in _STARTERS or b in _LAUNCHERS), name)


def _find_module_word(words: Sequence[str]) -> int | None:
    """Return the position of the module that an interpreter of Python starts, None without one."""
    index = 1
    while index < len(words) and re.fullmatch("-[bBdEIOPqsSuvx]+", words[index]):
        index += 1
    starts = PYTHON.fullmatch(Path(words[0]).name) and list(words[index : index + 1]) == ["-m"]
    return index + 1 if starts and index + 1 < len(words) else None


def _without_launcher(
    words: Sequence[str], strategy: str | None, python: str, folder: Path
) -> Reading:
    """Return what a launcher starts, without the launcher and its options.

    Parameters
    ----------
    strategy : the one that starts the same processes; None: its script tells.
    python : the interpreter that the launcher starts scripts by, unless the command names one.
    """
    module = _find_module_word(words)
    first, starter = (module + 1, list(words[: module - 1])) if module else (1, [python])
    if strategy is None:
        first = 3  # The words of `ray job submit`.
    index = _find_program_word(words, first, strategy)
    options, started = words[first:index], list(words[index:])
    if options[-1:] == ["--"]:
        options = options[:-1]
    names = {word.replace("_", "-") for word in options}
    if names & {"--gloo", "--use-gloo"}:
        strategy = "horovod-gloo"
    if not started:
        has_words = not all(word.startswith("-") for word in options)
        uncertain = "it is not certain which of its words is the program"
        raise _unclear(words, uncertain if has_words else "it starts no program")
    if strategy == "mpi" and ":" in started:
        raise _unclear(words, "it starts several programs, divided by :")
    program, command, sentences = _program_name(words), started, []
    if program == _RANK_AS_OPTION_LAUNCHER and "--use-env" not in names:
        # The option has two spellings. A script knows one of them.
        script = find_script(started, folder)
        text = script.read_text(encoding="utf-8", errors="replace") if script else ""
        is_old = "--local_rank" in text and "--local-rank" not in text
        option = "--local_rank" if is_old else "--local-rank"
        started.insert(1, f"{option}={{local_rank}}")
        sentences = [f"Each process gets its number on its node, as {option}."]
    if strategy == "torch-ddp" and "--no-python" not in names:
        command = [*starter, *(["-m"] if names & {"-m", "--module"} else []), *started]
    assigned = [
        word
        for option, word in itertools.pairwise(options)
        if option == "-x" and strategy == "mpi" and "=" in word
    ]
    command = ["env", *assigned, *command] if assigned else command
    launched = " ".join(words[:index])
    how = "starts the ranks itself (strategy {strategy})" if strategy else "starts its program"
    sentences.insert(0, f"{launched} is left out: Escala {how.format(strategy=strategy)}.")
    return Reading(command, strategy, sentences, processes=_read_processes(options))


def _read_processes(options: Sequence[str]) -> int | None:
    """Return the processes of a node that options of a launcher name, None if they name none."""
    for option, following in itertools.pairwise([*options, ""]):
        name, equals, value = option.partition("=")
        number = value if equals else following
        if _PROCESSES.fullmatch(_long_name(name)) and number.isdecimal():
            return int(number)
    return None


def _long_name(option: str) -> str:
    """Return the name of an option with underscores: `--nproc_per_node`."""
    name = option.partition("=")[0]
    return f"--{name[2:].replace('-', '_')}" if name.startswith("--") else name


def _find_program_word(words: Sequence[str], first: int, strategy: str | None) -> int:
    """Return the position of the program that a launcher starts, or the number of words.

    The program stands after `--`. Otherwise it is the first word that is an interpreter, a script,
    a wrapper program, an executable file, or a name on the PATH that is no value of an option.
    """
    for index in range(first, len(words)):
        before, word, file = words[index - 1], words[index], Path(words[index])
        if before == "--" or (strategy == "torch-ddp" and before in ("-m", "--module")):
            return index
        is_value = before.startswith("-") and not ("=" in before or re.fullmatch(r"-\w\d+", before))
        is_missing = word.startswith("./") and not file.exists()
        if not word.startswith("-") and (
            PYTHON.fullmatch(file.name)
            or WRAPPERS.fullmatch(file.name)
            or file.suffix == ".py"
            or (not is_value and file.name in _LAUNCHERS)
            or ("/" in word and (is_missing or shutil.which(word)))
            or (not is_value and find_program(word))
        ):
            return index
    return len(words)


def find_program(name: str) -> str | None:
    """Return the path of a program by the PATH of the user's shell, None without one."""
    return shutil.which(name, path=restore_shell().get("PATH", os.defpath))


def interpreter_of(program: Path) -> str | None:
    """Return the interpreter of a program in Python; None for any other program.

    The first lines of the program name the interpreter. If they do not, such as in a link, the
    interpreter may be in the same folder.
    """
    try:
        with open(program, "rb") as file:
            first = os.fsdecode(file.read(1024))
    except OSError:
        return None
    # For long paths, installers let sh start the interpreter by the second line.
    named = re.match(r"#!\s*(\S+)(?: +(\S+))?.*\n(?:'''exec' [\"']?(/[^\n\"']+?)[\"']? )?", first)
    name = named and (named[3] or named[1])
    alongside = program.absolute().with_name("python")
    if (alongside.parent.parent / "pyvenv.cfg").is_file() and not named:
        name = str(alongside)
    elif name and Path(name).name == "env":
        name = find_program(named[2] or "")
    is_python = name and PYTHON.fullmatch(Path(name).name) and os.access(name, os.X_OK)
    return name if is_python else None


def _unclear(words: Sequence[str], why: str) -> InputError:
    reason = f"begins with the launcher {words[0]}, and {why}"
    remedy = (
        "write the command that it starts, with --torch, --mpi or --horovod; or keep it: "
        "--launcher, with {ranks_of_node} in place of its number of processes"
    )
    return InputError("command", " ".join(words), reason, remedy)


def _set_numbers(words: Sequence[str], program: str) -> Reading:
    """Return the command of a launcher, one of `_STARTERS`, that takes its numbers from Escala."""
    numbers = _STARTERS[program]
    first = (_find_module_word(words) or program.count(" ")) + 1
    kept, unread = [], list(words[first:])
    options = []
    while unread:
        word = unread.pop(0)
        name = _long_name(word)
        if word.endswith(".py") or word in ("-m", "--module"):
            # The options of the script follow.
            kept += [word, *unread]
            break
        if _OTHER_NAMES.get(name, name) not in numbers:
            kept.append(word)
            continue
        options += [word] if "=" in word or not unread else [word, unread.pop(0)]
    placed = [word for pair in numbers.items() for word in pair]
    sentence = (
        f"{program} starts the ranks itself (strategy {LAUNCHER}). Escala sets "
        f"{', '.join(numbers)}."
    )
    command = [*words[:first], *placed, *kept]
    return Reading(command, LAUNCHER, [sentence], processes=_read_processes(options))


def _read_script(reading: Reading, folder: Path) -> None:
    """Set the strategy by imports and calls of the script, or by placeholders in the command."""
    placeholders = {
        name for word in reading.command for name in PLACEHOLDERS if f"{{{name}}}" in word
    }
    file = find_script(reading.command, folder)
    strategies = find_strategies(file)
    note = reading.sentences.append
    if "ranks_of_node" in placeholders and "rank" not in placeholders:
        reading.strategy = LAUNCHER
        note(f"The command names {{ranks_of_node}}: strategy {LAUNCHER}.")
    elif len(strategies) == 1:
        [(reading.strategy, why)] = strategies.items()
        reading.guessed = True
        note(f"{file.name} {why}: strategy {reading.strategy}.")
    elif strategies:
        several = ", ".join(f"{name} ({why})" for name, why in strategies.items())
        note(f"{file.name} may be started in several ways: {several}. Name one: --strategy NAME.")
    elif {"rank", "ranks"} & placeholders:
        reading.strategy = "processes"
        note("The command names its rank or their number: strategy processes.")


def find_script(command: Sequence[str], folder: Path) -> Path | None:
    """Return the existing script of Python that a command names; None without one."""
    files = (folder / word for word in command if word.endswith(".py"))
    return next(filter(Path.is_file, files), None)


def find_module(command: Sequence[str]) -> str | None:
    """Return the module of Python that a command names after `-m`."""
    return next(iter(command[command.index("-m") + 1 :]), None) if "-m" in command else None


def find_strategies(file: Path | None) -> dict[str, str]:
    """Return the strategies that a script is written for, with the import or call that shows it."""
    tree = _parse(file) if file else None
    if tree is None:
        return {}
    signs = {f"imports {name.partition('.')[0]}" for _, name in read_imports(tree)} | {
        f"calls {node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    by_strategy = {
        # The last sign tells most, and is named to the user.
        name: option.signs[-1]
        for name, option in OPTIONS.items()
        if option.signs and signs.issuperset(option.signs)
    }
    # The own launcher is for a script that starts processes and calls a function that joins them to
    # a group. Without such a call, the processes are no ranks.
    joining = {name for name, sign in by_strategy.items() if sign.startswith("calls")} - {LAUNCHER}
    starts_ranks = joining and LAUNCHER in by_strategy
    excluded = joining if starts_ranks else {LAUNCHER}
    return {name: sign for name, sign in by_strategy.items() if name not in excluded}


def list_files(words: Sequence[str], folder: Path) -> list[str]:
    """Return the files of a program below a folder: files that it names, and imported modules.

    Returns
    -------
    Sorted patterns: relative to the folder for files in it, absolute paths for imported modules
    elsewhere. Files elsewhere that the command itself names are left out, because they belong to
    the program without a pattern.
    """
    named = [folder / word for word in words if is_file(folder / word)]
    named += _modules(find_module(words) or "", folder)
    scripts, files = [file for file in named if file.suffix == ".py"], set(named)
    while scripts:
        script = scripts.pop()
        tree = _parse(script)
        for level, name in read_imports(tree) if tree else ():
            for parent in [script.parents[level - 1]] if level else {script.parent, folder}:
                new = [file for file in _modules(name, parent) if file not in files]
                files.update(new)
                scripts += new
    patterns = []
    for file in files:
        if file.absolute().is_relative_to(folder):
            patterns.append(file.relative_to(folder).as_posix())
        elif file not in named:
            patterns.append(str(file.absolute()))
    return sorted(map(pattern_of, patterns))


def pattern_of(path: str) -> str:
    """Return the pattern that matches one file. An absolute path stays: it is read as a path."""
    return path if path.startswith("/") else re.sub(r"([*?\[])", r"[\1]", path)


def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def parse_scripts(words: Sequence[str], folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the scripts of Python that a command names, and what they import, with their trees."""
    for pattern in list_files(words, folder):
        file = folder / re.sub(r"\[([*?\[])\]", r"\1", pattern)
        if file.suffix == ".py" and (tree := _parse(file)):
            yield file, tree


def find_word(wanted: str, words: Sequence[str], folder: Path) -> str | None:
    """Return where a command or its scripts name something, None if they do not.

    Parameters
    ----------
    wanted : a text or an attribute, or the beginning of a text, such as `cuda` of `cuda:0`.

    Returns
    -------
    `COMMAND`, or a file and line of a script.
    """
    named = re.compile(rf"(.*=)?{wanted}\b.*")
    if any(map(named.fullmatch, words[1:])):
        return COMMAND
    for file, tree in parse_scripts(words, folder):
        for node in ast.walk(tree):
            value = node.value if isinstance(node, ast.Constant) else None
            is_text = isinstance(value, str) and named.fullmatch(value)
            if is_text or (isinstance(node, ast.Attribute) and node.attr == wanted):
                return f"{file.name}, line {node.lineno}"
    return None


def read_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the level and the name of each module that a tree imports, or may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            yield node.level, name
            inner = (f"{name}.{alias.name}".strip(".") for alias in node.names)
            yield from ((node.level, submodule) for submodule in inner)


def _modules(name: str, folder: Path) -> Iterator[Path]:
    """Yield the files of a module and of the packages that contain it, if they are in a folder."""
    for part in filter(None, name.split(".")):
        folder = folder / part
        for file in (
            folder.with_name(f"{part}.py"),
            folder / "__init__.py",
            folder / "__main__.py",
        ):
            if file.is_file():
                yield file


def may_use_gpus(words: Sequence[str], folder: Path) -> bool:
    """Return whether a command or its scripts name GPUs, or a library that takes those it finds.

    A program that is no script of Python may use them.
    """
    texts = [ast.unparse(tree) for _, tree in parse_scripts(words, folder)]
    return not texts or bool(_OF_GPUS.search(" ".join([*words, *texts])))


def list_places(words: Sequence[str], folder: Path) -> dict[str, str]:
    """Return paths that lead out of the folder of a program, where the user may write.

    The paths are absolute, begin with `~`, or lead up.

    Returns
    -------
    Each path, and where it stands: `COMMAND`, or a file and line of a script of Python.
    """
    paths = {word.rpartition("=")[2]: COMMAND for word in words[1:]}
    for file, tree in parse_scripts(words, folder):
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Attribute) and node.attr == "home":
                text = "~"
            if isinstance(text, str):
                paths.setdefault(text, f"{file.name}, line {node.lineno}")
    writable = {}
    for text, where in paths.items():
        if _PATH.fullmatch(text):
            path = folder / os.path.expanduser(text)  # noqa: PTH111 - an unknown user is no error
            existing = next(parent for parent in (path, *path.parents) if os.path.exists(parent))  # noqa: PTH110
            if existing != Path("/") and os.access(existing, os.W_OK):
                writable[text] = where
    return writable
