"""The code that determines the outputs of a step. The step declares this code.

A step names the files and folders of its code, and the packages that it uses; nothing is derived
from imports. The code that starts, measures and records runs is in no digest. If the meaning of a
record changes, raise `escala.record.key.RECORD`.
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
#: The distributions that prepare and score data, and the distributions that draw figures.
LIBRARIES = (
    "biopython", "dendropy", "imbalanced-learn", "numpy", "pandas", "pillow", "scikit-learn",
    "scipy",
)  # fmt: skip
DRAWING = ("matplotlib", "seaborn")


@dataclass(frozen=True)
class Code:
    """The files and packages that determine the outputs of a step.

    Attributes
    ----------
    paths : files and folders, by names that tell their purpose in the step. Digests depend on these
        names and not on the paths, so a moved folder changes nothing.
    versions : the versions of packages, by distribution.
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
        """Return one digest of all files, in hexadecimal. Errors: see `files`."""
        return hashlib.sha256(json.dumps(self.files(), sort_keys=True).encode()).hexdigest()


def modules(folder: Path) -> dict[str, Path]:
    """Return the modules of a package by name, without modules of packages inside the package."""
    return {f"{folder.name}/{path.name}": path for path in sorted(folder.glob("*.py"))}


def project() -> Code:
    """Return the code of a short step: the whole project, with its libraries."""
    schemas = PACKAGE.parent / "schemas"
    return Code({"escala": PACKAGE, "schemas": schemas}, packages.versions(LIBRARIES + DRAWING))
