"""A drafted experiment: its settings, and its file with a comment on each key.

`escala.experiment.Experiment` checks a draft like every other experiment.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml

from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.core.yaml12 import Dumper
from escala.experiment import folders, owners
from escala.experiment.matrix import Experiment
from escala.experiment.schema import SCHEMA, compose_schema
from escala.workloads import WORKLOADS

#: The names of two variants: one core for each process; one process with threads on all cores.
PROCESSES, THREADS = "tuned", "threads"
_WIDTH = 100
#: Comments on keys in every draft. They follow the comments of the schema.
_NOTES = {
    "variants": f"`{THREADS}` is the alternative to more processes: one process with threads.",
}


@dataclass(frozen=True)
class Draft:
    """A drafted experiment.

    Attributes
    ----------
    settings : the settings of the experiment.
    notes : comments on keys of the file. They follow the comments of the schema.
    sentences : sentences on assumptions, and on settings that cannot be varied.
    as_typed : the draft that starts the command unchanged, as one process; None unless the strategy
        of this draft is guessed from the script.
    """

    settings: dict[str, Any]
    notes: dict[str, str]
    sentences: list[str]
    as_typed: Draft | None = None

    @property
    def name(self) -> str:
        return self.settings["experiment"]

    def content(self, file: Path, force: bool, name_option: str) -> str:
        """Return the text of the file, if the experiment is valid and the file may be written.

        Parameters
        ----------
        force : replace a file that exists.
        name_option : the option of the command that sets another name.

        Raises
        ------
        InputError : the experiment is not valid, the file exists with other content, the name
            belongs to another file in the working directory, or the folder cannot be written to.
        """
        Experiment(self.settings, file)
        content = text(self)
        present = file.read_text(encoding="utf-8", errors="replace") if file.exists() else content
        if present != content and not force:
            reason = "exists, and differs from what these options give"
            remedy = (
                f"measure it as it is: {call('run -e', file)}; or add --force, or {name_option}"
            )
            raise InputError(file, file.name, reason, remedy)
        for owner in owners(self.name, Path()):
            if not (file.exists() and owner.samefile(file)):
                reason = f"is the name of {owner}"
                raise InputError(file, self.name, reason, f"choose another: {name_option}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=file.parent).close()
        except OSError as error:
            folder, reason = str(file.parent.absolute()), f"cannot be written to: {error.strerror}"
            raise InputError("the folder", folder, reason, "go to a folder of your own") from None
        return content


def compare_settings(
    name: str, title: str, repeats: int | dict[str, Any], alone: Sequence[str], threads: int,
    cores: int = 1, base: int = 1, *, datasets: dict[str, Any], workloads: dict[str, Any],
    configurations: list[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """Return the settings of an experiment whose reference is one process on one core.

    Parameters
    ----------
    alone : the strategies of one process, each a reference.
    threads : threads of the one process that is compared with several; 1 leaves it out.
    cores : cores of a process, if there are several.
    base : number of processes of the references; above 1 if the program cannot run as one process.
    """
    variants = {PROCESSES: {"cores_per_process": cores}}
    variants |= {THREADS: {"cores_per_process": threads}} if threads > 1 else {}
    return {
        "experiment": name,
        "title": title,
        "repeats": repeats,
        "time_limit_minutes": 60,
        "datasets": datasets,
        "workloads": workloads,
        "variants": variants,
        "configurations": configurations,
        "references": [
            {"strategy": strategy, "layout": f"1x{base}", "variant": variant}
            for strategy in alone
            for variant in variants
        ],
    }


def text(draft: Draft) -> str:
    """Return the file of a draft, with the first sentence of the schema above each key."""
    return "\n".join(_lines(draft.settings, _NOTES | draft.notes)) + "\n"


def _lines(settings: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[str]:
    schema = compose_schema(read_yaml(SCHEMA), WORKLOADS | folders.adopt(settings, "draft"))
    yield "# An experiment that Escala wrote. Change any value."
    yield "# docs/reference/configuration.md describes every key, also those that are not here."
    for key, value in settings.items():
        # Short keys at the top stand together, with their comments; sections stand apart.
        yield from ("",) if isinstance(value, (dict, list)) else ()
        yield from _comment(key, schema["properties"].get(key, {}), notes, 0)
        if key in ("datasets", "workloads"):
            yield f"{key}:"
            for name, inner in value.items():
                yield f"  {_flow(name)}:{'' if inner else ' {}'}"
                definition = f"dataset_{inner['kind']}" if key == "datasets" else f"workload_{name}"
                described = schema["$defs"][definition]["properties"]
                for part, content in inner.items():
                    yield from _comment(part, described.get(part, {}), notes, 4)
                    yield f"    {part}: {_flow(content)}"
        elif key in ("variants", "scaling"):
            yield f"{key}:"
            yield from (f"  {name}: {_flow(inner)}" for name, inner in value.items())
        elif isinstance(value, list):
            yield f"{key}:"
            yield from (f"  - {_flow(item)}" for item in value)
        else:
            yield f"{key}: {_flow(value)}"


def _comment(
    key: str, schema: Mapping[str, Any], notes: Mapping[str, str], indent: int
) -> Iterator[str]:
    """Yield the lines of the comment above a key."""
    first, *_ = re.split(r"(?<=\.)\s+(?=[A-Z`])", schema.get("description", ""))
    sentences = " ".join(filter(None, [first, notes.get(key)]))
    prefix = " " * indent + "# "
    yield from textwrap.wrap(
        sentences, _WIDTH, initial_indent=prefix, subsequent_indent=prefix,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    dumped = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, width=math.inf, allow_unicode=True,
        sort_keys=False,
    )  # fmt: skip
    return dumped.removesuffix("...\n").strip()
