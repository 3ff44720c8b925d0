"""Which variables of the environment reach the processes of a run, and what else decides a result.

A variable is passed on if a line of `NEUTRAL` or `DECIDING` allows its name; no other one reaches a
rank. Those of `DECIDING` can change kernels, the exchange or the time of a step. They are recorded
in `run.json`, with the files of `FILES`, which libraries read by themselves. Both are part of every
key of the store, and results of which they differ are not compared.
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

from escala.core.files import sha256_file

Environment = Mapping[str, str]

#: The profile of Snakemake that a user has for all work.
PROFILE = "SNAKEMAKE_PROFILE"
#: Holds PATH as the user had it: there programs of users are looked for.
CALLERS_PATH = "ESCALA_PATH"
#: Names of further variables that the user passes to the ranks, divided by commas.
PASS = "ESCALA_PASS"

#: The variable that names the folder of its marks to a program (`escala/hook`).
MARKS = "ESCALA_STEPS"
#: The variable that asks the first process of a program for a trace: `STEPS:FILE`.
TRACED = "ESCALA_TRACE"

#: Patterns of names that processes need and that change no result, with what they are for.
NEUTRAL = {
    r"HOME|USER|LOGNAME|SHELL|TERM|PATH": "programs and folders of the user",
    r"LANG|LANGUAGE|LC_\w+|TZ": "language and time zone",
    r"TMPDIR|TMP|TEMP|XDG_CACHE_HOME|XDG_RUNTIME_DIR|TORCH_HOME|KRB5CCNAME": (
        "folders, and access to them"
    ),
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER": "GPUs, whose models and identifiers are recorded",
    r"SLURM_CONF|SLURM_CLUSTERS": "how `srun` finds its controller",
    r"ESCALA_(?!PROCESS$)\w+": "settings of this project",
    r"PYTHON(DONTWRITEBYTECODE|UNBUFFERED|PYCACHEPREFIX|WARNINGS|UTF8|IOENCODING)": (
        "how Python reads and writes"
    ),
    r"PYTHON(NOUSERSITE|SAFEPATH)": "where Python does not look for modules",
    r"TF_CPP_(MIN_LOG_LEVEL|LOG_THREAD_ID)": "messages of TensorFlow",
}

#: Patterns of names that can change kernels, the exchange or the time of a step, and what they set.
DECIDING = {
    # Not those of Terraform, which may be secret, and not the place of a process in a cluster.
    r"TF_(?!CONFIG$|VAR_|TOKEN_|CLI_|LOG(_|$)|DATA_DIR$|INPUT$|WORKSPACE$|IN_AUTOMATION$)\w+": (
        "TensorFlow"
    ),
    r"(TF2|TFRT|TFXLA|XLA|KERAS)_\w+": "TensorFlow, XLA and Keras",
    r"(TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|ATEN)_(?!HOME$)\w+": "PyTorch",
    r"(ONEDNN|DNNL)_\w+": "oneDNN's kernels",
    r"(KMP|MKL|OPENBLAS|GOTO|BLIS)_\w+": "threads and kernels of linear algebra",
    r"(NPY|NUMPY|SCIPY|SKLEARN|JOBLIB|LOKY)_\w+": "NumPy, SciPy and scikit-learn",
    r"(CUDA|CUDNN|CUBLAS|CUBLASLT|NCCL)_\w+|NVIDIA_TF32_OVERRIDE": "kernels and exchange of GPUs",
    r"(UCX|FI|GLOO|PSM2?|HFI|IBV|MLX[45]|HCOLL|SHARP|RDMAV|HWLOC)_\w+": "networks",
    r"GRPC_(?!DEFAULT_SSL|SSL)\w+": "TensorFlow's servers",
    r"LD_(LIBRARY_PATH|PRELOAD|AUDIT|BIND_NOW)|GLIBC_TUNABLES": "libraries, and how they load",
    r"(MALLOC|JEMALLOC|TCMALLOC|MIMALLOC)_\w*": "allocation of memory",
    r"PYTHON(PATH|HASHSEED|OPTIMIZE|MALLOC|DEVMODE|TRACEMALLOC|FAULTHANDLER)": "Python",
    r"PROTOCOL_BUFFERS_\w+": "messages between processes",
}

#: Files that Open MPI, PMIx, UCX and Keras read by themselves. `~` is HOME, `$PREFIX` the folder of
#: the Python environment, which holds Open MPI.
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
#: Keras writes its defaults into this file, if there is none.
KERAS_FILE = "~/.keras/keras.json"
_KERAS_DEFAULTS = {
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": "tensorflow",
    "image_data_format": "channels_last",
}
#: A longer content is recorded as a digest.
_LONGEST = 2000

# Ranks need no secrets, such as NCBI_API_KEY.
_SECRET = re.compile(
    r"(^|_)(API_?KEY|ACCESS_KEY|ACCESS_KEY_ID|SECRET|SECRET_KEY|PRIVATE_KEY|TOKEN|PASSWORD|PASSWD"
    r"|PASSPHRASE|CREDENTIALS?|AUTH|PAT)$",
    re.I,
)
_NEUTRAL, _DECIDING = (
    re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for patterns in (NEUTRAL, DECIDING)
)
_PROJECT = Path(__file__).resolve().parents[2]


def passed(environment: Environment = os.environ) -> dict[str, str]:
    """Return the variables that reach the ranks."""
    named = _named(environment)
    return {
        name: value
        for name, value in environment.items()
        if name in named or (_is_allowed(name) and not _SECRET.search(name))
    }


def is_secret(name: str) -> bool:
    """Return whether a variable of this name holds a secret, of which nothing is recorded."""
    return bool(_SECRET.search(name))


def deciding(environment: Environment = os.environ) -> dict[str, str]:
    """Return the variables that reach the ranks and can change a result, but no secrets.

    The project's own folder is left out of `PYTHONPATH`, because its code is recorded by digest.
    """
    found = {
        name: value
        for name, value in sorted(passed(environment).items())
        if not (_NEUTRAL.fullmatch(name) or _SECRET.search(name))
    }
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join(
            entry
            for entry in found["PYTHONPATH"].split(os.pathsep)
            if entry and Path(entry).resolve() != _PROJECT
        )
    return {name: value for name, value in found.items() if value}


def describe(environment: Environment = os.environ) -> dict[str, dict[str, str]]:
    """Return what this environment and the files of the user and the site decide.

    Returns
    -------
    `variables`, the values of `deciding`; `files`, the lines that count of each of `FILES`, and the
    digest of each library of `LD_PRELOAD`. Names with empty contents are left out.
    """
    files = {name: _lines(_place(name, environment)) for name in FILES}
    files[KERAS_FILE] = _keras(_place(KERAS_FILE, environment))
    for library in re.split("[: ]+", environment.get("LD_PRELOAD", "")):
        if Path(library).is_file():
            files[library] = f"sha256 {sha256_file(Path(library))}"
    return {
        "variables": deciding(environment),
        "files": {name: content for name, content in files.items() if content},
    }


@contextmanager
def kept() -> Iterator[None]:
    """Remove variables that the block adds: libraries set some as they are imported.

    The ranks of a later run of this process would have them, and those of the first would not.
    The project's own, such as the session's name, stay.
    """
    before = set(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - before:
            if not name.startswith("ESCALA_"):
                del os.environ[name]


def _is_allowed(name: str) -> bool:
    return bool(_NEUTRAL.fullmatch(name) or _DECIDING.fullmatch(name))


def _named(environment: Environment) -> set[str]:
    return set(filter(None, re.split("[, ]+", environment.get(PASS, ""))))


def _place(name: str, environment: Environment) -> Path:
    home = environment.get("HOME") or "/nonexistent"
    # A folder may have ~ in its name.
    return Path(name.replace("~", home, 1).replace("$PREFIX", sys.prefix, 1))


def _lines(path: Path) -> str:
    """Return the lines of a file without comments, or its digest if they are many."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    stripped = (line.partition("#")[0].strip() for line in lines)
    content = "\n".join(filter(None, stripped))
    if len(content) > _LONGEST:
        return f"sha256 {hashlib.sha256(content.encode()).hexdigest()}"
    return content


def _keras(path: Path) -> str:
    """Return the settings of Keras's file that are not its defaults."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        changed = {k: v for k, v in settings.items() if _KERAS_DEFAULTS.get(k) != v}
    except (OSError, ValueError, AttributeError):
        return ""
    return json.dumps(changed, sort_keys=True) if changed else ""
