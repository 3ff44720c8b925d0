"""An experiment: read, checked whole, and expanded into its runs."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator

from escala.acquire.queries import QUERIES
from escala.errors import InputError
from escala.parallel.knobs import significant
from escala.parallel.launch import LOCAL, SRUN
from escala.parallel.layout import Layout
from escala.parallel.strategies import STRATEGIES
from escala.references import DEFAULT, NATIVE, ONE_PROCESS, Place, Reference, compared_with
from escala.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "schemas" / "config.schema.yaml"
#: Entries of an experiment's file, with every alias written out.
MOST_NODES = 100_000

# Settings of a workload that a variant may give in its stead.
_TRAINING_OF_VARIANT = ("batch", "learning_rate", "checkpoint_epochs")
# Settings of a dataset that its arrays depend on, besides its source and its split.
_PREPARED_BY = ("classes", "length", "window", "deduplicate", "oversample")
# A layout of one node uses no network, whatever is said of one called as its own.
_NO_LINK = {"interface": None, "rate": None, "steps": None}


@dataclass(frozen=True)
class Run:
    """One cell of the matrix; `repeat` is None for an instrumented run.

    `pair` is the name of the pair of a ladder that the run is one side of, None outside of ladders.
    """

    experiment: str
    dataset: str
    workload: str
    strategy: str
    layout: str
    variant: str
    network: str
    repeat: int | None
    instrument: str | None = None
    pair: str | None = None

    @property
    def folder(self) -> str:
        """The run's folder; its result is `run.json` in it."""
        last = self.instrument or f"rep{self.repeat}"
        if self.pair:
            last = f"{self.pair}.{last}"
        return (
            f"results/{self.experiment}/runs/{self.dataset}/{self.workload}/{self.strategy}/"
            f"{self.layout}/{self.variant}/{self.network}/{last}"
        )

    @property
    def file(self) -> str:
        return f"{self.folder}/run.json"

    @property
    def place(self) -> Place:
        return Place(self.strategy, self.layout, self.variant, self.network)


@dataclass(frozen=True)
class Pair:
    """Two configurations that are timed in turns: neighbours on a ladder, or its two ends.

    `rung` counts the neighbours from 1, and is None for the ends. `before` and `after` are
    strategy, layout, variant and network. `change` says what differs, of neighbours.
    """

    name: str
    ladder: str
    rung: int | None
    before: Place
    after: Place
    change: str | None


class Experiment:
    """A validated experiment with every default filled in.

    Parameters
    ----------
    settings : the content of the experiment's file.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown, a value not allowed, or two of them do not fit together.
    """

    def __init__(self, settings: Mapping[str, Any], origin: str | Path):
        self.origin = str(origin)
        self.settings = _validated(settings, self.origin)
        self.name: str = self.settings["experiment"]
        self.title: str = self.settings["title"]
        for check in (
            _check_classes,
            _check_splits,
            _check_configurations,
            _check_references,
            _check_ladders,
            _check_layouts,
            _check_launcher,
            _check_slowdown,
            _check_slow_ranks,
            _check_fitted,
            _check_targets,
        ):
            check(self)

    def error(self, key: str, value: object, reason: str, remedy: str) -> InputError:
        return InputError(f"{self.origin}: {key}", value, reason, remedy)

    @property
    def datasets(self) -> dict[str, dict]:
        return self.settings["datasets"]

    def preparation(self, dataset: str) -> dict:
        """Return the settings of a dataset that its arrays depend on, and no others.

        They enter `dataset.json`, and with it what determines every measurement. Clusters are
        linked by `similarity`; for other splits it is where the leakage report begins to count.
        """
        settings = self.datasets[dataset]
        split = {k: v for k, v in settings["split"].items() if k not in ("seeds", "groups")}
        if split["by"] == "cluster":
            split["similarity"] = settings["similarity"]
        return {
            "provenance": settings["source"]["type"],
            **{key: settings[key] for key in _PREPARED_BY},
            "split": split,
        }

    def split_seed(self, dataset: str, repeat: int | None) -> int:
        """Return the seed of the split that a repeat trains on; instrumented runs use the first."""
        seeds = self.datasets[dataset]["split"]["seeds"]
        return seeds[((repeat or 1) - 1) % len(seeds)]

    @cached_property
    def runs(self) -> list[Run]:
        """Every timing run, in the order of the file.

        A fit draws nothing at random and its time is compared with nothing: it is repeated on
        other splits only.
        """
        return [
            run
            for repeat in range(1, self.settings["repeats"] + 1)
            for run in self._cells(repeat=repeat)
            if _takes_steps(run) or repeat <= len(self.datasets[run.dataset]["split"]["seeds"])
        ]

    @property
    def references(self) -> list[Reference]:
        """The references of the experiment, the main one first."""
        return self.settings.get("references") or list(DEFAULT)

    @cached_property
    def pairs(self) -> list[Pair]:
        """The pairs of every ladder: its neighbouring rungs, and its ends if these are others."""
        return [
            pair
            for ladder, rungs in self.settings["ladders"].items()
            for pair in self._pairs(ladder, rungs)
        ]

    def _pairs(self, ladder: str, rungs: list[dict]) -> Iterator[Pair]:
        for number, (before, after) in enumerate(pairwise(rungs), start=1):
            change = after.get("label") or self._change(before, after)
            name = f"{ladder}-{number}"
            yield Pair(name, ladder, number, _place(before), _place(after), change)
        if len(rungs) > 2:
            ends = _place(rungs[0]), _place(rungs[-1])
            yield Pair(f"{ladder}-ends", ladder, None, *ends, None)

    def _change(self, before: dict, after: dict) -> str:
        """Return which settings of two rungs differ, each as `key: old → new`."""
        old, new = map(self._of_rung, (before, after))
        changes = (
            f"{key}: {json.dumps(old.get(key))} → {json.dumps(new.get(key))}"
            for key in old | new
            if old.get(key) != new.get(key)
        )
        return ", ".join(changes) or "nothing"

    def _of_rung(self, rung: dict) -> dict:
        strategy, layout, variant, network = _place(rung)
        place = {"strategy": strategy, "layout": layout, "network": network}
        return place | self.settings["variants"][variant]

    @cached_property
    def paired(self) -> list[Run]:
        """Every run of the ladders' pairs, in the order to make them in.

        Each pair is a series of its own, and one follows the other: were all rungs timed in turns,
        their ratios would multiply to that of the ends by arithmetic alone. The side of a pair that
        comes first alternates, too.
        """
        return [
            Run(self.name, dataset, workload, *place, repeat, pair=pair.name)
            for dataset in self.datasets
            for workload in self.settings["workloads"]
            if WORKLOADS[workload].kind == "gradient"
            for pair in self.pairs
            for repeat in range(1, self.settings["repeats"] + 1)
            for place in (pair.before, pair.after)[:: 1 if repeat % 2 else -1]
        ]

    @property
    def timed(self) -> list[Run]:
        """Every timing run, those of ladders last, in the order to make them in."""
        return [*self.runs, *self.paired]

    @cached_property
    def timelines(self) -> list[Run]:
        """The timeline runs of the whole experiment."""
        return self._enabled("timeline")

    @cached_property
    def sampled(self) -> list[Run]:
        """The runs of the whole experiment in which resources are sampled."""
        return self._enabled("resources")

    @cached_property
    def clocked(self) -> list[Run]:
        """The runs of the whole experiment whose steps are split into parts."""
        return self._enabled("clocks")

    def _enabled(self, instrument: str) -> list[Run]:
        return self.of_instrument(instrument) if self.settings[instrument]["enabled"] else []

    def of_instrument(self, instrument: str | None) -> list[Run]:
        """Return the timing runs, or every run of an instrument that may be asked for.

        One that the whole experiment leaves out can still be asked for by its path.
        """
        if instrument is None:
            return self.timed
        cells = self._cells(repeat=None, instrument=instrument)
        return [run for run in cells if _SUITS[instrument](run)]

    def _cells(self, **last: Any) -> Iterator[Run]:
        for dataset in self.datasets:
            for workload in self.settings["workloads"]:
                for place in self._places(workload):
                    yield Run(self.name, dataset, workload, *place, **last)

    def _places(self, workload: str) -> list[Place]:
        """Return the place of every cell that a workload runs in.

        Only layouts of several nodes use a network between them; others have none to choose.

        A fit is one process, and no knob changes its outcome: it runs under the first variant that
        `single` `1x1` runs under, and nowhere else.
        """
        places = [
            Place(entry["strategy"], layout, variant, network)
            for entry in self.settings["configurations"]
            for layout in entry["layouts"]
            for variant in entry.get("variants", self.settings["variants"])
            for network in (
                entry.get("networks", self.settings["networks"])
                if Layout.parse(layout).nodes > 1
                else [NATIVE]
            )
        ]
        if WORKLOADS[workload].kind == "gradient":
            return places
        return [place for place in places if place[:2] == ONE_PROCESS][:1]

    def run_files(self) -> list[str]:
        return [run.file for run in self.runs]

    def instrumented_files(self) -> list[str]:
        return [run.file for run in [*self.timelines, *self.sampled, *self.clocked]]

    def paired_files(self) -> list[str]:
        return [run.file for run in self.paired]

    def resource_files(self) -> list[str]:
        return [run.file for run in self.sampled]

    def clock_files(self) -> list[str]:
        return [run.file for run in self.clocked]

    def dataset_files(self) -> list[str]:
        """The description of every split that some repeat trains on."""
        return sorted(
            {
                self.split_folder(dataset, self.split_seed(dataset, repeat)) + "/dataset.json"
                for dataset in self.datasets
                for repeat in range(1, self.settings["repeats"] + 1)
            }
        )

    def leakage_files(self) -> list[str]:
        """How similar the test rows of each of these splits are to its training rows."""
        folders = [file.rpartition("/")[0] for file in self.dataset_files()]
        return [f"{folder}/test_similarity.npy" for folder in folders]

    def class_files(self) -> list[str]:
        return [f"{self.data_folder(dataset)}/classes.csv" for dataset in self.datasets]

    def data_folder(self, dataset: str) -> str:
        return f"results/{self.name}/data/{dataset}"

    def split_folder(self, dataset: str, seed: int) -> str:
        return f"{self.data_folder(dataset)}/split{seed}"

    def cores_needed(self, run: Run) -> int:
        """Return the cores a run needs on each of its nodes."""
        per_process = self.settings["variants"][run.variant]["cores_per_process"]
        return Layout.parse(run.layout).processes * per_process

    def compared_with(self, run: Run) -> list[str]:
        """Return the configurations that a run is set against, each with a digest of its settings.

        They are part of what determines its result: where one of them joins, or its settings or its
        link change, both are measured again in one session, and so have a ratio.
        """
        return sorted(
            f"{place} {self._digest(replace(run, **place._asdict()))}"
            for place in self._set_against(run)
        )

    def _set_against(self, run: Run) -> set[Place]:
        """Return the references of a run, and what it is a reference of; or its pair's other side.

        Of what is captured in runs of their own, only clocks are compared.
        """
        if not _takes_steps(run) or run.instrument not in (None, "clocks"):
            return set()
        if run.pair:
            [pair] = [pair for pair in self.pairs if pair.name == run.pair]
            return {pair.before, pair.after} - {run.place}
        return {
            other
            for other in self._places(run.workload)
            if run.place in self._references_of(other) or other in self._references_of(run.place)
        }

    def _references_of(self, place: Place) -> list[Place]:
        return [found for _, found in compared_with(place, self.references)]

    def _digest(self, run: Run) -> str:
        settings = json.dumps(self._settings_of(run), sort_keys=True)
        return hashlib.sha256(settings.encode()).hexdigest()[:12]

    def run(
        self,
        dataset: str,
        workload: str,
        strategy: str,
        layout: str,
        variant: str,
        network: str,
        repeat: int | None,
        instrument: str | None = None,
        pair: str | None = None,
    ) -> Run:
        """Return the timing run, or the instrumented one, of these names.

        Raises
        ------
        InputError : the experiment holds no such run.
        """
        place = (strategy, layout, variant, network)
        wanted = Run(self.name, dataset, workload, *place, repeat, instrument, pair)
        if wanted not in self.of_instrument(instrument):
            raise InputError(
                wanted.file,
                f"{strategy} {layout}",
                f"is not among the runs of {self.origin}",
                "add its strategy, layout, variant or repeat there",
            )
        return wanted

    def request(self, run: Run) -> dict:
        """Return all that determines a run's result besides its data and the code.

        An instrumented run is one epoch, with a timeline some of its steps: it is not compared.
        """
        return {
            **asdict(run),
            **self._settings_of(run),
            "launcher": self.settings["launcher"],
            "oversubscribe": self.settings["oversubscribe"],
            "sample_seconds": (
                self.settings["resources"]["seconds"] if run.instrument == "resources" else None
            ),
            "compared_with": self.compared_with(run),
        }

    def _settings_of(self, run: Run) -> dict:
        """Return how a run trains: its settings, knobs, link and number of steps."""
        training = self.settings["workloads"][run.workload]
        variant = self.settings["variants"][run.variant]
        if WORKLOADS[run.workload].kind == "gradient":
            of_variant = {key: variant[key] for key in _TRAINING_OF_VARIANT if key in variant}
            training = training | of_variant
        several = Layout.parse(run.layout).nodes > 1
        link = self.settings["networks"][run.network] if several else _NO_LINK
        steps = link["steps"]
        if run.instrument in ("timeline", "clocks"):
            steps = self.settings[run.instrument]["steps"]
        if run.instrument or steps:
            training = training | {"epochs": 1, "validate": False, "save_model": False}
            training["checkpoint_epochs"] = None
            training.pop("target_accuracy", None)
        return {
            "training": training,
            "knobs": significant(
                {k: v for k, v in variant.items() if k not in _TRAINING_OF_VARIANT},
                run.strategy,
                WORKLOADS[run.workload].kind,
            ),
            "link": {key: link[key] for key in ("interface", "rate")},
            "max_steps": steps,
        }

    def require_cores(self, run: Run, available: int) -> None:
        """Refuse a run this machine cannot start, or cannot hold unless `oversubscribe` is set.

        Raises
        ------
        InputError : its layout asks for more nodes, or more cores, than there are, or SLURM is to
            start it.
        """
        key = _asked_by(run)
        if self.settings["launcher"] == SRUN:
            raise self.error(
                "launcher",
                SRUN,
                "needs a SLURM allocation",
                "use auto, or run through SLURM: --profile profiles/slurm",
            )
        if Layout.parse(run.layout).nodes > 1:
            raise self.error(
                key,
                run.layout,
                "asks for more than one node, and this is one machine",
                "use a layout 1xN, or run through SLURM: --profile profiles/slurm, or the lab's "
                "--profile profiles/lab",
            )
        needed = self.cores_needed(run)
        if needed > available and not self.settings["oversubscribe"]:
            raise self.error(
                key,
                run.layout,
                f"needs {needed} cores, and {available} are available",
                "ask for fewer processes, lower cores_per_process of the variant, give Snakemake "
                "more --cores, or set oversubscribe: true",
            )


def _asked_by(run: Run) -> str:
    """Return where in the settings a run is asked for."""
    return f"{'ladders' if run.pair else 'configurations'}: {run.strategy}"


def _takes_steps(run: Run) -> bool:
    return WORKLOADS[run.workload].kind == "gradient"


#: Which runs an instrument can capture.
_SUITS: Mapping[str, Callable[[Run], bool]] = {
    "timeline": lambda run: STRATEGIES[run.strategy].writes_timeline,
    "resources": _takes_steps,
    "clocks": lambda run: _takes_steps(run) and not STRATEGIES[run.strategy].asynchronous,
}


def _place(rung: dict) -> Place:
    """Return the place of a rung; one node uses no network."""
    several = Layout.parse(rung["layout"]).nodes > 1
    network = rung["network"] if several else NATIVE
    return Place(rung["strategy"], rung["layout"], rung["variant"], network)


def load(path: str | Path) -> Experiment:
    """Read and check the experiment in a YAML file.

    Raises
    ------
    InputError : as `read`, or the file does not hold a valid experiment.
    """
    return Experiment(read(path), path)


class _Plain(yaml.SafeLoader):
    """YAML that is a tree of moderate size, whose mappings name each key once, by a text or number.

    PyYAML would keep the last of two equal keys, and let an alias stand within what it names, or
    for more than there is memory for.
    """

    def compose_document(self) -> yaml.Node:
        node = super().compose_document()
        self._size(node, {})
        return node

    def _size(self, node: yaml.Node, sizes: dict[yaml.Node, int | None]) -> int:
        """Return how many nodes there are with every alias written out."""
        if node not in sizes:
            sizes[node] = None  # It is being counted.
            parts = node.value if isinstance(node, yaml.CollectionNode) else []
            inner = [part for pair in parts for part in (pair if type(pair) is tuple else [pair])]
            sizes[node] = 1 + sum(self._size(part, sizes) for part in inner)
        if sizes[node] is None:
            raise _mistake("an alias stands within what it names", node)
        if sizes[node] > MOST_NODES:
            raise _mistake(f"its aliases stand for more than {MOST_NODES:,} entries", node)
        return sizes[node]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, AttributeError):
            raise _mistake(f"{node.value} is no such value", node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _mistake("a list or a mapping stands as a key", key)
            if key.value in seen:
                raise _mistake(f"the key {key.value} stands twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _mistake(reason: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, reason, node.start_mark)


def read(path: str | Path) -> dict:
    """Return the content of a YAML file.

    Raises
    ------
    InputError : the file is missing or is not YAML.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(path, path.name, "no such file", "name an existing experiment")
    try:
        return yaml.load(path.read_text(), _Plain)
    except RecursionError:
        raise InputError(path, path.name, "is nested too deeply", "remove brackets") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(path, str(error), "is not YAML", "mend the line it names") from None


def named(name: str, root: Path = ROOT) -> Experiment:
    """Return the experiment that `results/<name>/` belongs to.

    That is `experiments/<name>.yaml`, or `config.yaml` if it is the one of that name.

    Raises
    ------
    InputError : there is no such experiment, or its file names another.
    """
    path = root / "experiments" / f"{name}.yaml"
    if path.is_file():
        experiment = load(path)
        if experiment.name != name:
            raise experiment.error(
                "experiment",
                experiment.name,
                f"differs from the file's name {path.name}",
                f"write experiment: {name}",
            )
        return experiment
    default = load(root / "config.yaml")
    if default.name == name:
        return default
    known = sorted({default.name, *(p.stem for p in (root / "experiments").glob("*.yaml"))})
    raise InputError(
        f"results/{name}",
        name,
        "no such experiment",
        f"use one of {', '.join(known)}, or write experiments/{name}.yaml",
    )


def _filling_defaults(base: type[Validator]) -> type[Validator]:
    """Extend a validator so that it writes the schema's defaults into what it validates.

    This is the recipe of jsonschema's own documentation (FAQ, "Why doesn't my schema's default
    property set the default on my instance?"), kept out of alternatives the content is not of.
    """
    check_properties = base.VALIDATORS["properties"]

    def properties(validator, subschemas, instance, schema):
        if isinstance(instance, dict) and all(
            instance.get(key) == subschema["const"]
            for key, subschema in subschemas.items()
            if "const" in subschema
        ):
            for key, subschema in subschemas.items():
                if "default" in subschema:
                    default = subschema["default"]
                    instance.setdefault(key, dict(default) if default == {} else default)
        yield from check_properties(validator, subschemas, instance, schema)

    return validators.extend(base, {"properties": properties})


def _is_whole(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(_: object, value: object) -> bool:
    return _is_whole(_, value) or (isinstance(value, float) and math.isfinite(value))


# JSON Schema calls 3.0 an integer and knows no NaN; neither is of use as a count or a rate.
_Strict = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_whole, "number": _is_finite}
    ),
)


@cache
def _schema() -> dict:
    """Return the schema with its patterns in Python's grammar.

    In JSON Schema `$` is the end of the text; in Python a newline may follow it.
    """
    return yaml.safe_load(SCHEMA.read_text().replace('$"', '\\\\Z"'))


def _validated(settings: Any, origin: str) -> dict:
    _check_keys(settings, origin)
    schema = _schema()
    errors = list(_relevant(_Strict(schema).iter_errors(settings)))
    if errors:
        raise _explained(min(errors, key=_urgency), schema, origin)
    filled = yaml.safe_load(yaml.safe_dump(dict(settings)))
    for _ in _filling_defaults(_Strict)(schema).iter_errors(filled):
        # Filling happens while errors are looked for; the content is known to have none.
        continue
    # Settings are sorted, so that their order in the file changes no run; what they are of is not.
    in_order = {
        part: {name: filled[part][name] for name in settings.get(part, filled[part])}
        for part in ("datasets", "workloads", "variants", "networks", "ladders")
    }
    return filled | in_order


def _check_keys(content: Any, origin: str, path: str = "") -> None:
    """Refuse keys that YAML reads as numbers, dates or truth values: a schema sees names only."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str):
                raise InputError(
                    f"{origin}: {path or '(top level)'}", key, "a key that is not text", "quote it"
                )
            _check_keys(value, origin, f"{path}.{key}" if path else key)
    elif isinstance(content, list):
        for position, value in enumerate(content):
            _check_keys(value, origin, f"{path}.{position}")


def _relevant(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """Yield errors; of alternatives, those of the one alone that `type` names."""
    for error in errors:
        if error.validator != "oneOf":
            yield error
        elif isinstance(error.instance, Mapping) and "type" in error.instance:
            others = {e.schema_path[0] for e in error.context if e.validator == "const"}
            yield from (e for e in error.context if e.schema_path[0] not in others)


def _urgency(error: ValidationError) -> int:
    """Rank a misspelt key before the absence of the right one, which it causes."""
    return {"additionalProperties": 0, "required": 2}.get(error.validator, 1)


_NAME_RULE = "use letters, digits, _ and -, at most 64, starting with a letter or digit"
_TYPES = {
    "object": "a mapping of keys to values",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
# Keyword of the schema -> reason and remedy; `{}` is what the schema asks for.
_SAYINGS = {
    "type": ("is not {}", "give {}"),
    "enum": ("is not among the values allowed", "use one of {}"),
    "minimum": ("is too small", "give at least {}"),
    "exclusiveMinimum": ("is too small", "give more than {}"),
    "maximum": ("is too large", "give at most {}"),
    "exclusiveMaximum": ("is too large", "give less than {}"),
    "minLength": ("is too short", "give at least {} characters"),
    "maxLength": ("is too long", "give at most {} characters"),
    "minItems": ("has too few entries", "give at least {}"),
    "minProperties": ("has too few entries", "give at least {}"),
    "uniqueItems": ("holds an entry twice", "give each once"),
    "pattern": ("does not match {}", "write what is asked for"),
}


def _explained(error: ValidationError, schema: dict, origin: str) -> InputError:
    """Return a schema violation as an error with key, value, reason and remedy."""
    path = list(map(str, error.absolute_path))
    content, asked = error.instance, error.validator_value

    def refused(where: list[str], value: object, reason: str, remedy: str) -> InputError:
        return InputError(f"{origin}: {'.'.join(where) or '(top level)'}", value, reason, remedy)

    if error.validator == "additionalProperties":
        allowed = sorted(error.schema.get("properties", {}))
        patterns = error.schema.get("patternProperties", {})
        unknown = min(k for k in content if k not in allowed and not _matches(patterns, k))
        if not allowed:
            [pattern] = patterns
            general = pattern == schema["$defs"]["name"]["pattern"]
            matching = "use what matches " + pattern.replace("\\Z", "$")
            rule = _NAME_RULE if general else matching
            return refused(path, unknown, "not allowed as a name", rule)
        remedy = _with_suggestion(unknown, allowed, f"use one of {', '.join(allowed)}")
        return refused([*path, unknown], content[unknown], "unknown key", remedy)
    if error.validator == "required":
        missing = next(name for name in asked if name not in content)
        meaning = _first_sentence(error.schema["properties"][missing].get("description", ""))
        remedy = f"add {missing}{meaning}"
        return refused([*path, missing], None, "the key is missing", remedy)
    meaning = _first_sentence(_description(schema, error.absolute_schema_path))
    if asked == schema["$defs"]["name"]["pattern"]:
        return refused(path, content, "not allowed as a name", _NAME_RULE + meaning)
    asked = ", ".join(asked) if isinstance(asked, list) else _TYPES.get(asked, asked)
    reason, remedy = (saying.format(asked) for saying in _SAYINGS[error.validator])
    return refused(path, content, reason.replace("\\Z", "$"), remedy + meaning)


def _description(schema: dict, path: Iterable[str | int]) -> str:
    """Return the innermost description on a path; one beside a `$ref` goes before the target's."""
    node, found = schema, ""
    for part in path:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        node = node[part]
        if isinstance(node, dict):
            found = node.get("description", found)
    return found


def _first_sentence(description: str) -> str:
    first = description.split(". ")[0].strip().rstrip(".")
    if not first:
        return ""
    # NCBI and FASTA stay as they are.
    return f" ({first if first[:2].isupper() else first[0].lower() + first[1:]})"


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _with_suggestion(word: str, known: list[str], otherwise: str) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}? Otherwise {otherwise}" if close else otherwise


def _check_classes(experiment: Experiment) -> None:
    for name, dataset in experiment.datasets.items():
        key, classes = f"datasets.{name}", dataset["classes"]
        if len(classes) < 2:
            raise experiment.error(
                f"{key}.classes",
                classes,
                "one class only: there is nothing to tell apart",
                "name at least two classes",
            )
        source = dataset["source"]
        by_class = {
            f"{key}.source.{part}": source[part]
            for part in ("records", "queries", "accessions", "max_records")
            if part in source
        }
        if "rows" in dataset["oversample"]:
            by_class[f"{key}.oversample.rows"] = dataset["oversample"]["rows"]
        for where, mapping in by_class.items():
            stray = sorted(set(mapping) - set(classes))
            if stray:
                raise experiment.error(
                    where, stray, "not among the classes", f"use {', '.join(classes)}"
                )
        known = source.get("records", classes)
        if source["type"] == "ncbi" and "lock" not in source:
            known = QUERIES | source.get("queries", {}) | source.get("accessions", {})
        missing = [c for c in classes if c not in known]
        if missing:
            part = "records" if "records" in source else "queries"
            raise experiment.error(
                f"{key}.source.{part}", missing, "classes without an entry", "add them"
            )


def _check_splits(experiment: Experiment) -> None:
    for name, dataset in experiment.datasets.items():
        key, split = f"datasets.{name}", dataset["split"]
        by, order = split["by"], dataset["oversample"]["order"]
        for part in ("groups", "leave_out"):
            if part in split and by != "group-file":
                raise experiment.error(
                    f"{key}.split.{part}",
                    split[part],
                    f"a split by {by} has no group file",
                    "set split.by: group-file, or remove it",
                )
        if (
            by == "group-file"
            and "groups" not in split
            and dataset["source"]["type"] != "simulated"
        ):
            raise experiment.error(
                f"{key}.split.groups",
                None,
                "the key is missing",
                "name a TSV with the columns accession, class and group",
            )
        if "within" in dataset["oversample"] and dataset["oversample"]["method"] != "windows":
            raise experiment.error(
                f"{key}.oversample.within",
                dataset["oversample"]["within"],
                f"{dataset['oversample']['method']} draws no windows",
                "set oversample.method: windows, or remove it",
            )
        if by != "random" and order == "before-split":
            raise experiment.error(
                f"{key}.oversample.order",
                order,
                f"balancing first breaks up what a split by {by} keeps whole",
                "use after-split, or split.by: random",
            )
        if dataset["deduplicate"] == "encoded" and dataset["window"]["method"] != "start":
            raise experiment.error(
                f"{key}.deduplicate",
                "encoded",
                "compares the starts of genomes, and rows begin elsewhere",
                "use genome or none, or window.method: start",
            )


def _check_configurations(experiment: Experiment) -> None:
    for position, entry in enumerate(experiment.settings["configurations"]):
        if entry["strategy"] not in STRATEGIES:
            raise experiment.error(
                f"configurations.{position}.strategy",
                entry["strategy"],
                "no such strategy",
                f"use one of {', '.join(STRATEGIES)}",
            )
        for part in ("variants", "networks"):
            known = experiment.settings[part]
            for name in entry.get(part, []):
                if name not in known:
                    raise experiment.error(
                        f"configurations.{position}.{part}",
                        name,
                        f"no such {part.removesuffix('s')}",
                        f"use one of {', '.join(known)}",
                    )
    files = experiment.run_files()
    repeated = {file for file in files if files.count(file) > 1}
    if repeated:
        raise experiment.error(
            "configurations",
            min(repeated),
            "asked for twice",
            "name each strategy, layout and variant once",
        )


def _check_references(experiment: Experiment) -> None:
    """Refuse a reference that is named and never measured: nothing would be compared with it."""
    places = {run.place for run in experiment.runs if _takes_steps(run)}
    for position, reference in enumerate(experiment.settings.get("references", [])):
        if places and not any(reference.items() <= place._asdict().items() for place in places):
            known = sorted(map(str, places))
            raise experiment.error(
                f"references.{position}",
                " ".join(reference[part] for part in Place._fields if part in reference),
                "is not among the configurations",
                f"add it there, or name one of {', '.join(known)}",
            )


def _check_ladders(experiment: Experiment) -> None:
    settings = experiment.settings
    for name, rungs in settings["ladders"].items():
        for position, rung in enumerate(rungs):
            several = Layout.parse(rung["layout"]).nodes > 1
            networks = settings["networks"] if several else {NATIVE, *settings["networks"]}
            known = {"strategy": STRATEGIES, "variant": settings["variants"]}
            for part, names in (known | {"network": networks}).items():
                if rung[part] not in names:
                    raise experiment.error(
                        f"ladders.{name}.{position}.{part}",
                        rung[part],
                        f"no such {part}",
                        f"use one of {', '.join(names)}",
                    )
            key = f"ladders.{name}.{position}"
            _check_layout(experiment, f"{key}.layout", rung["strategy"], rung["layout"])
            if several and settings["networks"][rung["network"]]["steps"]:
                raise experiment.error(
                    f"{key}.network",
                    rung["network"],
                    "has steps: an epoch is cut short there, and a ladder compares whole ones",
                    f"name another network, or leave networks.{rung['network']}.steps out",
                )
            if _place(rung) in map(_place, rungs[:position]):
                raise experiment.error(
                    key,
                    " ".join(_place(rung)),
                    "stands on this ladder already, and nothing lies between it and itself",
                    "name each strategy, layout, variant and network once",
                )
    if settings["ladders"] and not experiment.paired:
        raise experiment.error(
            "ladders",
            list(settings["ladders"]),
            "no workload is trained by gradient steps, and a fit has no epochs to compare",
            "add the workload virus-cnn, or leave ladders out",
        )


def _check_layouts(experiment: Experiment) -> None:
    for entry in experiment.settings["configurations"]:
        for layout in entry["layouts"]:
            key = f"configurations: {entry['strategy']}"
            _check_layout(experiment, key, entry["strategy"], layout)


def _check_layout(experiment: Experiment, key: str, name: str, layout: str) -> None:
    strategy, parsed = STRATEGIES[name], Layout.parse(layout)
    if strategy.only_one_rank and parsed.ranks > 1:
        raise experiment.error(key, layout, "this strategy has one process", "use layout 1x1")
    if strategy.only_one_node and parsed.nodes > 1:
        raise experiment.error(key, layout, "this strategy stays on one node", "use a layout 1xN")


def _check_launcher(experiment: Experiment) -> None:
    """Refuse to start by hand processes that find each other through MPI, or on other machines."""
    if experiment.settings["launcher"] != LOCAL:
        return
    for run in experiment.timed:
        layout, strategy = Layout.parse(run.layout), STRATEGIES[run.strategy]
        if layout.nodes > 1 or (strategy.mpi and layout.ranks > 1):
            raise experiment.error(
                "launcher",
                LOCAL,
                f"cannot start {run.strategy} {run.layout}",
                "use auto, or leave that configuration out",
            )


def _check_slowdown(experiment: Experiment) -> None:
    for run in experiment.timed:
        strategy = STRATEGIES[run.strategy]
        apart = strategy.asynchronous or strategy.one_process_per_node
        if apart and experiment.settings["variants"][run.variant]["slowdown"]:
            raise experiment.error(
                _asked_by(run),
                run.variant,
                "slowdown is for strategies whose ranks are processes that step together",
                "use busy_neighbours, or another strategy",
            )


def _check_slow_ranks(experiment: Experiment) -> None:
    """Refuse to slow ranks that no layout has: nothing would be slow, and nothing would say so."""
    most: dict[str, int] = {}
    for run in experiment.timed:
        most[run.variant] = max(most.get(run.variant, 0), Layout.parse(run.layout).ranks)
    for name, ranks in most.items():
        variant = experiment.settings["variants"][name]
        named = {
            "slowdown": len(variant["slowdown"]),
            "busy_neighbours": max(variant["busy_neighbours"], default=-1) + 1,
        }
        for knob, needed in named.items():
            if needed > ranks:
                raise experiment.error(
                    f"variants.{name}.{knob}",
                    variant[knob],
                    f"names rank {needed - 1}, and no layout under this variant has it",
                    f"name ranks 0 to {ranks - 1}, or add a layout",
                )


def _check_fitted(experiment: Experiment) -> None:
    """Refuse a workload that would have no run at all."""
    strategy, layout = ONE_PROCESS
    for name in experiment.settings["workloads"]:
        if not experiment._places(name):
            raise experiment.error(
                f"workloads.{name}",
                name,
                f"is fitted in one process, and the experiment lists no {strategy} {layout}",
                f"add {{strategy: {strategy}, layouts: [{layout}]}} to configurations",
            )


def _check_targets(experiment: Experiment) -> None:
    for name, workload in experiment.settings["workloads"].items():
        if WORKLOADS[name].kind == "fit":
            continue
        if "target_accuracy" in workload and not workload["validate"]:
            raise experiment.error(
                f"workloads.{name}.target_accuracy",
                workload["target_accuracy"],
                "time to accuracy needs the accuracy after each epoch",
                "set validate: true, or leave target_accuracy out",
            )
        for run in experiment.timed:
            if run.workload != name:
                continue
            ranks = Layout.parse(run.layout).ranks
            batch = experiment._settings_of(run)["training"]["batch"]
            if batch["per"] == "global" and batch["rows"] < ranks:
                of_variant = "batch" in experiment.settings["variants"][run.variant]
                owner = f"variants.{run.variant}" if of_variant else f"workloads.{name}"
                raise experiment.error(
                    f"{owner}.batch.rows",
                    batch["rows"],
                    f"leaves some of the {ranks} ranks of {run.layout} without rows",
                    "use a larger batch",
                )
