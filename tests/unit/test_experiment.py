"""Experiments: what is accepted, what is refused and how, and what a run's result depends on."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.data.genomes import settings as genomes
from escala.experiment import Experiment, Run, check_name, load, named
from escala.experiment.files import ROOT, files_by_name
from escala.experiment.references import ONE_PROCESS
from escala.experiment.schema import SCHEMA as SCHEMA_FILE
from escala.experiment.schema import completed, composed, with_python_patterns
from escala.experiment.unused import unread_knobs
from escala.probes import PROBES
from escala.record.matches import Identity, Matches
from escala.strategies.knobs import read_by_run

FILES = [ROOT / "config.yaml", *files_by_name().values()]
SCHEMA = composed(yaml.safe_load(SCHEMA_FILE.read_text()))
SAFE = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"

SMALL = {
    "experiment": "small",
    "title": "A small experiment",
    "repeats": 2,
    "datasets": {
        "d": {
            "source": {"type": "simulated", "seed": 1, "records": {"A": 9, "B": 9}},
            "classes": ["A", "B"],
            "length": 100,
            "split": {"seeds": [4]},
        }
    },
    "workloads": {"virus-cnn": {"epochs": 1}},
    "variants": {"tuned": {}},
    "configurations": [
        {"strategy": "single", "layouts": ["1x1"]},
        {"strategy": "horovod-mpi", "layouts": ["1x2"]},
    ],
}
NCBI = {"type": "ncbi", "email": "a@b.org", "queries": {"A": "txid1", "B": "txid2"}}
UNSAFE = ["../x", "a b", "$(x)", "a\n", "\na", "", "-a", "a/b", "a.b", "é", "a" * 65, "<b>", "{a}"]


def small(*changes: Callable[[dict], object]) -> dict:
    settings = copy.deepcopy(SMALL)
    for change in changes:
        change(settings)
    return settings


def put(path: str, value: object) -> Callable[[dict], None]:
    """Return a change that puts a value at a path such as `datasets.d.length`."""

    def change(settings: dict) -> None:
        *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
        for key in parents:
            settings = settings[key]
        settings[last] = value

    return change


def drop(path: str) -> Callable[[dict], None]:
    def change(settings: dict) -> None:
        *parents, last = path.split(".")
        for key in parents:
            settings = settings[key]
        del settings[last]

    return change


def refusal(settings: object) -> InputError:
    with pytest.raises(InputError) as caught:
        Experiment(settings, "e.yaml")
    error = caught.value
    assert error.where.startswith("e.yaml: ")
    assert error.reason
    assert error.remedy
    return error


@pytest.fixture(autouse=True)
def interpreters(registries, monkeypatch):
    """Name the interpreters that experiments ask for, and forget their programs at the end."""
    for name in ("ESCALA_TORCH", "ESCALA_MPI"):
        monkeypatch.setenv(name, sys.executable)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_experiment_of_the_project_is_valid(file):
    experiment = load(file)
    assert experiment.name == {"config": "demo"}.get(file.stem, file.stem)
    assert experiment.runs
    assert any(run.layout == ONE_PROCESS[1] for run in experiment.runs)


def described(schema: dict, path: str = "") -> Iterator[tuple[str, dict]]:
    """Yield every key that a schema's `properties` name, at any depth."""
    for key, value in schema.items():
        if key == "properties":
            yield from ((f"{path}.{name}", subschema) for name, subschema in value.items())
        for inner in value if isinstance(value, list) else [value]:
            # What a condition looks for is no key of its own.
            if isinstance(inner, dict) and key != "if":
                yield from described(inner, f"{path}.{key}")


def test_the_schema_describes_every_key():
    keys = list(described(SCHEMA))
    assert len(keys) > 50
    assert [path for path, subschema in keys if not subschema.get("description")] == []


def test_the_schema_closes_every_mapping():
    def objects(schema: object) -> Iterator[dict]:
        if isinstance(schema, dict):
            if schema.get("type") == "object" and not {"oneOf", "allOf"} & set(schema):
                yield schema
            schema = list(schema.values())
        if isinstance(schema, list):
            for inner in schema:
                yield from objects(inner)

    assert len(list(objects(SCHEMA))) > 15
    assert all(schema.get("additionalProperties") is False for schema in objects(SCHEMA))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        (b"a: [", "line 1, column 5.*not YAML"),
        (b"a: 1\nb: 'x\n", "line 3, column 1.*not YAML: found unexpected end"),
        (b"a: 1\nb: x\x00\n", "line 2, column 5.*not YAML.*not allowed"),
        (b"\xff\xfe", "is not text.*UTF-8"),
        (b"a: 1\na: 2", "line 2.*stands twice"),
        (b"a: 1\nb: &x [*x]", "line 2.*an alias stands within what it names"),
        (b"a: 1\nb: &x {c: *x}", "line 2.*an alias stands within what it names"),
        (b"a: 1\n? [b, c]\n: 2", "line 2.*a list or a mapping stands as a key"),
        (b"a: 1\n? {b: c}\n: 2", "line 2.*a list or a mapping stands as a key"),
        (b"a: 1\nb: 2020-13-45", "line 2.*2020-13-45 is no such value"),
        (b"a: !!timestamp x", "line 1.*x is no such value"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
        (
            b"a0: &a0 []\n"
            + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b"*a%d," % (n - 1) * 10) for n in range(1, 9)),
            "line 6.*its aliases stand for more than 100,000 entries",
        ),
    ],
    ids=itertools.count(1),
)
def test_a_file_that_cannot_be_read(tmp_path, content, reason):
    path = tmp_path / "e.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        load(path)
    assert caught.value.where == path


@pytest.mark.parametrize("content", [None, [], "text", 3])
def test_a_file_without_keys(content):
    error = refusal(content)
    assert error.where == "e.yaml: (top level)"
    assert error.remedy == "give a mapping of keys to values"


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("repeets", "repeats"),
        ("datasets.d.lenght", "length"),
        ("datasets.d.source.sede", "seed"),
        ("datasets.d.split.seed", "seeds"),
        ("workloads.virus-cnn.epoch", "epochs"),
        ("variants.tuned.core_per_process", "cores_per_process"),
        ("configurations.1.layout", "layouts"),
    ],
)
def test_an_unknown_key_is_named_with_the_one_meant(path, suggestion):
    error = refusal(small(put(path, 3)))
    assert (error.where, error.value) == (f"e.yaml: {path}", 3)
    assert error.reason == "unknown key"
    assert f"did you mean {suggestion}?" in error.remedy


def test_a_misspelt_key_is_reported_rather_than_the_lack_of_the_right_one():
    error = refusal(small(drop("datasets.d.length"), put("datasets.d.lenght", 100)))
    assert error.where == "e.yaml: datasets.d.lenght"


@pytest.mark.parametrize(
    "path",
    ["experiment", "title", "repeats", "datasets.d.length", "datasets.d.split.seeds",
     "datasets.d.source.type", "datasets.d.source.records", "workloads.virus-cnn.epochs"],
)  # fmt: skip
def test_a_missing_key_is_named_with_its_meaning(path):
    error = refusal(small(drop(path)))
    assert (error.where, error.value) == (f"e.yaml: {path}", None)
    assert error.reason == "the key is missing"
    assert re.fullmatch(rf"add {path.rpartition('.')[2]} \(.{{10,}}\)", error.remedy)


@pytest.mark.parametrize(
    ("path", "value", "reason", "remedy"),
    [
        ("datasets.d.source.type", "simulate", "not among", "files, simulated, ncbi"),
        (
            "datasets.d.source.difficulty",
            2,
            "too large",
            "at most 1 (from 0, very different classes",
        ),
        ("datasets.d.source.records.A", 0, "too small", "at least 1"),
        ("datasets.d.source", "files", "not a mapping", "the source of the genomes"),
        ("datasets.d.length", "long", "not a whole number", "letters of a row"),
        ("datasets.d.length", True, "not a whole number", "letters of a row"),
        ("datasets.d.split.test_fraction", 1, "too large", "less than 1"),
        ("datasets.d.split.test_fraction", 0, "too small", "more than 0"),
        ("datasets.d.split.seeds", [], "too few", "at least 1"),
        ("datasets.d.classes", ["A", "A"], "twice", "each once"),
        ("oversubscribe", "yes", "not true or false", "true or false"),
        ("time_limit_minutes", float("nan"), "not a number", "a number"),
        ("configurations.1.layouts", "1x2", "not a list", "NODESxPROCS"),
        ("title", "x" * 121, "too long", "at most 120 characters"),
        ("title", 3, "not text", "give text"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_what_is(path, value, reason, remedy):
    error = refusal(small(put(path, value)))
    assert error.where == f"e.yaml: {path}"
    assert error.value == value or value != value
    assert reason in error.reason
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"split": {"groups": "g.tsv"}}, "split.groups", "by random has no group file"),
        ({"split": {"leave_out": ["g"]}}, "split.leave_out", "by random has no group file"),
        ({"split": {"by": "cluster", "groups": "g.tsv"}}, "split.groups", "has no group file"),
        (
            {"split": {"by": "group-file"}, "source": {"type": "files", "folder": "f"}},
            "split.groups",
            "the key is missing",
        ),
        ({"oversample": {"within": 9}}, "oversample.within", "smoten draws no windows"),
        ({"oversample": {"method": "none", "within": 9}}, "oversample.within", "none draws no"),
        (
            {"split": {"by": "cluster"}, "oversample": {"order": "before-split"}},
            "oversample.order",
            "separates genomes",
        ),
        (
            {"deduplicate": "encoded", "window": {"method": "tiles"}},
            "deduplicate",
            "starts of genomes",
        ),
    ],
)
def test_settings_of_a_dataset_that_do_not_fit_together_are_refused(settings, key, reason):
    split = {"split": {"seeds": [4], **settings.get("split", {})}}
    error = refusal(small(lambda content: content["datasets"]["d"].update(settings | split)))
    assert error.where == f"e.yaml: datasets.d.{key}"
    assert reason in error.reason


@pytest.mark.parametrize("more", [{}, {"missing": "drop"}])
def test_a_source_of_another_kind_is_refused_with_that_kind(more):
    table = {"source": {"type": "csv", "path": "t.csv"}, "split": {"seeds": [4]}} | more
    error = refusal(small(put("datasets.d", table)))
    assert (error.where, error.value) == ("e.yaml: datasets.d.source.type", "csv")
    assert error.remedy == "set `kind: tabular`; without it, the kind is genomes"
    error = refusal(small(put("datasets.d.kind", "tabular")))
    # Other kinds have a source of this type too.
    kinds = error.remedy.partition("`; ")[0].removeprefix("set `kind: ").split(" or ")
    assert "genomes" in kinds and "tabular" not in kinds


def test_simulated_genomes_know_their_groups():
    split = {"by": "group-file", "leave_out": ["A.1"], "seeds": [4]}
    assert Experiment(small(put("datasets.d.split", split)), "e.yaml").runs


#: Schemas, and values that they refuse.
REFUSED = [
    ({"$ref": "#/$defs/name"}, "a b"),
    ({"allOf": [{"type": "string"}, {"minLength": 3}]}, "ab"),
    ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, 2),
    ({"const": [1, None]}, 2),
    ({"contains": {"type": "string"}}, [1]),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    ({"enum": [1, None, [2], "x"]}, 2),
    ({"if": {"minimum": 2}, "then": {"multipleOf": 2}}, 3),
    ({"maxItems": 2}, [32, 32, 3]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, 3),
    ({"pattern": "^[a-c]{2}$", "examples": []}, "d"),
    ({"patternProperties": {"^a$": {}, "^b$": {}}, "additionalProperties": False}, {"c": 1}),
    ({"properties": {"a": False, "b": True}}, {"a": 1}),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}),
    ({"type": ["array", "null"]}, 3),
    ({"unevaluatedProperties": False}, {"a": 1}),
]


def completed_key(schema: object, value: object) -> dict:
    """Return `{key: value}` with the defaults of a schema of `key`, or raise its refusal."""
    described = (
        schema | {"description": "A key. With more."} if isinstance(schema, dict) else schema
    )
    whole = {"properties": {"key": described}, "$defs": {"name": SCHEMA["$defs"]["name"]}}
    Draft202012Validator.check_schema(whole)
    return completed({"key": value}, with_python_patterns(whole), "e.yaml")


@pytest.mark.parametrize(("schema", "value"), REFUSED)
def test_a_value_that_any_keyword_refuses_is_an_input_error(schema, value):
    with pytest.raises(InputError) as caught:
        completed_key(schema, value)
    error = caught.value
    assert error.where.startswith("e.yaml: key")
    assert error.reason and error.remedy
    for text in (error.reason, error.remedy):
        assert "\\Z" not in text and "{}" not in text and "keyword}" not in text


def test_a_schema_may_have_true_and_false_in_place_of_schemas():
    inner = {"properties": {"a": True, "b": {"default": [1]}}}
    assert completed_key(inner, {"a": 2}) == {"key": {"a": 2, "b": [1]}}


def test_an_escaped_dollar_at_the_end_of_a_pattern_is_a_letter():
    assert completed_key({"pattern": r"^a\$"}, "a$") == {"key": "a$"}
    with pytest.raises(InputError):
        completed_key({"pattern": r"^a\\$"}, "a\\\n")


@pytest.mark.parametrize(
    ("strategy", "accumulation", "reason"),
    [
        ("parameter-server", 1, "needs ranks that make each step together"),
        ("mirrored", 2, "needs accumulation: 1, and this variant sets 2"),
        ("mirrored", 1, None),
    ],
)
def test_ranks_that_cannot_normalise_together_are_refused(strategy, accumulation, reason):
    settings = small(
        put("datasets.d", {"kind": "images", "split": {"seeds": [4]}}),
        put("datasets.d.source", {"type": "outlines", "per_class": 20}),
        put("workloads", {"resnet34": {"epochs": 1}}),
        put("configurations.1", {"strategy": strategy, "layouts": ["1x2"], "variants": ["both"]}),
    )
    both = {"batch_norm": "synchronised", "accumulation": accumulation}
    settings["variants"]["both"] = both
    put("configurations.0.variants", ["tuned"])(settings)
    if reason is None:
        assert Experiment(settings, "e.yaml").settings["variants"]["both"]["batch_norm"]
        return
    error = refusal(settings)
    assert (error.where, error.value) == ("e.yaml: variants.both.batch_norm", "synchronised")
    assert reason in error.reason and "use local, or leave" in error.remedy


@pytest.mark.parametrize("layout", ["", "2", "0x1", "1x0", "1x2\n", "1X2", "x", "99999x1", "1x2x3"])
def test_what_is_no_layout_is_refused_with_the_form(layout):
    error = refusal(small(put("configurations.1.layouts", ["1x2", layout])))
    assert (error.where, error.value) == ("e.yaml: configurations.1.layouts.1", layout)
    assert error.reason == "is not written like 1x2"
    assert "two numbers from 1, written `NODESxPROCS`" in error.remedy


@pytest.mark.parametrize("name", [2024, True, None, 1.5])
@pytest.mark.parametrize("path", ["datasets", "variants", "workloads.virus-cnn"])
def test_a_key_that_yaml_does_not_read_as_text_is_refused(path, name):
    def change(settings: dict) -> None:
        for key in path.split("."):
            settings = settings[key]
        settings[name] = {}

    error = refusal(small(change))
    assert (error.where, error.value) == (f"e.yaml: {path}", name)
    assert "quote it" in error.remedy


def naming(name: str) -> dict[str, dict]:
    """Return settings that use a name in each place where a name may stand."""

    def as_class(settings: dict) -> None:
        dataset = settings["datasets"]["d"]
        dataset["classes"] = ["B", name]
        dataset["source"]["records"] = {"B": 9, name: 9}

    def as_dataset(settings: dict) -> None:
        settings["datasets"] = {name: settings["datasets"]["d"]}

    def as_variant(settings: dict) -> None:
        settings["variants"] = {name: {}}

    changes = {
        "experiment": put("experiment", name),
        "dataset": as_dataset,
        "class": as_class,
        "variant": as_variant,
    }
    return {place: small(change) for place, change in changes.items()}


@hypothesis.settings(deadline=None, max_examples=40)
@given(st.text(max_size=70) | st.from_regex(SAFE) | st.from_regex(SAFE, fullmatch=True))
def test_names_accepted_are_safe_and_safe_names_accepted(name):
    for settings in naming(name).values():
        try:
            experiment = Experiment(settings, "e.yaml")
        except InputError:
            # Class B stands alongside it.
            assert name == "B" or not re.fullmatch(SAFE, name)
        else:
            assert re.fullmatch(SAFE, name)
            for file in experiment.run_files() + experiment.class_files():
                assert re.fullmatch(r"results(/[A-Za-z0-9_-]+)+(\.json|s\.csv|/classes\.csv)", file)


@pytest.mark.parametrize("title", ["<script>x</script>", "a\nb", "a\n", "a\tb", "\x00", "1<2"])
def test_titles_that_are_not_one_plain_line_are_refused(title):
    error = refusal(small(put("title", title)))
    assert (error.where, error.value) == ("e.yaml: title", title)


@pytest.mark.parametrize("email", ["a@b.org", "$ESCALA_EMAIL", "${ESCALA_EMAIL}"])
def test_an_address_may_come_from_the_environment(email):
    Experiment(small(put("datasets.d.source", NCBI | {"email": email})), "e.yaml")


@pytest.mark.parametrize("email", ["", "nobody", "a@b.org\n", "$(id)", "$", "$1x"])
def test_what_is_no_address_is_refused(email):
    error = refusal(small(put("datasets.d.source", NCBI | {"email": email})))
    assert error.where == "e.yaml: datasets.d.source.email"
    assert "address for NCBI to report" in error.remedy


@pytest.mark.parametrize(
    ("changes", "where", "value", "reason"),
    [
        ([put("datasets.d.classes", ["A"]), drop("datasets.d.source.records.B")],
         "datasets.d.classes", ["A"], "a single class"),
        ([put("datasets.d.classes", ["A", "C"])],
         "datasets.d.source.records", ["B"], "not among the classes"),
        ([put("datasets.d.classes", ["A", "B", "C"])],
         "datasets.d.source.records", ["C"], "without an entry"),
        ([put("datasets.d.oversample", {"rows": {"C": 20}})],
         "datasets.d.oversample.rows", ["C"], "not among the classes"),
        ([put("datasets.d.source", NCBI | {"queries": {"A": "x"}})],
         "datasets.d.source.queries", ["B"], "without an entry"),
        ([put("datasets.d.source", NCBI | {"max_records": {"C": 3}})],
         "datasets.d.source.max_records", ["C"], "not among the classes"),
        ([put("workloads", {"cnn": {"epochs": 1}})],
         "workloads.cnn", {"epochs": 1}, "unknown key"),
        ([put("configurations.1.strategy", "nccl")],
         "configurations.1.strategy", "nccl", "no such strategy"),
        ([put("configurations.1.strategy", "mpi")],
         "configurations.1.strategy", "mpi", "starts programs only"),
        ([put("configurations.1.variants", ["fast"])],
         "configurations.1.variants", "fast", "no such variant"),
        ([put("configurations.0.layouts", ["1x1", "1x2"])],
         "configurations.0.layouts.1", "1x2", "one process"),
        ([put("workloads.virus-cnn.target_accuracy", 0.9)],
         "workloads.virus-cnn.target_accuracy", 0.9, "after each epoch"),
        ([put("workloads.virus-cnn.early_stopping", {"patience": 1, "monitor": "validation"})],
         "workloads.virus-cnn.early_stopping.monitor", "validation", "is not computed"),
        ([put("workloads.virus-cnn.batch", {"rows": 1, "per": "global"})],
         "workloads.virus-cnn.batch.rows", 1, "without rows"),
        ([put("launcher", "local")],
         "launcher", "local", "cannot start horovod-mpi 1x2"),
        ([put("launcher", "local"), put("configurations.1", {"strategy": "horovod-gloo",
                                                             "layouts": ["2x1"]})],
         "launcher", "local", "cannot start horovod-gloo 2x1"),
        ([put("variants.tuned.slowdown", [1, 2]), put("configurations.1.strategy", "mirrored")],
         "configurations: mirrored", "tuned", "needs a synchronous strategy"),
        ([put("variants.tuned.slowdown", [1, 1, 2])],
         "variants.tuned.slowdown", [1, 1, 2], "applies to rank 2, which no layout"),
        ([put("variants.tuned.shares", [2, 1]), put("configurations.1.strategy", "hybrid"),
          put("configurations.1.layouts", ["1x3"])],
         "variants.tuned.shares", [2, 1], "has 2 shares, and 1x3 has 3 ranks"),
        ([put("variants.tuned.shares", [0, 0]), put("configurations.1.strategy", "hybrid")],
         "variants.tuned.shares", [0, 0], "gives no rank any rows"),
        ([put("variants.tuned.busy_neighbours", [0, 7])],
         "variants.tuned.busy_neighbours", [0, 7], "applies to rank 7, which no layout"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together(changes, where, value, reason):
    error = refusal(small(*changes))
    assert (error.where, error.value) == (f"e.yaml: {where}", value)
    assert reason in error.reason


def test_the_same_run_twice_is_refused():
    twice = {"strategy": "horovod-mpi", "layouts": ["1x4", "1x2"]}
    error = refusal(small(lambda s: s["configurations"].append(twice)))
    assert "horovod-mpi/1x2/tuned" in error.value
    assert error.reason == "this run is listed twice"


@pytest.mark.parametrize(
    ("layout", "cores", "oversubscribe", "available", "reason"),
    [
        ("1x2", 1, False, 2, None),
        ("1x3", 1, False, 2, "needs 3 cores, and 2 are available"),
        ("1x2", 2, False, 3, "needs 4 cores, and 3 are available"),
        ("1x3", 1, True, 2, None),
        ("2x1", 1, False, 8, "more than one node"),
        ("2x1", 1, True, 8, "more than one node"),
    ],
)
def test_a_layout_must_fit_this_machine(layout, cores, oversubscribe, available, reason):
    experiment = Experiment(
        small(
            put("configurations.1.layouts", [layout]),
            put("variants.tuned.cores_per_process", cores),
            put("oversubscribe", oversubscribe),
        ),
        "e.yaml",
    )
    run = experiment.runs[-1]
    assert run.layout == layout
    if reason is None:
        experiment.require_cores(run, available)
        return
    with pytest.raises(InputError, match=reason) as caught:
        experiment.require_cores(run, available)
    assert caught.value.where == "e.yaml: configurations: horovod-mpi"
    assert caught.value.value == layout


def test_what_slurm_starts_is_refused_on_this_machine():
    experiment = Experiment(small(put("launcher", "srun")), "e.yaml")
    with pytest.raises(InputError, match="needs a SLURM allocation") as caught:
        experiment.require_cores(experiment.runs[0], 8)
    assert caught.value.where == "e.yaml: launcher"


def test_defaults_are_filled_in_once():
    settings = small(put("workloads.virus-cnn.early_stopping", {"patience": 1}))
    before = copy.deepcopy(settings)
    filled = Experiment(settings, "e.yaml").settings
    assert settings == before
    assert filled["variants"]["tuned"]["cores_per_process"] == 1
    assert filled["workloads"]["virus-cnn"]["batch"] == {"rows": 32, "per": "rank"}
    assert filled["workloads"]["virus-cnn"]["early_stopping"]["monitor"] == "training"
    assert Experiment(filled, "e.yaml").settings == filled


def test_defaults_are_not_shared_between_experiments():
    Experiment(SMALL, "e.yaml").settings["timeline"]["steps"] = 1
    assert Experiment(SMALL, "e.yaml").settings["timeline"]["steps"] == 30


def matrix() -> dict:
    """Two of everything, and one configuration with a variant of its own."""
    settings = small(
        put("repeats", 3),
        put("variants", {"tuned": {}, "untuned": {"sparse_as_dense": False}}),
        put("datasets.e", copy.deepcopy(SMALL["datasets"]["d"])),
        put("datasets.e.split.seeds", [1, 2]),
    )
    settings["configurations"].append(
        {"strategy": "horovod-gloo", "layouts": ["1x2", "1x4"], "variants": ["tuned"]}
    )
    return settings


def test_the_files_of_an_experiment_are_all_different_and_complete():
    experiment = Experiment(matrix(), "e.yaml")
    files = experiment.run_files()
    # 2 datasets × (2 configurations × 2 variants + 2 layouts × 1 variant) × 3 repeats
    assert len(files) == len(set(files)) == 2 * (2 * 2 + 2) * 3
    assert "results/small/runs/e/virus-cnn/horovod-gloo/1x4/tuned/native/rep3/run.json" in files
    assert not any("horovod-gloo" in file and "untuned" in file for file in files)
    timelines = experiment.probed_files()
    assert len(timelines) == len(set(timelines)) == 2 * (2 + 2)
    assert all(file.endswith("/timeline/run.json") for file in timelines)
    assert not any("/single/" in file for file in timelines)
    assert not set(files) & set(timelines)


def test_steps_are_split_where_ranks_step_together_if_that_is_asked_for():
    settings = with_fits(matrix())
    settings["configurations"].append({"strategy": "parameter-server", "layouts": ["1x2"]})
    assert Experiment(settings, "e.yaml").probed("clocks") == []
    experiment = Experiment(settings | {"clocks": {"enabled": True, "steps": 7}}, "e.yaml")
    found = experiment.probed("clocks")
    assert {run.strategy for run in found} == {"single", "horovod-mpi", "horovod-gloo"}
    assert {run.workload for run in found} == {"virus-cnn"}
    files = {run.file for run in found}
    assert all(file.endswith("/clocks/run.json") for file in files)
    assert files <= set(experiment.tabulated_files()) <= set(experiment.probed_files())
    assert {run.file for run in experiment.probed("timeline")} <= set(experiment.probed_files())
    assert not any("/timeline/" in file for file in experiment.tabulated_files())
    assert {experiment.request(run)["max_steps"] for run in found} == {7}


def floored(*changes: Callable[[dict], object]) -> dict:
    """Return an experiment of two datasets that measures its noise floor."""
    settings = matrix()
    for change in (put("noise_floor", True), *changes):
        change(settings)
    return settings


def test_the_order_of_a_repeat_favours_no_run():
    """Each run, duplicates included, has each place once, and follows each other one once."""
    experiment = Experiment(floored(put("repeats", 8)), "e.yaml")
    assert {(run.series, run.strategy) for run in experiment.duplicates} == {
        ("duplicate", "single")
    }
    repeats = [
        [(run.strategy, run.layout, run.variant, run.series) for run in turn]
        for (_, dataset), turn in itertools.groupby(
            experiment.timed, lambda run: (run.repeat, run.dataset)
        )
        if dataset == "d"
    ]
    assert len(repeats) == len(repeats[0]) == 8
    for order in (repeats, list(zip(*repeats, strict=True))):
        assert all(set(place) == set(repeats[0]) for place in order)
    followed = [match for order in repeats for match in itertools.pairwise(order)]
    assert len(set(followed)) == len(followed) == 8 * 7
    turns = [experiment.turn(run) for run in experiment.timed[:9]]
    assert turns == [{"place": n, "of": 8} for n in (*range(1, 9), 1)]
    assert len(experiment.timed) == len(experiment.runs) + len(experiment.duplicates)
    assert experiment.position(experiment.timed[3]) == 3


def test_an_order_depends_on_its_names_alone():
    """Not on the number of repeats, so a pilot and what follows it have one order."""
    orders = [
        [run.file for run in Experiment(floored(change), "e.yaml").timed]
        for change in (put("repeats", 2), put("repeats", 6), put("experiment", "other"))
    ]
    assert orders[1][: len(orders[0])] == orders[0]
    named_alike = [file.replace("/other/", "/small/") for file in orders[2]]
    assert named_alike != orders[1][: len(named_alike)]


def test_the_second_run_of_a_reference_is_a_measurement_of_its_own():
    experiment = Experiment(floored(), "e.yaml")
    second = experiment.duplicates[0]
    names = (second.dataset, second.workload, *second.configuration, second.repeat)
    first = experiment.run(*names)
    assert experiment.run(*names, series="duplicate") == second
    assert second.file == first.file.replace("/rep1/", "/duplicate.rep1/")
    assert second.file in experiment.series_files() and first.file in experiment.run_files()
    requests_of = experiment.request(first), experiment.request(second)
    assert requests_of[0] | {"series": "duplicate"} == requests_of[1] != requests_of[0]
    assert experiment.settings_of(first) == experiment.settings_of(second)
    assert not any("duplicate" in run.folder for run in experiment.probed("timeline"))


def test_a_noise_floor_is_measured_with_the_references_again():
    again = measured_again(matrix(), floored())
    runs = Experiment(matrix(), "e.yaml").run_files()
    assert again == {file for file in runs if "/single/1x1/" in file}
    assert requests(matrix() | {"noise_floor": False}) == requests(matrix())
    lonely = floored(put("configurations", [{"strategy": "single", "layouts": ["1x1"]}]))
    assert Experiment(lonely, "e.yaml").duplicates == []
    assert measured_again(lonely | {"noise_floor": False}, lonely) == set()


def test_a_fit_and_a_ladder_have_no_second_run():
    settings = laddered(put("noise_floor", True))
    settings["workloads"]["majority"] = {}
    experiment = Experiment(settings, "e.yaml")
    assert {run.workload for run in experiment.duplicates} == {"virus-cnn"}
    assert experiment.timed[-len(experiment.rung_runs) :] == experiment.rung_runs
    plain = laddered()
    plain["workloads"]["majority"] = {}
    assert not any("/way-" in f or "/majority/" in f for f in measured_again(plain, settings))


PILOT = {"half_width": "5 %", "repeats": 6, "at_most": 40}


def piloted(*changes: Callable[[dict], object]) -> dict:
    """Return an experiment whose pilot decides on the number of repeats."""
    settings = matrix() | {"pilot": dict(PILOT)}
    del settings["repeats"]
    for change in changes:
        change(settings)
    return settings


def test_a_pilot_gives_the_repeats_and_more_may_follow():
    experiment = Experiment(piloted(), "e.yaml")
    assert {run.repeat for run in experiment.runs} == set(range(1, 7))
    assert {run.repeat for run in experiment.largest.runs} == set(range(1, 41))
    more = experiment.with_repeats(9)
    assert more.runs == [run for run in experiment.largest.runs if run.repeat <= 9]
    assert more.dataset_files() == experiment.dataset_files()
    assert more.largest.runs == experiment.largest.runs
    last = experiment.largest.runs[-1]
    assert more.largest.request(last) == experiment.request(last)
    last = experiment.largest.timed[-1]
    assert experiment.largest.position(last) == len(experiment.largest.timed) - 1
    assert more.timed == experiment.largest.timed[: len(more.timed)]


def test_a_pilot_changes_no_measurement():
    same = Experiment(matrix() | {"repeats": 6}, "e.yaml")
    assert Experiment(same.settings, "e.yaml").largest.runs == same.runs
    assert requests(piloted()) == requests(matrix() | {"repeats": 6})
    assert requests(piloted(put("repeats", 6))) == requests(piloted())


@pytest.mark.parametrize(
    ("change", "where", "reason"),
    [
        (put("repeats", 5), "repeats", "is not pilot.repeats, which is 6"),
        (put("pilot.at_most", 5), "pilot.at_most", "is below pilot.repeats"),
        (put("pilot.repeats", 1), "pilot.repeats", "too small"),
        (put("pilot.half_width", "0 %"), "pilot.half_width", "is not written like"),
        (put("pilot.half_width", "5"), "pilot.half_width", "is not written like"),
        (put("pilot.half_width", 0.05), "pilot.half_width", "is not text"),
        (drop("pilot.repeats"), "pilot.repeats", "missing"),
    ],
)
def test_pairs_that_cannot_be_are_refused(change, where, reason):
    error = refusal(piloted(change))
    assert error.where == f"e.yaml: {where}"
    assert reason in str(error)


def test_a_pilot_does_not_measure_ladders():
    error = refusal(laddered(put("pilot", PILOT | {"repeats": 2})))
    assert (error.where, error.value) == ("e.yaml: pilot", ["way"])


def test_runs_are_in_the_order_of_the_file():
    settings = small(
        put("datasets", dict.fromkeys(("z", "a"), SMALL["datasets"]["d"])),
        put("workloads", {"virus-cnn": {"epochs": 1}, "majority": {}}),
        put("variants", {"tuned": {}, "as-published": {}}),
    )
    runs = Experiment(settings, "e.yaml").runs
    order = list(dict.fromkeys((run.dataset, run.workload, run.variant) for run in runs))
    of_each = [("virus-cnn", "tuned"), ("virus-cnn", "as-published"), ("majority", "tuned")]
    assert order == [(dataset, *rest) for dataset in ("z", "a") for rest in of_each]


def test_repeats_go_round_the_seeds_of_the_split():
    experiment = Experiment(matrix(), "e.yaml")
    assert [experiment.split_seed("e", n) for n in (1, 2, 3, None)] == [1, 2, 1, 1]
    assert [experiment.split_seed("d", n) for n in (1, 2, 3)] == [4, 4, 4]
    assert experiment.dataset_files() == [
        "results/small/data/d/split4/dataset.json",
        "results/small/data/e/split1/dataset.json",
        "results/small/data/e/split2/dataset.json",
    ]
    assert experiment.class_files() == [
        "results/small/data/d/classes.csv",
        "results/small/data/e/classes.csv",
    ]


def test_only_the_splits_of_some_repeat_are_made():
    experiment = Experiment(small(put("datasets.d.split.seeds", [7, 8, 9])), "e.yaml")
    folders = [Path(file).parent.name for file in experiment.dataset_files()]
    assert folders == ["split7", "split8"]


def test_timelines_can_be_left_out_and_still_asked_for_by_their_path():
    experiment = Experiment(small(put("timeline", {"enabled": False})), "e.yaml")
    assert experiment.probed("timeline") == []
    names = ("d", "virus-cnn", "horovod-mpi", "1x2", "tuned", "native", None, "timeline")
    assert experiment.run(*names).file.endswith("/horovod-mpi/1x2/tuned/native/timeline/run.json")


@pytest.mark.parametrize(
    ("timed", "probed", "order"),
    [
        (10, 3, "e 5 e 5 e"),
        (7, 2, "e 7 e"),
        (7, 3, "e 4 e 3 e"),
        (3, 1, "3 e"),
        (2, 5, "e e 1 e 1 e e"),
    ],
)
def test_repeats_of_a_probe_are_spread_among_those_of_timing_runs(timed, probed, order):
    settings = small(put("repeats", timed), put("energy", {"enabled": True, "repeats": probed}))
    experiment = Experiment(settings, "e.yaml")
    configurations = len(experiment.runs) // timed
    places = [(experiment.position(run), "") for run in experiment.timed]
    for run in experiment.probed("energy"):
        position = experiment.position(run)
        places.append((len(experiment.timed) if position is None else position, "e"))
    words = []
    for name, of_name in itertools.groupby(sorted(places), key=lambda place: place[1]):
        number = len(list(of_name)) // configurations
        words += [name] * number if name else [str(number)]
    assert " ".join(words) == order


def test_a_probe_with_repeats_has_a_folder_for_each_and_their_number_determines_no_run():
    energy = {"enabled": True, "repeats": 2}
    experiment = Experiment(small(put("energy", energy)), "e.yaml")
    runs = experiment.probed("energy")
    assert {run.file.split("/")[-2] for run in runs} == {"energy.rep1", "energy.rep2"}
    assert {run.file for run in runs} <= set(experiment.tabulated_files())
    power = {"power_model": {"node_watts": 40, "core_watts": 8}, "grams_co2_per_kwh": 200}
    more = Experiment(small(put("energy", energy | power | {"repeats": 3})), "e.yaml")
    assert [more.request(run) for run in runs] == [experiment.request(run) for run in runs]
    assert more.probe_settings["energy"]["power_model"] == power["power_model"]
    slower = Experiment(small(put("energy", energy | {"seconds": 1})), "e.yaml")
    assert slower.request(runs[0]) != experiment.request(runs[0])
    assert experiment.request(runs[0])["probe_settings"] == {
        "seconds": 0.5,
        "cool_down_seconds": 60,
        "sysfs": "/sys",
    }


def with_fits(settings: dict) -> dict:
    settings["workloads"] |= {"kmer-logreg": {"k": 5}, "majority": {}}
    return settings


def test_a_fit_runs_in_one_process_once_a_split():
    settings = with_fits(matrix())
    settings["datasets"]["d"]["split"] = {"seeds": [4]}
    settings["datasets"]["e"]["split"] = {"seeds": [7, 8]}
    experiment = Experiment(settings, "e.yaml")
    fits = [run for run in experiment.runs if run.workload != "virus-cnn"]
    assert {(run.strategy, run.layout, run.variant) for run in fits} == {("single", "1x1", "tuned")}
    repeats = {(run.dataset, run.repeat) for run in fits}
    assert repeats == {("d", 1), ("e", 1), ("e", 2)}
    assert len(fits) == 2 * len(repeats)
    assert {run.repeat for run in experiment.runs if run not in fits} == {1, 2, 3}
    assert {run.workload for run in experiment.probed("timeline")} == {"virus-cnn"}
    assert len(experiment.runs) - len(fits) == len(Experiment(matrix(), "e.yaml").runs)
    assert changed(matrix(), with_fits(matrix())) == set()


def test_a_fit_runs_under_the_first_variant_of_the_baseline():
    settings = with_fits(matrix())
    settings["configurations"][0]["variants"] = ["untuned"]
    fits = [run for run in Experiment(settings, "e.yaml").runs if run.workload == "majority"]
    assert {run.variant for run in fits} == {"untuned"}


@pytest.mark.parametrize("workload", ["kmer-logreg", "majority"])
def test_a_fit_needs_one_process_among_the_configurations(workload):
    error = refusal(small(put("workloads", {workload: {}}), lambda s: s["configurations"].pop(0)))
    assert error.where == f"e.yaml: workloads.{workload}"
    assert "strategy single with the layout 1x1" in error.reason
    assert "{strategy: single, layouts: [1x1]}" in error.remedy


def test_a_run_is_found_by_its_names():
    experiment = Experiment(with_fits(matrix()), "e.yaml")
    for run in experiment.runs + experiment.probed("timeline"):
        names = (run.dataset, run.workload, run.strategy, run.layout, run.variant, run.network)
        assert experiment.run(*names, run.repeat, run.instrument) == run


@pytest.mark.parametrize(
    ("position", "name"),
    [(0, "x"), (1, "x"), (2, "x"), (3, "1x9"), (4, "x"), (5, "1gbit"), (6, 3), (6, 0)],
)
def test_a_run_the_experiment_does_not_hold_is_refused(position, name):
    experiment = Experiment(SMALL, "e.yaml")
    names = ["d", "virus-cnn", "single", "1x1", "tuned", "native", 2]
    assert experiment.run(*names) in experiment.runs
    names[position] = name
    with pytest.raises(InputError, match=r"not among the runs of e\.yaml"):
        experiment.run(*names)


def requests(settings: dict) -> dict[str, str]:
    """Return each run's request by the run's file, as the workflow hands it on."""
    experiment = Experiment(settings, "e.yaml")
    return {
        run.file: json.dumps(experiment.request(run), allow_nan=False, sort_keys=True)
        for run in [*experiment.timed, *(r for p in PROBES for r in experiment.probed(p))]
    }


def changed(before: dict, after: dict) -> set[str]:
    """Return the runs of one experiment whose request is another in the second."""
    old, new = requests(before), requests(after)
    assert set(old) <= set(new)
    return {file for file in old if old[file] != new[file]}


def measured_again(before: dict, after: dict) -> set[str]:
    """Return the runs of one experiment, all measured, that are measured again for the second."""
    old, new = requests(before), requests(after)
    experiment = Experiment(after, "e.yaml")
    runs = [*experiment.timed, *(run for probe in PROBES for run in experiment.probed(probe))]
    needed = {run for run in runs if old.get(run.file) != new[run.file]}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for file, request in old.items():
            record = {"session": "s", "status": "ok", "source_sha256": "0"}
            write_json(Path(file), record | {"request_sha256": request})
            write_json(Path(file).parent / "sessions" / "s.json", read_json(Path(file)))
        matches = Matches(experiment.references_of, lambda r: Identity(new[r.file], "0"), needed)
        needed |= matches.incomplete(runs)
    return {run.file for run in needed} & old.keys()


def test_a_request_says_who_the_run_is_and_how_it_trains():
    several = matrix()
    put("workloads.virus-cnn", {"epochs": 3, "validate": True, "save_model": True})(several)
    experiment = Experiment(several, "e.yaml")
    settings = experiment.settings
    handed_on = requests(several)
    for run in experiment.runs + experiment.probed("timeline"):
        request = json.loads(handed_on[run.file])
        assert Run(**{k: request[k] for k in vars(run)}) == run
        cut = {"epochs": 1, "validate": False, "save_model": False} if run.instrument else {}
        asked = settings["workloads"]["virus-cnn"] | cut
        assert experiment.settings_of(run)["training"] == asked
        assert request["training"].items() <= asked.items()
        variant = settings["variants"][run.variant]
        assert request["knobs"] == read_by_run(variant, run.strategy, run.workload)
        assert request["max_steps"] == (30 if run.instrument else None)


def test_another_configuration_measures_its_references_again_and_nothing_else():
    added = {"strategy": "horovod-mpi", "layouts": ["1x4"], "variants": ["tuned"]}
    after = matrix()
    after["configurations"].append(added)
    assert changed(matrix(), after) == set()
    assert measured_again(matrix(), after) == {
        f"results/small/runs/{dataset}/virus-cnn/single/1x1/tuned/native/rep{repeat}/run.json"
        for dataset in ("d", "e")
        for repeat in (1, 2, 3)
    }


@pytest.mark.parametrize(
    "change",
    [
        put("repeats", 4),
        put("title", "Another title"),
        put("time_limit_minutes", 5),
        put("timeline", {"enabled": True}),
        put("datasets.f", copy.deepcopy(SMALL["datasets"]["d"])),
        put("variants.third", {}),
        lambda settings: settings["configurations"].reverse(),
    ],
)
def test_what_does_not_bear_on_a_run_changes_no_request(change):
    after = matrix()
    change(after)
    assert changed(matrix(), after) == set()


def test_training_settings_knobs_and_steps_change_the_runs_that_use_them():
    everything = set(requests(matrix()))
    slower, plain, longer = matrix(), matrix(), matrix()
    put("workloads.virus-cnn.seed", 1)(slower)
    put("variants.untuned.sparse_as_dense", True)(plain)
    put("timeline", {"steps": 9})(longer)
    assert changed(matrix(), slower) == everything
    assert measured_again(matrix(), plain) == {f for f in everything if "/untuned/" in f}
    assert changed(matrix(), longer) == {f for f in everything if "/timeline/" in f}


@pytest.mark.parametrize("change", [{"rate": "10mbit"}, {"interface": "ib0"}, {"steps": 10}])
def test_another_link_is_measured_again_with_the_reference_beside_it(change):
    across = small(put("configurations.1.layouts", ["1x2", "2x1"]))
    another = copy.deepcopy(across)
    put("networks", {"native": change})(another)
    steps_alone = {"steps"} == set(change)
    again = {
        file
        for file in requests(across)
        if ("/2x1/" in file and not (steps_alone and "/timeline/" in file)) or "/single/" in file
    }
    assert measured_again(across, another) == again


THREADS = {"strategy": "single", "layout": "1x1", "variant": "threads"}


def with_threads(**reference: str) -> dict:
    """Return an experiment whose second reference is one process with two cores."""
    settings = small(put("variants", {"tuned": {}, "threads": {"cores_per_process": 2}}))
    settings["configurations"] = [
        {"strategy": "single", "layouts": ["1x1"]},
        {"strategy": "horovod-mpi", "layouts": ["1x2"], "variants": ["tuned"]},
    ]
    settings["references"] = [THREADS | {"variant": "tuned"}, THREADS | reference]
    return settings


def test_configurations_are_compared_with_the_references_named_whatever_their_variant():
    experiment = Experiment(with_threads(), "e.yaml")
    against = {
        str(run.configuration): sorted(
            str(other.configuration) for other in experiment.matched_with(run)
        )
        for run in experiment.runs
    }
    assert against == {
        "single 1x1 tuned": ["horovod-mpi 1x2 tuned", "single 1x1 threads"],
        "single 1x1 threads": ["horovod-mpi 1x2 tuned", "single 1x1 tuned"],
        "horovod-mpi 1x2 tuned": ["single 1x1 threads", "single 1x1 tuned"],
    }


def test_a_reference_that_changes_is_measured_again_with_all_that_is_compared_with_it():
    probes = {name: {"enabled": True} for name in ("clocks", "resources", "timeline")}
    other = with_threads() | probes
    other["variants"]["threads"]["threads"] = {"inter_op": 1}
    changes = measured_again(with_threads() | probes, other)
    of_variant = {file for file in requests(other) if "/threads/" in file}
    assert changes - of_variant == {
        file
        for file in requests(other)
        if "/tuned/" in file and file.split("/")[-2] in ("rep1", "rep2", "rep3", "clocks")
    }
    assert of_variant <= changes


@pytest.mark.parametrize(
    ("part", "known"),
    [("strategy", "single"), ("variant", "tuned, threads"), ("network", "native")],
)
def test_a_reference_with_an_unknown_part_is_refused_with_those_known(part, known):
    error = refusal(with_threads(**{part: "unknown"}))
    assert (error.where, error.value) == (f"e.yaml: references.1.{part}", "unknown")
    assert error.reason == f"no such {part}"
    assert known in error.remedy


def test_a_reference_that_is_never_measured_is_refused():
    error = refusal(with_threads(layout="1x2"))
    assert error.where == "e.yaml: references.1"
    assert "not among the configurations" in error.reason
    assert "single 1x1 threads" in error.remedy


@pytest.fixture
def root(tmp_path):
    def write(path: Path, name: str) -> None:
        path.write_text(yaml.safe_dump(small(put("experiment", name))))

    (tmp_path / "experiments" / "virus").mkdir(parents=True)
    write(tmp_path / "config.yaml", "demo")
    write(tmp_path / "experiments" / "virus" / "own.yaml", "own")
    write(tmp_path / "experiments" / "mine.yaml", "yours")
    return tmp_path


@pytest.mark.parametrize("name", ["demo", "own"])
def test_results_belong_to_the_experiment_of_their_name(root, name):
    assert named(name, root).name == name


def test_a_file_that_names_another_experiment_is_refused(root):
    with pytest.raises(InputError, match=r"differs from the file's name mine\.yaml") as caught:
        named("mine", root)
    assert caught.value.remedy == "write experiment: mine"


def test_two_files_of_one_name_are_refused(root):
    twin = root / "experiments" / "own.yaml"
    twin.write_text((root / "experiments" / "virus" / "own.yaml").read_text())
    with pytest.raises(InputError, match="is also the name of") as caught:
        named("own", root)
    assert "own.yaml" in str(caught.value)


@pytest.mark.parametrize("name", ["demo", "own"])
def test_the_name_of_another_file_of_the_project_is_refused(root, name):
    other = root / "other.yaml"
    other.write_text("")
    with pytest.raises(InputError, match=f"to which results/{name} belongs"):
        check_name(name, other, root)


def test_other_files_of_yaml_are_no_experiments(tmp_path):
    for path, content in (
        ("config.yaml", "!custom {rate: 0.1"),
        ("experiments/a/base.yaml", "rate: 0.1"),
        ("experiments/b/base.yaml", "model:\n  experiment: base"),
        ("experiments/mine.yaml", "experiment: mine"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert list(files_by_name(tmp_path)) == ["mine"]
    check_name("base", tmp_path / "experiments" / "a" / "base.yaml", tmp_path)
    with pytest.raises(InputError, match=r"no such experiment.*use one of mine"):
        named("base", tmp_path)


def laddered(*changes: Callable[[dict], object]) -> dict:
    """Two repeats of a ladder of three rungs, of which the ordinary runs know the first alone."""
    settings = small(
        put("variants", {"a": {}, "b": {"autotune": True}, "c": {"shard": False}}),
        put("configurations.0.variants", ["a"]),
        put("configurations.1.variants", ["a"]),
    )
    mpi = {"strategy": "horovod-mpi", "layout": "1x2"}
    settings["ladders"] = {"way": [mpi | {"variant": name} for name in "abc"]}
    for change in changes:
        change(settings)
    return settings


def test_pairs_follow_each_other_and_their_sides_take_turns():
    experiment = Experiment(laddered(), "e.yaml")
    assert [(run.series, run.repeat, run.variant) for run in experiment.rung_runs] == [
        (match, repeat, variant)
        for match, before, after in (
            ("way-1", "a", "b"),
            ("way-2", "b", "c"),
            ("way-ends", "a", "c"),
        )
        for repeat, variant in ((1, before), (1, after), (2, after), (2, before))
    ]
    assert {run.variant for run in experiment.runs} == {"a"}
    assert experiment.timed[-len(experiment.rung_runs) :] == experiment.rung_runs
    assert set(experiment.timed) == {*experiment.runs, *experiment.rung_runs}
    assert [experiment.turn(run)["place"] for run in experiment.rung_runs[:4]] == [1, 2, 1, 2]


def test_each_pair_has_runs_of_its_own():
    experiment = Experiment(laddered(), "e.yaml")
    files = experiment.series_files()
    assert len({*files, *experiment.run_files()}) == len(files) + len(experiment.run_files())
    folder = "results/small/runs/d/virus-cnn/horovod-mpi/1x2/b/native"
    assert f"{folder}/way-1.rep2/run.json" in files and f"{folder}/way-2.rep2/run.json" in files
    names = ["d", "virus-cnn", "horovod-mpi", "1x2", "b", "native", 2, None]
    assert experiment.run(*names, "way-1").file == f"{folder}/way-1.rep2/run.json"
    for match in ("way-ends", "way-3", None):
        with pytest.raises(InputError, match="not among the runs"):
            experiment.run(*names, match)


def test_a_change_is_called_by_its_label_or_by_the_settings_that_differ():
    settings = laddered(put("ladders.way.1.label", "Horovod tunes itself"))
    put("ladders.way.2.layout", "1x4")(settings)
    assert [rung.change for rung in Experiment(settings, "e.yaml").rungs] == [
        "Horovod tunes itself",
        'layout: "1x2" → "1x4", autotune: true → false, shard: true → false',
        None,
    ]


def test_both_sides_of_a_pair_are_timed_again_when_one_changes():
    again = measured_again(laddered(), laddered(put("variants.b.autotune", False)))
    assert {file.split("/")[-2].partition(".")[0] for file in again} == {"way-1", "way-2"}
    assert len(again) == 2 * 2 * 2
    assert changed(laddered(), laddered(put("ladders.way.1.label", "another"))) == set()


@pytest.mark.parametrize(
    ("change", "where", "reason"),
    [
        (put("ladders.way.1.strategy", "nccl"), "ladders.way.1.strategy", "no such strategy"),
        (put("ladders.way.1.variant", "d"), "ladders.way.1.variant", "no such variant"),
        (put("ladders.way.1.layout", "two"), "ladders.way.1.layout", "is not written like 1x2"),
        (put("ladders.way.0.strategy", "single"), "ladders.way.0.layout", "one process"),
        (
            put("variants.b.batch", {"rows": 1, "per": "global"}),
            "variants.b.batch.rows",
            "some of the 2 ranks",
        ),
        (put("ladders.way.2.variant", "a"), "ladders.way.2", "is already a rung of this ladder"),
        (lambda s: s["ladders"]["way"].__delitem__(slice(1, 3)), "ladders.way", "too few"),
        (put("ladders.way.1.network", "slow"), "ladders.way.1.network", "no such network"),
        (put("workloads", {"majority": {}}), "ladders", "no workload is trained by gradient"),
        (
            put("variants.c.busy_neighbours", [7]),
            "variants.c.busy_neighbours",
            "applies to rank 7, which no layout",
        ),
    ],
)
def test_what_is_no_ladder_is_refused(change, where, reason):
    error = refusal(laddered(change))
    assert error.where == f"e.yaml: {where}"
    assert reason in error.reason


def test_a_ladder_needs_whole_epochs():
    settings = laddered(put("ladders.way.1.layout", "2x1"), put("ladders.way.1.network", "slow"))
    put("networks", {"slow": {"rate": "10mbit", "steps": 50}})(settings)
    error = refusal(settings)
    assert (error.where, error.value) == ("e.yaml: ladders.way.1.network", "slow")
    assert "cut short" in error.reason


def test_a_rung_of_several_nodes_names_its_network_and_one_of_one_node_has_none():
    settings = laddered(put("ladders.way.1.layout", "2x1"), put("ladders.way.1.network", "slow"))
    error = refusal(settings)
    assert (error.where, error.value) == ("e.yaml: ladders.way.1.network", "slow")
    put("networks", {"slow": {"rate": "10mbit"}})(settings)
    networks = {run.layout: run.network for run in Experiment(settings, "e.yaml").rung_runs}
    assert networks == {"1x2": "native", "2x1": "slow"}


def test_settings_of_one_variant_are_not_those_of_the_next():
    settings = small(put("variants.published", {"checkpoint_epochs": 1, "batch": {"rows": 7}}))
    experiment = Experiment(settings, "e.yaml")
    for _ in range(2):
        for run in experiment.runs:
            training = experiment.settings_of(run)["training"]
            published = run.variant == "published"
            assert training["batch"]["rows"] == (7 if published else 32)
            assert training["checkpoint_epochs"] == (1 if published else None)
    assert {experiment.settings_of(run)["training"]["checkpoint_epochs"]
            for run in experiment.probed("timeline")} == {None}  # fmt: skip


@pytest.mark.parametrize(("by", "enters"), [("random", False), ("cluster", True)])
def test_similarity_determines_the_arrays_only_where_the_split_is_by_cluster(by, enters):
    """What a preparation holds enters `dataset.json`, and with it the key of every measurement."""
    split = put("datasets.d.split", {"seeds": [4], "by": by})
    first, second = (
        Experiment(small(split, put("datasets.d.similarity", each)), "e.yaml")
        for each in (0.95, 0.5)
    )
    prepared = [genomes.preparation(each.datasets["d"]) for each in (first, second)]
    assert (prepared[0] != prepared[1]) == enters
    assert [first.request(r) for r in first.runs] == [second.request(r) for r in second.runs]


@pytest.mark.parametrize(
    ("strategy", "unread"),
    [
        ("single", [("other", "communication"), ("other", "compression")]),
        ("horovod-gloo", [("other", "communication")]),
        ("multiworker-mirrored", [("other", "compression")]),
    ],
)
def test_knobs_that_no_run_reads_are_told(strategy, unread):
    settings = copy.deepcopy(SMALL)
    settings["variants"] = {
        "plain": {},
        "other": {"communication": "ring", "compression": "fp16", "bind": False},
    }
    settings["configurations"] = [{"strategy": strategy, "layouts": ["1x1"]}]
    assert sorted(unread_knobs(Experiment(settings, "e.yaml"))) == unread
