"""Kinds of datasets. Each kind is a folder of this package, or one outside the project.

A kind is found by its `kind.yaml`, which declares it without importing anything:

`description` : one sentence on the data.
`settings` : the JSON Schema of `datasets.NAME` in an experiment. `kind` and `split.seeds` are
    common to all kinds and are added to the schema. The schema may refer to `#/$defs/name` and
    `#/$defs/count_by_class`. A key has a `role`, which says what it decides: `acquired` (the
    acquired data; the default in `source`), `prepared` (the arrays; the default elsewhere), `path`
    (a file or folder of the user's that acquisition reads), `extracted` (a path that features are
    computed from) or `audit` (no effect on the training data).
`files` : names of all files that preparation writes alongside `dataset.json`; `{side}` stands for
    the name of each side.
`packages` : optional: distributions whose versions decide the arrays, besides
    `escala.cache.code.LIBRARIES`.
`audits` : optional: the audits that the kind's own rules compute, `CLASSES` or `LEAKAGE`.

A kind has the name of its folder, with `-` for `_`. The folder is a package, and its modules have
fixed names. They raise an `InputError` for input that they cannot use.

The package itself, `__init__`, is imported by the workflow at every start, so it imports no heavy
library:
    `check(settings)` refuses what the schema cannot express. The place of an `InputError` is the
        key below `datasets.NAME`.
    `acquisition`, `inputs`, `preparation`, `preparation_inputs`, `size` and `photographs` are
    optional. In place of an absent function, the one of that name in `escala.data.settings` reads
    the roles. `paths(settings)` and `find_changes(split)` belong to a kind whose files a program
    reads without a copy. They return the paths of the files by name, and the names of the paths
    that changed since the split was described.

`source`, for data that must be acquired before any split:
    `acquire(acquisition, inputs, folder)` fills the empty `folder`, which is `source` in the
        dataset's folder. The workflow adds a `lock.tsv` with the digest of every file.

`arrays`:
    `prepare(name, preparation, seed, inputs, output)` writes the arrays of one split and
        `dataset.json` into `output`, and returns the content of `dataset.json`. `name` is the name
        of the dataset, and `inputs` are the files of `preparation_inputs`. Most kinds write every
        file by `escala.data.splits.write_split`. If `prepare` raises, no `dataset.json` is written.
    `queries(path, description)` is optional, for the prediction of a user's own data. It yields a
    `Query` for each item in a user's file; `description` is the `dataset.json` that the model was
    trained on.

`reader`, for arrays that `escala.data.base.Arrays` cannot read:
    `Arrays(folder)` has the attributes and methods of that class.

`familiarity`, if the kind measures how similar a query is to the training rows:
    `learn(split, output)` writes a summary of the training rows of a split, and returns it as a
        `Familiarity`, which `Familiarity.load(path)` reads.

`fragments`, for items of any length. The `Query` of an item then has the column `letters`, its
length. The kind also has `familiarity`:
    `fragments(split, description)` yields each length with the pieces of the test side that have
    this length. A piece is a `Query` and its label. `inputs(split)` returns the files that
    `fragments` reads, by name.

A kind may have further modules. It may also have rules for its own steps, like the rules of genomes
in `rules/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from escala.cache.code import LIBRARIES, Code, modules
from escala.core import packages, plugins
from escala.core.files import read_yaml

if TYPE_CHECKING:
    from escala.data.base import Arrays

DECLARATION = plugins.DECLARATIONS[plugins.KINDS]

#: The kind of a dataset whose settings name no kind.
DEFAULT_KIND = "genomes"
#: Counts of each class before the split: `classes.csv` in the dataset's folder.
CLASSES = "classes"
#: Similarity of each test row to the training rows: `test_similarity.npy` and `leakage.json` in the
#: folder of each split.
LEAKAGE = "leakage"
#: The optional module of a kind that acquires its data.
ACQUIRE = "acquire"


@dataclass(frozen=True)
class Kind:
    """A kind of datasets: its name in experiments, its folder, and the name of its package."""

    name: str
    folder: Path
    package: str

    @cached_property
    def declared(self) -> dict[str, Any]:
        """The content of its `kind.yaml`."""
        return read_yaml(self.folder / DECLARATION)

    @property
    def settings(self) -> ModuleType:
        """Its package, whose functions say what the settings of a dataset decide."""
        return import_module(self.package)

    @property
    def audits(self) -> tuple[str, ...]:
        return tuple(self.declared.get("audits", ()))

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files that preparation may write, `{side}` replaced by each side's."""
        from escala.data.settings import SIDES

        named = (name.format(side=side) for name in self.declared["files"] for side in SIDES)
        return tuple(dict.fromkeys(named))

    def code(self, part: str = "") -> Code:
        """Return the code that determines its datasets, besides their settings and files.

        The other steps have the acquired files as inputs, so the code of `ACQUIRE` does not count.

        Parameters
        ----------
        part : a file or folder in the kind's folder, if only this part determines a step.
        """
        distributions = LIBRARIES + tuple(self.declared.get("packages", ()))
        names, shared = [part], {}
        if not part:
            names = [path.name for path in self.folder.iterdir() if path.name != ACQUIRE]
            shared = modules(Path(__file__).parent)
        paths = {f"kind/{name}": self.folder / name for name in names}
        return Code(paths | shared, packages.versions(distributions))

    def has(self, part: str) -> bool:
        """Return whether it has a module of that name."""
        return (self.folder / f"{part}.py").is_file()

    def load(self, part: str) -> ModuleType:
        return import_module(f"{self.package}.{part}")


def _discover() -> dict[str, Kind]:
    files = sorted(Path(__file__).parent.glob(f"*/{DECLARATION}"))
    inside = [(file.parent.name.replace("_", "-"), file.parent) for file in files]
    return {name: Kind(name, folder, f"{__name__}.{folder.name}") for name, folder in inside} | {
        name: _outside(name, folder) for name, folder in plugins.folders(plugins.KINDS).items()
    }


def _outside(name: str, folder: Path) -> Kind:
    """Return the kind in a folder outside the project."""
    return Kind(name, folder, plugins.package(plugins.KINDS, name))


KINDS = _discover()


def add(name: str, folder: Path) -> None:
    """Add a kind whose folder, an absolute path, is outside the project."""
    plugins.add(plugins.KINDS, name, folder)
    KINDS[name] = _outside(name, folder)


def kind_of(described: Mapping[str, Any]) -> Kind:
    """Return the kind of a dataset from its settings or its `dataset.json`."""
    return KINDS[described.get("kind", DEFAULT_KIND)]


def reader(folder: str | Path) -> Arrays:
    """Return the reader of the arrays of one split; `escala.data.base.Arrays` names the errors."""
    # Imported here, because the workflow reads no arrays and should not wait for NumPy.
    from escala.data import base

    kind = kind_of(base.description(Path(folder)))
    return (kind.load("reader") if kind.has("reader") else base).Arrays(folder)
