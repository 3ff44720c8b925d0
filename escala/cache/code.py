"""The code that determines what a step makes, as the step declares it.

Nothing is found by parsing or by imports: a step names the files and folders that count, and the
versions of the packages that it uses. What starts, measures and records runs is in no digest; if
its meaning changes, `escala.record.key.RECORD` is raised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from escala.core import packages
from escala.core.files import sha256_file

#: The folder of the package `escala`.
PACKAGE = Path(__file__).resolve().parents[1]
#: Distributions with which data are prepared and scored, and those that draw figures.
LIBRARIES = (
    "biopython", "dendropy", "imbalanced-learn", "numpy", "pandas", "pillow", "scikit-learn",
    "scipy",
)  # fmt: skip
DRAWING = ("matplotlib", "seaborn")


@dataclass(frozen=True)
class Code:
    """Files and packages that determine what a step makes.

    Attributes
    ----------
    paths : files and folders, by a name that says what they are to the step. Digests hold these
        names and not the paths, so a folder that is moved changes nothing.
    versions : of packages, by distribution.
    """

    paths: Mapping[str, Path]
    versions: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """Return the SHA-256 of every file, in hexadecimal, by its path below a name of `paths`.

        Hidden files and compiled modules are left out.

        Raises
        ------
        OSError : a file is missing or cannot be read.
        """
        digests = {}
        for name, path in self.paths.items():
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                inner = PurePath(name, file.relative_to(path))
                hidden = any(part.startswith(".") or part == "__pycache__" for part in inner.parts)
                if not hidden and not file.is_dir():
                    digests[str(inner)] = sha256_file(file)
        return digests

    def digest(self) -> str:
        """Return one digest of all files, in hexadecimal, or raise as `files`."""
        return hashlib.sha256(json.dumps(self.files(), sort_keys=True).encode()).hexdigest()


def modules(folder: Path) -> dict[str, Path]:
    """Return the modules of a package by their names, without those in packages inside it."""
    return {f"{folder.name}/{path.name}": path for path in sorted(folder.glob("*.py"))}


def project() -> Code:
    """Return the code of a step that takes seconds: the whole project, with its libraries."""
    schemas = PACKAGE.parent / "schemas"
    return Code({"escala": PACKAGE, "schemas": schemas}, packages.versions(LIBRARIES + DRAWING))
