"""Tables of predictions for a user's own files, from the run that is to make them."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.workloads.models import DESCRIPTION

#: Rules that a prediction with a trained run may need: none that trains.
RULES = ("predict", "familiarity", "length_errors")
#: Suffixes that come after the one of the format.
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
#: Depth of the folder of a run: results/EXPERIMENT/runs/, six names, the repeat.
_DEPTH = 10
#: Maximum number of runs in a message.
_NAMED = 8


def predictions(run: Path, files: Sequence[Path]) -> tuple[str, list[str], str]:
    """Return the name of a run's experiment, a table for each file, and the key `predict` as JSON.

    `run` is a `run.json`, its folder, or a folder above it that holds one trained run; below
    `results/` in the working directory. `files` are in the format of the dataset's kind. A missing
    file, no file, and other than one trained run are refused.
    """
    _, experiment, _, *names = find_run(run).parts
    if not files:
        remedy = call("predict --run", run, "reads.fasta")
        raise InputError("FILE", None, "is missing", remedy)
    if missing := [str(file) for file in files if not file.exists()]:
        raise InputError("FILE", ", ".join(missing), "no such file", "name existing files")
    # In an experiment, `$` and `~` have a meaning.
    inputs = {
        name: str(file.absolute() if str(file).startswith("~") else file).replace("$", "$$")
        for name, file in name_tables(files).items()
    }
    below = Path("results", experiment, "predictions", *names)
    targets = [str(below / f"{name}.tsv") for name in inputs]
    return experiment, targets, json.dumps({"inputs": inputs}, ensure_ascii=False)


def find_run(run: Path) -> Path:
    """Return the folder of the only trained run at or below a path, from `results/` on."""
    folder = Path(os.path.relpath(run.parent if run.name == "run.json" else run))
    if not folder.is_dir():
        raise InputError("--run", str(run), "no such run", "name a folder below results/")
    runs = sorted(file.parent for file in folder.glob("**/run.json"))
    runs = [one for one in runs if one.parts[0] == "results" and len(one.parts) == _DEPTH]
    trained = []
    for one in runs:
        with suppress(ValueError, KeyError, TypeError):
            if (one / DESCRIPTION).exists() and read_json(one / "run.json")["status"] == "ok":
                trained.append(one)
    if len(trained) == 1:
        return trained[0]
    remedy = "name the folder of a run below results/ that ended ok with save_model: true"
    reason = f"of {len(runs)} runs here none ended ok with a model" if runs else "no run is here"
    if trained:
        more = f" and {len(trained) - _NAMED} more" if len(trained) > _NAMED else ""
        listed = ", ".join(map(str, trained[:_NAMED]))
        reason, remedy = f"{len(trained)} trained runs fit: {listed}{more}", "name one of them"
    raise InputError("--run", str(run), reason, remedy)


def name_tables(files: Sequence[Path]) -> dict[str, Path]:
    """Return the files by the names of their tables: that of the file, or with its folders."""
    stems = [
        file.with_suffix("").stem if file.suffix in COMPRESSED else file.stem for file in files
    ]
    plain = Counter(map(_name, stems))
    names = [
        _name(stem if plain[_name(stem)] == 1 else "-".join([*file.parent.parts, stem]))
        for file, stem in zip(files, stems, strict=True)
    ]
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        reason = f"several files would have the table {name}.tsv"
        raise InputError("FILE", ", ".join(map(str, files)), reason, "predict them one by one")
    return dict(zip(names, files, strict=True))


def _name(text: str) -> str:
    """Return a text as the name of a table: letters, digits, `-` and `_`, 64 at most."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[-64:].strip("-_") or "query"
