"""Which variables of the environment reach the processes of a run, and which decide a result.

A variable reaches a rank only if a line of `NEUTRAL` or `DECIDING` allows its name. The variables
of `DECIDING` can change kernels, the exchange or the time of a step. `run.json` records them, and
the files of `FILES`, which libraries read by themselves. These variables and files are part of
every key of the store. Two results are not compared if their variables or files differ.

A program of the user gets nearly all variables of the user's shell (`for_programs`). The variables
that may decide its result are part of its key (`decisive_for_programs`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from escala.core.engines import ENGINES
from escala.core.files import sha256_file

Environment = Mapping[str, str]

#: The profile of Snakemake that a user has for all work.
PROFILE = "SNAKEMAKE_PROFILE"
#: Variables with PATH and PYTHONPATH of the user's shell, for programs of users.
CALLERS_PATH, CALLERS_MODULES = "ESCALA_PATH", "ESCALA_PYTHONPATH"
#: A variable with the names of the variables of the shell that made a call, divided by commas.
#: Variables that libraries and jobs add later are in no key of a program.
CALLERS_VARIABLES = "ESCALA_SHELL"
#: Names of further variables that the user passes to the ranks, divided by commas.
PASS = "ESCALA_PASS"

#: The variable that tells a program the folder of its marks (`escala/hook`).
MARKS = "ESCALA_STEPS"
#: The variable that asks each rank for a trace: `AFTER:STEPS:FOLDER`.
TRACED = "ESCALA_TRACE"
#: The variable with the seconds of steady steps for which a program runs.
WINDOW = "ESCALA_WINDOW"
#: The variable with the fewest processes by which a DataLoader of a program loads its batches.
LOADER_WORKERS = "ESCALA_LOADER_WORKERS"


def _of_engines(use: str) -> dict[str, str]:
    """Return the patterns of names that the engines declare for a use, each with a description."""
    return {
        pattern: words
        for engine in ENGINES.values()
        for pattern, words in engine.variables.get(use, {}).items()
    }


#: Patterns of names that processes need and that change no result, each with a description.
NEUTRAL = {
    r"HOME|USER|LOGNAME|SHELL|TERM|PATH": "programs and folders of the user",
    r"LANG|LANGUAGE|LC_\w+|TZ": "language and time zone",
    r"TMPDIR|TMP|TEMP|XDG_CACHE_HOME|XDG_RUNTIME_DIR|KRB5CCNAME|SSH_AUTH_SOCK": (
        "folders, and access to them and to hosts"
    ),
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER": "GPUs, whose models and identifiers are recorded",
    r"SLURM_CONF|SLURM_CLUSTERS": "how `srun` finds its controller",
    # ESCALA_PROCESS is the number of one process (`escala.runtime.spawn`).
    r"ESCALA_(?!PROCESS$)\w+": "settings of this project",
    r"PYTHON(DONTWRITEBYTECODE|UNBUFFERED|PYCACHEPREFIX|WARNINGS|UTF8|IOENCODING)": (
        "how Python reads and writes"
    ),
    r"PYTHON(NOUSERSITE|SAFEPATH)": "where Python does not look for modules",
    **_of_engines("neutral"),
}

#: Patterns of names that can change kernels, the exchange or the time of a step, each with a
#: description.
DECIDING = {
    **_of_engines("deciding"),
    r"(ONEDNN|DNNL)_\w+": "oneDNN's kernels",
    r"(KMP|MKL|OPENBLAS|GOTO|BLIS)_\w+": "threads and kernels of linear algebra",
    r"(NPY|NUMPY|SCIPY|SKLEARN|JOBLIB|LOKY)_\w+": "NumPy, SciPy and scikit-learn",
    r"(CUDA|CUDNN|CUBLAS|CUBLASLT|NCCL)_\w+|NVIDIA_TF32_OVERRIDE": "kernels and exchange of GPUs",
    r"(UCX|FI|GLOO|PSM2?|HFI|IBV|MLX[45]|HCOLL|SHARP|RDMAV|HWLOC)_\w+": "networks",
    r"LD_(LIBRARY_PATH|PRELOAD|AUDIT|BIND_NOW)|GLIBC_TUNABLES": "libraries, and how they load",
    r"(MALLOC|JEMALLOC|TCMALLOC|MIMALLOC)_\w*": "allocation of memory",
    r"PYTHON(PATH|HASHSEED|OPTIMIZE|MALLOC|DEVMODE|TRACEMALLOC|FAULTHANDLER)": "Python",
    r"PROTOCOL_BUFFERS_\w+": "messages between processes",
}

#: Patterns of names that tell a process its place in a job or its rank. A program of the user gets
#: the values of its run, and never the values of the shell.
PLACES = {
    r"(SLURM|SLURMD|SRUN|SBATCH|SALLOC|PBS|LSB|SGE|OAR|FLUX|COBALT|PALS)_\w+|NSLOTS|PE_HOSTFILE": (
        "jobs of a scheduler"
    ),
    r"(OMPI|PMIX|PRTE)_(?!MCA_|ALLOW_)\w+|PMI2?_\w+|MPI_LOCAL\w+|MV2_COMM_WORLD_\w+": "MPI",
    **_of_engines("places"),
}
#: Numbers and cores of threads, which each configuration sets.
THREADS = re.compile(
    r"\w+_(NUM|MAX)_(\w+_)?THREADS|OMP_THREAD_LIMIT|GOMP_CPU_AFFINITY|GOMAXPROCS|LOKY_MAX_CPU_COUNT"
)
#: Patterns of names that tell where a call is made. Programs of users get these variables. No key
#: includes them, because they differ from one terminal window to the next.
AROUND = {
    r"_|SHLVL|PWD|OLDPWD|HOST|HOSTNAME|HOSTTYPE|MACHTYPE|OSTYPE|USERNAME|MAIL|EDITOR|VISUAL|PAGER|"
    r"BROWSER|MANPATH|INFOPATH|PS\d|LESS(OPEN|CLOSE)?|HIST(SIZE|FILE|FILESIZE|CONTROL|TIMEFORMAT)|"
    r"PROMPT_COMMAND|LS_?COLORS|(SUDO|GPG)_\w+": "a shell and its user",
    r"DISPLAY|COLORTERM|WINDOW(ID|PATH)|STY|\w+_(SOCK|SOCKET|PID|TTY)|\w*SESSION_(ID|MANAGER)|"
    r"XAUTHORITY|XMODIFIERS|GDMSESSION|(TERM|TMUX|ZELLIJ|SSH|XDG|DBUS|WAYLAND|VTE|KITTY|ALACRITTY|"
    r"WEZTERM|ITERM|KONSOLE|GNOME|GTK|GDK|QT|KDE|DESKTOP|WSL|WT)(_\w+)?": "a terminal",
    r"(VSCODE|JPY|JUPYTER|PYCHARM|INSIDE_EMACS|NVIM|GIT|ELECTRON|CHROME)(_\w+)?": "an editor",
    r"(VIRTUAL_ENV|UV|CONDA|_CE|MAMBA|PIXI|POETRY|PYENV|NVM|LMOD|__LMOD|MODULES)(_\w+)?|MODULEPATH|"
    r"MODULESHOME|_?LOADEDMODULES|_LMFILES_|_ModuleTable\w*|BASH(_ENV|OPTS)": "an environment",
    r"(PYTEST|COVERAGE|COV_CORE|GITHUB|GITLAB|RUNNER|KUBERNETES|SYSTEMD|MEMORY_PRESSURE)_\w+|CI|"
    r"CI_(JOB|PIPELINE|RUNNER|COMMIT|PROJECT|SERVER)_\w+|\w+_SERVICE_(HOST|PORT)\w*|"
    r"\w+_PORT_\d+_\w+|INVOCATION_ID|JOURNAL_STREAM|MANAGERPID|container": "what runs the shell",
}

#: Files that Open MPI, PMIx and UCX read by themselves. `~` is HOME. `$PREFIX` is the folder of the
#: Python environment with Open MPI.
FILES = (
    "~/.openmpi/mca-params.conf",
    "$PREFIX/etc/openmpi-mca-params.conf",
    "$PREFIX/etc/openmpi-mca-params-override.conf",
    "~/.pmix/mca-params.conf",
    "$PREFIX/etc/pmix-mca-params.conf",
    "$PREFIX/etc/openmpi-default-hostfile",
    "$PREFIX/etc/ucx/ucx.conf",
    "/etc/ucx/ucx.conf",
    "~/ucx.conf",
)
#: Files of JSON that engines read by themselves, each with its default values.
SETTINGS = {name: values for engine in ENGINES.values() for name, values in engine.settings.items()}
#: The most characters of a file that are recorded; longer content is recorded as a digest.
_LONGEST = 2000

# Processes need no secrets, such as NCBI_API_KEY.
_SECRET = re.compile(
    r"((^|_)(API_?KEY|ACCESS_KEY|ACCESS_KEY_ID|SECRET|SECRET_KEY|PRIVATE_KEY|TOKEN|PASSWD"
    r"|PASSPHRASE|CREDENTIALS?|AUTH|PAT)|PASSWORD)$|^TF_(VAR|TOKEN)_",
    re.I,
)
_NEUTRAL, _DECIDING, _PLACES, _AROUND = (
    re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for patterns in (NEUTRAL, DECIDING, PLACES, AROUND)
)
_PROJECT = Path(__file__).resolve().parents[2]


def for_ranks(environment: Environment = os.environ) -> dict[str, str]:
    """Return the variables that reach the ranks. Configurations set the numbers of threads."""
    passed = re.split("[, ]+", environment.get(PASS, ""))
    allowed = re.compile(f"{_NEUTRAL.pattern}|{_DECIDING.pattern}")
    return {
        name: value
        for name, value in environment.items()
        if name in passed
        or (allowed.fullmatch(name) and not (_SECRET.search(name) or THREADS.fullmatch(name)))
    }


def restore_shell(environment: Environment = os.environ) -> dict[str, str]:
    """Return the environment of the shell that made a call, without changes by this project.

    Undone are the changes of `escala.core.environment.prepare`, and the variables by which `uv run`
    names the environment of this interpreter.
    """
    shell = dict(environment)
    shell.pop("PYTHONSAFEPATH", None)
    for name, kept in {"PATH": CALLERS_PATH, "PYTHONPATH": CALLERS_MODULES}.items():
        if kept in shell:
            shell[name] = shell.pop(kept)
    if not shell.get("PYTHONPATH"):
        shell.pop("PYTHONPATH", None)
    if shell.get("VIRTUAL_ENV") == sys.prefix:
        del shell["VIRTUAL_ENV"]
    return shell


def for_programs(environment: Environment = os.environ) -> dict[str, str]:
    """Return the variables that reach programs of users, besides variables that a program names.

    These are the variables of `for_ranks`, and all others except: secrets, the place of a process
    in a job, numbers of threads, settings of this project, PYTHONHOME, and under MPI the parameters
    of Open MPI.
    """
    under_mpi = "OMPI_COMM_WORLD_SIZE" in environment
    return for_ranks(environment) | {
        name: value
        for name, value in environment.items()
        if not (
            is_secret(name)
            or _PLACES.fullmatch(name)
            or THREADS.fullmatch(name)
            or name.startswith("ESCALA_")
            or name == "PYTHONHOME"
            or (under_mpi and "_MCA_" in name)
        )
    }


def decisive_for_programs(environment: Environment = os.environ) -> dict[str, str]:
    """Return the variables of `for_programs` that may decide a result and are not in `decisive`.

    The shell that made the call had these variables (`CALLERS_VARIABLES`).
    """
    recorded, shell = decisive(environment), environment.get(CALLERS_VARIABLES, "").split(",")
    return {
        name: value
        for name, value in sorted(restore_shell(for_programs(environment)).items())
        if (name in shell or CALLERS_VARIABLES not in environment)
        and recorded.get(name) != value
        and re.fullmatch(r"\w+", name)
        and not (_NEUTRAL.fullmatch(name) or _AROUND.fullmatch(name))
    }


def is_secret(name: str) -> bool:
    """Return whether a variable of this name holds a secret. Secrets are never recorded."""
    return bool(_SECRET.search(name))


def decisive(environment: Environment = os.environ) -> dict[str, str]:
    """Return the variables that reach the ranks and can change a result, but no secrets.

    The folder of the project is left out of `PYTHONPATH`, because its code is recorded by digest.
    """
    values = {
        name: value
        for name, value in sorted(for_ranks(environment).items())
        if not (_NEUTRAL.fullmatch(name) or _SECRET.search(name))
    }
    if "PYTHONPATH" in values:
        values["PYTHONPATH"] = os.pathsep.join(
            entry
            for entry in values["PYTHONPATH"].split(os.pathsep)
            if entry and Path(entry).resolve() != _PROJECT
        )
    return {name: value for name, value in values.items() if value}


def describe(environment: Environment = os.environ) -> dict[str, dict[str, str]]:
    """Return the variables, and the files of the user and the site, that can change a result.

    Returns
    -------
    `variables`, the values of `decisive`; `files`, the lines of each of `FILES` without comments,
    and the digest of each library of `LD_PRELOAD`. Variables and files with empty contents are left
    out.
    """
    files = {name: _lines(_path_of(name, environment)) for name in FILES}
    files |= {name: _changes(_path_of(name, environment), SETTINGS[name]) for name in SETTINGS}
    for library in re.split("[: ]+", environment.get("LD_PRELOAD", "")):
        if Path(library).is_file():
            files[library] = f"sha256 {sha256_file(Path(library))}"
    return {
        "variables": decisive(environment),
        "files": {name: content for name, content in files.items() if content},
    }


@contextmanager
def drop_additions() -> Iterator[None]:
    """Remove variables that the block adds, so that later runs of this process do not have them.

    Some libraries set variables when they are imported. Variables of the project, such as the name
    of the session, stay.
    """
    before = set(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - before:
            if not name.startswith("ESCALA_"):
                del os.environ[name]


def _path_of(name: str, environment: Environment) -> Path:
    home = environment.get("HOME") or "/nonexistent"
    # A folder may have ~ in its name.
    return Path(name.replace("~", home, 1).replace("$PREFIX", sys.prefix, 1))


def _lines(path: Path) -> str:
    """Return the lines of a file without comments, or the digest of a long file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    stripped = (line.partition("#")[0].strip() for line in lines)
    content = "\n".join(filter(None, stripped))
    if len(content) > _LONGEST:
        return f"sha256 {hashlib.sha256(content.encode()).hexdigest()}"
    return content


def _changes(path: Path, defaults: Mapping[str, object]) -> str:
    """Return the settings of a file of JSON that differ from their defaults."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        changed = {k: v for k, v in settings.items() if defaults.get(k) != v}
    except (OSError, ValueError, AttributeError):
        return ""
    return json.dumps(changed, sort_keys=True) if changed else ""
