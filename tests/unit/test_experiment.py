"""Experiments: what is accepted, what is refused and how, and what a run's result depends on."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
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

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data import genomes
from escala.experiment import ROOT, Experiment, Run, check_name, files_by_name, load, load_by_name
from escala.experiment.expand import turns
from escala.experiment.runs import (
    DEFAULT_REFERENCES,
    ONE_PROCESS,
    Configuration,
    references_for,
)
from escala.experiment.schema import SCHEMA as SCHEMA_FILE
from escala.experiment.schema import compose_schema
from escala.measure.missing import Present, runs_left_of
from escala.measure.plan import plan_session
from escala.probes import PROBES
from escala.record.schema import FORMAT
from escala.runtime.layout import Layout
from escala.strategies.knobs import read_by_run
from escala.workloads import WORKLOADS

FILES = [ROOT / "config.yaml", *files_by_name().values()]
SCHEMA = compose_schema(yaml.safe_load(SCHEMA_FILE.read_text()))
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


def small(*changes: Callable[[dict], object]) -> dict:
    settings = copy.deepcopy(SMALL)
    for change in changes:
        change(settings)
    return settings


ABSENT = object()


def put(path: str, value: object = ABSENT) -> Callable[[dict], None]:
    """Return a change that puts a value at a path such as `datasets.d.length`, or drops the key."""

    def change(settings: dict) -> None:
        *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
        for key in parents:
            settings = settings[key]
        if value is ABSENT:
            del settings[last]
        elif isinstance(settings, list) and last == len(settings):
            settings.append(copy.deepcopy(value))
        else:
            settings[last] = copy.deepcopy(value)

    return change


def refusal(settings: object) -> InputError:
    with pytest.raises(InputError) as caught:
        Experiment(settings, "e.yaml")
    error = caught.value
    assert error.where.startswith("e.yaml: ") and error.reason and error.remedy
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


def mappings(schema: object, path: str = "") -> Iterator[tuple[str, dict]]:
    """Yield each mapping in a schema with its path; what a condition looks for is no key."""
    if isinstance(schema, list):
        schema = dict(enumerate(schema))
    if isinstance(schema, dict):
        yield path, schema
        for key, inner in schema.items():
            if key != "if":
                yield from mappings(inner, f"{path}.{key}")


def test_the_schema_describes_every_key_and_closes_every_mapping():
    found = list(mappings(SCHEMA))
    keys = [(path, key) for path, key in found if re.search(r"\.properties\.[^.]+$", path)]
    assert len(keys) > 50 and [path for path, key in keys if not key.get("description")] == []
    objects = [schema for _, schema in found if schema.get("type") == "object"]
    closed = [schema for schema in objects if not {"oneOf", "allOf"} & set(schema)]
    assert all(schema.get("additionalProperties") is False for schema in closed) and closed


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        (b"a: [", "line 1, column 5.*not YAML"),
        (b"a: 1\nb: x\x00\n", "line 2, column 5.*not YAML.*not allowed"),
        (b"\xff\xfe", "is not text.*UTF-8"),
        (b"a: 1\na: 2", "line 2.*is there twice"),
        (b"a: 1\nb: &x [*x]", "line 2.*an alias is inside the value that it names"),
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


@pytest.mark.parametrize(
    ("changes", "where", "reason", "remedy"),
    [
        ({"repeets": 3}, "repeets", "unknown key", "did you mean repeats?"),
        # Rather than the lack of the right one.
        ({"datasets.d.length": ABSENT, "datasets.d.lenght": 100}, "datasets.d.lenght",
         "unknown key", "did you mean length?"),
        ({"datasets.d.source.type": ABSENT}, "datasets.d.source.type", "the key is missing",
         "add type ("),
        ({"workloads.virus-cnn": {None: {}}}, "workloads.virus-cnn", "", "quote it"),
        ({"datasets.d.source.type": "simulate"}, "datasets.d.source.type", "not among",
         "files, labelled, simulated, ncbi"),
        ({"datasets.d.source.difficulty": 2}, "datasets.d.source.difficulty", "too large",
         "at most 1 (0: very different"),
        ({"datasets.d.length": True}, "datasets.d.length", "not a whole number", "letters of"),
        ({"datasets.d.split.seeds": []}, "datasets.d.split.seeds", "too few", "at least 1"),
        ({"datasets.d.classes": ["A", "A"]}, "datasets.d.classes", "twice", "each once"),
        ({"oversubscribe": "yes"}, "oversubscribe", "not true or false", "true or false"),
        ({"time_limit_minutes": float("nan")}, "time_limit_minutes", "not a number", "a number"),
    ],
)  # fmt: skip
def test_what_the_schema_refuses_is_named_with_what_is_allowed(changes, where, reason, remedy):
    error = refusal(small(*(put(path, value) for path, value in changes.items())))
    assert error.where == f"e.yaml: {where}"
    assert reason in error.reason and remedy in error.remedy


def test_what_the_schema_refuses_is_told_at_once_but_for_consequences():
    wrong = {"repeets": 3, "titel": "x", "workloads": {"cnn": {}, "mlpp": {}}, "oversubscribe": 1}
    wrong |= {"variants": ABSENT, "datasets.d.length": ABSENT}
    error = refusal(small(*(put(key, value) for key, value in wrong.items())))
    named = [line.split(": ")[1] for line in str(error).splitlines()]
    unknown = ["repeets", "titel", "workloads.cnn", "workloads.mlpp"]
    assert sorted(named) == sorted([*unknown, "datasets.d.length", "oversubscribe"])
    assert named[:4] == unknown and all("Remedy: " in line for line in str(error).splitlines())
    for content in (None, [], "text"):
        assert refusal(content).where == "e.yaml: (top level)"


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"split": {"groups": "g.tsv"}}, "split.groups", "by random has no group file"),
        ({"split": {"by": "group-file"}, "source": {"type": "files", "folder": "f"}},
         "split.groups", "the key is missing"),
        ({"oversample": {"within": 9}}, "oversample.within", "smoten draws no windows"),
        ({"split": {"by": "cluster"}, "oversample": {"order": "before-split"}},
         "oversample.order", "separates genomes"),
        ({"deduplicate": "encoded", "window": {"method": "tiles"}},
         "deduplicate", "starts of genomes"),
    ],
)  # fmt: skip
def test_settings_of_a_dataset_that_do_not_fit_together_are_refused(settings, key, reason):
    split = {"split": {"seeds": [4], **settings.get("split", {})}}
    error = refusal(small(lambda content: content["datasets"]["d"].update(settings | split)))
    assert error.where == f"e.yaml: datasets.d.{key}"
    assert reason in error.reason


def naming(name: str) -> Iterator[dict]:
    """Yield settings that use a name in each place where a name may stand."""
    yield small(put("experiment", name))
    yield small(put("datasets", {name: SMALL["datasets"]["d"]}))
    yield small(put("variants", {name: {}}))
    records = put("datasets.d.source.records", {"B": 9, name: 9})
    yield small(put("datasets.d.classes", ["B", name]), records)


@hypothesis.settings(deadline=None, max_examples=40)
@given(st.text(max_size=70) | st.from_regex(SAFE) | st.from_regex(SAFE, fullmatch=True))
def test_names_accepted_are_safe_and_safe_names_accepted(name):
    for settings in naming(name):
        try:
            experiment = Experiment(settings, "e.yaml")
        except InputError:
            # Class B stands alongside it.
            assert name == "B" or not re.fullmatch(SAFE, name)
        else:
            assert re.fullmatch(SAFE, name)
            for file in [*(run.file for run in experiment.runs), *experiment.class_files()]:
                assert re.fullmatch(r"results(/[A-Za-z0-9_-]+)+(\.json|s\.csv|/classes\.csv)", file)


CLASSES, SOURCE, CNN = "datasets.d.classes", "datasets.d.source", "workloads.virus-cnn"
FIRST, SECOND, TUNED = "configurations.0", "configurations.1", "variants.tuned"


def together(strategy: str, **knobs: object) -> list[Callable[[dict], None]]:
    """Return changes for a network of pictures whose ranks normalise together."""
    source = {"type": "outlines", "per_class": 20}
    return [
        put("datasets.d", {"kind": "images", "split": {"seeds": [4]}, "source": source}),
        put("workloads", {"resnet34": {"epochs": 1}}),
        put("variants.both", {"batch_norm": "synchronised", **knobs}),
        put(f"{FIRST}.variants", ["tuned"]),
        put(SECOND, {"strategy": strategy, "layouts": ["1x2"], "variants": ["both"]}),
    ]


def ddp(strategy: str = "ddp-gloo", **variant: object) -> list[Callable[[dict], None]]:
    """Return changes for two ranks of a strategy that train by a variant."""
    return [put(SECOND, {"strategy": strategy, "layouts": ["1x2"]}), put(TUNED, variant)]


@pytest.mark.parametrize(
    ("changes", "where", "reason"),
    [
        ([put("title", "<script>x</script>")], "title", "not"),
        ([put(f"{SECOND}.layouts", ["1x2", "0x1"])], f"{SECOND}.layouts.1", "is not written like"),
        ([put(CLASSES, ["A"]), put(f"{SOURCE}.records.B")], CLASSES, "a single class"),
        ([put(CLASSES, ["A", "C"])], f"{SOURCE}.records", "not among the classes"),
        ([put(CLASSES, ["A", "B", "C"])], f"{SOURCE}.records", "without an entry"),
        ([put("workloads.mnist-mlp", {"epochs": 1})],
         "workloads.mnist-mlp", "the experiment has no such dataset"),
        ([put("workloads", {"majority": {}}), put(f"{FIRST}.strategy", "horovod-gloo")],
         "workloads.majority", "strategy single with the layout 1x1"),
        ([put(f"{SECOND}.strategy", "nccl")], f"{SECOND}.strategy", "no such strategy"),
        ([put(f"{SECOND}.strategy", "mpi")], f"{SECOND}.strategy", "starts programs only"),
        ([put(f"{SECOND}.layouts", ["1x4", "1x4"])], f"{SECOND}.layouts", "twice"),
        ([put("configurations.2", SMALL["configurations"][1])], "configurations", "listed twice"),
        ([put(f"{FIRST}.layouts", ["1x1", "1x2"])], f"{FIRST}.layouts.1", "one process"),
        ([put(SECOND, {"strategy": "mirrored", "layouts": ["2x1"]})],
         f"{SECOND}.layouts.0", "stays on one node"),
        ([put(f"{CNN}.target_accuracy", 0.9)], f"{CNN}.target_accuracy", "after each epoch"),
        ([put(f"{CNN}.early_stopping", {"patience": 1, "monitor": "validation"})],
         f"{CNN}.early_stopping.monitor", "is not computed"),
        ([put(f"{CNN}.batch", {"rows": 1, "per": "global"})], f"{CNN}.batch.rows", "without rows"),
        ([put("launcher", "local")], "launcher", "cannot start horovod-mpi 1x2"),
        ([put(f"{TUNED}.slowdown", [1, 2]), put(f"{SECOND}.strategy", "mirrored")],
         "configurations: mirrored", "needs a synchronous strategy"),
        ([put(f"{TUNED}.slowdown", [1, 1, 2])],
         f"{TUNED}.slowdown", "applies to rank 2, which no layout"),
        ([put(f"{TUNED}.fractions", [2, 1]), put(f"{SECOND}.strategy", "hybrid"),
          put(f"{SECOND}.layouts", ["1x3"])],
         f"{TUNED}.fractions", "has 2 fractions, and 1x3 has 3 ranks"),
        ([put(f"{TUNED}.fractions", [0, 0]), put(f"{SECOND}.strategy", "hybrid")],
         f"{TUNED}.fractions", "gives no rank any rows"),
        (together("parameter-server"),
         "variants.both.batch_norm", "needs ranks that make each step together"),
        (together("mirrored", accumulation=2),
         "variants.both.batch_norm", "needs accumulation: 1, and this variant sets 2"),
        (ddp(communication_hook="bf16"), f"{TUNED}.communication_hook", "with NCCL only"),
        (ddp("ddp-nccl", communication_hook="shared-memory"),
         f"{TUNED}.communication_hook", "on GPUs"),
        (ddp(trained_module="bare"), f"{TUNED}.trained_module", "evaluation: whole"),
        (ddp(trained_module="bare", evaluation="whole", checkpoint_epochs=1),
         f"{TUNED}.trained_module", "a checkpoint holds one"),
        (ddp("fsdp", torch_compile=True), f"{TUNED}.torch_compile", "fsdp"),
        (ddp("jax-gloo", device="gpu"), f"{TUNED}.device", "on processors"),
        (ddp("jax-gloo", threads={"intra_op": 1, "inter_op": 2}), f"{TUNED}.threads", "one pool"),
        (ddp("mirrored", optimizer="one-pass"), f"{TUNED}.optimizer", "does not sum the gradients"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together(changes, where, reason):
    error = refusal(small(*changes))
    assert error.where == f"e.yaml: {where}" and reason in error.reason


@pytest.mark.parametrize(
    ("file", "strategy", "reason"),
    [
        ("model.py", "ddp-gloo", "virus-cnn has no model_torch.py"),
        ("model_torch.py", "horovod-mpi", "virus-cnn has no model.py"),
        ("model_torch.py", "ddp-gloo", None),
    ],
)
def test_a_strategy_needs_a_model_of_its_engine(tmp_path, monkeypatch, file, strategy, reason):
    (tmp_path / file).touch()
    workload = dataclasses.replace(WORKLOADS["virus-cnn"], folder=tmp_path)
    monkeypatch.setitem(WORKLOADS, "virus-cnn", workload)
    reference = put("references", [{"strategy": strategy, "layout": "1x2"}])
    settings = small(put("configurations", [{"strategy": strategy, "layouts": ["1x2"]}]), reference)
    if reason:
        assert reason in refusal(settings).reason
    else:
        assert Experiment(settings, "e.yaml").runs


@pytest.mark.parametrize(
    ("changes", "available", "where", "reason"),
    [
        ([], 2, None, None),
        ([put(f"{TUNED}.cores_per_process", 2)], 3, "configurations: horovod-mpi",
         "needs 4 cores, and 3 are available"),
        ([put(f"{SECOND}.layouts", ["1x3"]), put("oversubscribe", True)], 2, None, None),
        ([put(f"{SECOND}.layouts", ["2x1"]), put("oversubscribe", True)], 8,
         "configurations: horovod-mpi", "more than one node"),
        ([put("launcher", "srun")], 8, "launcher", "needs a SLURM allocation"),
    ],
)  # fmt: skip
def test_a_layout_must_fit_this_machine(changes, available, where, reason):
    experiment = Experiment(small(*changes), "e.yaml")
    refused = pytest.raises(InputError, match=reason) if reason else contextlib.nullcontext()
    with refused as caught:
        experiment.require_cores(experiment.runs[-1], available)
    assert caught is None or caught.value.where == f"e.yaml: {where}"


def test_defaults_are_filled_in_once_and_are_not_shared_between_experiments():
    settings = small(put("workloads.virus-cnn.early_stopping", {"patience": 1}))
    before = copy.deepcopy(settings)
    filled = Experiment(settings, "e.yaml").settings
    assert settings == before
    assert filled["workloads"]["virus-cnn"]["batch"] == {"rows": 32, "per": "rank"}
    assert filled["workloads"]["virus-cnn"]["early_stopping"]["monitor"] == "training"
    assert Experiment(filled, "e.yaml").settings == filled
    Experiment(SMALL, "e.yaml").settings["timeline"]["steps"] = 1
    assert Experiment(SMALL, "e.yaml").settings["timeline"]["steps"] == 30


FLOORED = put("noise_floor", True)
DECIDES = put("repeats", {"decide": True})
FITS = put("workloads.kmer-logreg", {"k": 5}), put("workloads.majority", {})


def matrix(*changes: Callable[[dict], object]) -> dict:
    """Two of everything, and one configuration with a variant of its own."""
    gloo = {"strategy": "horovod-gloo", "layouts": ["1x2", "1x4"], "variants": ["tuned"]}
    return small(
        put("repeats", 3),
        put("variants", {"tuned": {}, "untuned": {"sparse_as_dense": False}}),
        put("datasets.e", SMALL["datasets"]["d"]),
        put("datasets.e.split.seeds", [1, 2]),
        put("configurations.2", gloo),
        *changes,
    )


def laddered(*changes: Callable[[dict], object]) -> dict:
    """Two repeats of a ladder of three rungs, of which the ordinary runs know the first alone."""
    mpi = {"strategy": "horovod-mpi", "layout": "1x2"}
    return small(
        put("variants", {"a": {}, "b": {"autotune": True}, "c": {"shard": False}}),
        put("configurations.0.variants", ["a"]),
        put("configurations.1.variants", ["a"]),
        put("ladders", {"way": [mpi | {"variant": name} for name in "abc"]}),
        *changes,
    )


def deciding(change: Callable[[dict], object]) -> dict:
    return matrix(DECIDES, change)


def test_the_files_of_an_experiment_are_all_different_and_complete():
    experiment = Experiment(matrix(put("clocks", {"enabled": False})), "e.yaml")
    files = [run.file for run in experiment.runs]
    timelines = [run.file for probe in PROBES for run in experiment.probe_runs(probe)]
    # 2 datasets × (2 configurations × 2 variants + 2 layouts × 1 variant) × 3 repeats
    assert len(files) == len(set(files)) == 2 * (2 * 2 + 2) * 3
    assert "results/small/runs/e/virus-cnn/horovod-gloo/1x4/tuned/native/rep3/run.json" in files
    assert not any("horovod-gloo" in file and "untuned" in file for file in files)
    assert len(timelines) == len(set(timelines) - set(files)) == 2 * (2 + 2)
    assert all(f.endswith("/timeline/run.json") and "/single/" not in f for f in timelines)


def test_a_trace_is_captured_of_pytorch_and_a_configuration_trains_the_workloads_that_it_names():
    program = {"command": "true", "data_kind": "genomes", "epochs": 1, "batch": {"rows": 8}}
    settings = matrix(
        put("torch-trace", {"enabled": True, "steps": 7}), put("workloads.own", program)
    )
    settings["configurations"] = [
        {"strategy": name, "layouts": [layout], "workloads": [workload]}
        for name, layout, workload in (
            ("single", "1x1", "virus-cnn"), ("mpi", "1x2", "own"), ("ddp-gloo", "1x2", "virus-cnn"),
            ("torch-single", "1x1", "virus-cnn"),
        )
    ]  # fmt: skip
    experiment = Experiment(settings, "e.yaml")
    trained = {(run.strategy, run.workload) for run in experiment.runs}
    assert ("mpi", "own") in trained and len(trained) == 4
    traced = experiment.probe_runs("torch-trace")
    # A program may be one of PyTorch.
    assert {run.strategy for run in traced} == {"torch-single", "ddp-gloo", "mpi"}
    # Those that are recorded follow the first ones, and one more counts operations.
    steps = {experiment.request(run)["max_steps"] for run in traced if run.strategy != "mpi"}
    assert steps == {3 + 7 + 1}
    alone = {"strategy": "torch-single", "layout": "1x1"}
    pytorch = Experiment(small(put("configurations", settings["configurations"][2:])), "e")
    assert pytorch.references == [alone]


def test_steps_are_split_in_three_runs_where_ranks_step_together_unless_that_is_off():
    settings = matrix(*FITS)
    settings["configurations"].append({"strategy": "parameter-server", "layouts": ["1x2"]})
    assert (
        Experiment(settings | {"clocks": {"enabled": False}}, "e.yaml").probe_runs("clocks") == []
    )
    experiment = Experiment(settings | {"clocks": {"steps": 7}}, "e.yaml")
    found = experiment.probe_runs("clocks")
    assert {run.repeat for run in found} == {1, 2, 3}
    assert {run.strategy for run in found} == {"single", "horovod-mpi", "horovod-gloo"}
    assert {run.workload for run in found} == {"virus-cnn"}
    assert {experiment.request(run)["max_steps"] for run in found} == {7}


def test_the_order_of_a_repeat_favours_no_run():
    """Each run, duplicates included, has each place once, and follows each other one once."""
    experiment = Experiment(matrix(FLOORED, put("repeats", 8)), "e.yaml")
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
    places = list(turns(experiment.timed).values())[:9]
    assert places == [{"place": n, "of": 8} for n in (*range(1, 9), 1)]
    assert len(experiment.timed) == len(experiment.runs) + len(experiment.duplicates)
    assert experiment.position(experiment.timed[3]) == 3
    # It depends on names alone, so it does not depend on when a session stops.
    two = [run.file for run in Experiment(matrix(FLOORED, put("repeats", 2)), "e.yaml").timed]
    assert [run.file for run in experiment.timed[: len(two)]] == two
    second = experiment.duplicates[0]
    names = (second.dataset, second.workload, *second.configuration, second.repeat)
    assert experiment.run(*names, series="duplicate") == second
    first, second = (experiment.request(experiment.run(*names, series=series))
                     for series in (None, "duplicate"))  # fmt: skip
    assert first | {"series": "duplicate"} == second != first


def test_a_noise_floor_is_measured_with_the_references_again():
    again = measured_again(matrix(), matrix(FLOORED))
    runs = [run.file for run in Experiment(matrix(), "e.yaml").runs]
    assert again == {file for file in runs if "/single/1x1/" in file}
    lonely = matrix(FLOORED, put("configurations", [{"strategy": "single", "layouts": ["1x1"]}]))
    assert Experiment(lonely, "e.yaml").duplicates == []
    # A fit and a ladder have no second run.
    experiment = Experiment(laddered(FLOORED, put("workloads.majority", {})), "e.yaml")
    assert {run.workload for run in experiment.duplicates} == {"virus-cnn"}
    assert experiment.timed[-len(experiment.rung_runs) :] == experiment.rung_runs


def test_a_session_that_decides_may_need_the_most_repeats():
    experiment, fixed = (
        Experiment(matrix(put("repeats", repeats)), "e.yaml")
        for repeats in ({"decide": True, "at_most": 9}, 9)
    )
    assert experiment.sequential == {
        "decide": True,
        "at_most": 9,
        "minutes": None,
        "threshold": None,
    }
    assert fixed.sequential is None
    assert experiment.timed == fixed.timed
    assert experiment.dataset_files() == fixed.dataset_files()
    last = fixed.runs[-1]
    assert experiment.request(last) == fixed.request(last)
    assert experiment.position(last) == fixed.position(last)


def test_repeats_go_round_the_seeds_of_the_split():
    experiment = Experiment(matrix(put("datasets.d.split.seeds", [7, 8, 9, 10])), "e.yaml")
    assert [experiment.split_seed("e", n) for n in (1, 2, 3, None)] == [1, 2, 1, 1]
    # The fourth split of `d` is that of no repeat.
    splits = ("d/split7", "d/split8", "d/split9", "e/split1", "e/split2")
    assert experiment.dataset_files() == [
        f"results/small/data/{split}/dataset.json" for split in splits
    ]
    assert experiment.class_files() == [f"results/small/data/{d}/classes.csv" for d in "de"]


@pytest.mark.parametrize(
    ("timed", "probed", "order"), [(7, 3, "e 4 e 3 e"), (3, 1, "3 e"), (2, 5, "e e 1 e 1 e e")]
)
def test_repeats_of_a_probe_are_spread_among_those_of_timing_runs(timed, probed, order):
    energy = put("energy", {"enabled": True, "repeats": probed})
    experiment = Experiment(small(put("repeats", timed), energy), "e.yaml")
    places = [(experiment.position(run), "") for run in experiment.timed]
    for run in experiment.probe_runs("energy"):
        position = experiment.position(run)
        places.append((len(experiment.timed) if position is None else position, "e"))
    words = []
    for name, same in itertools.groupby(sorted(places), key=lambda place: place[1]):
        number = len(list(same)) * timed // len(experiment.runs)
        words += [name] * number if name else [str(number)]
    assert " ".join(words) == order


def test_a_fit_runs_in_one_process_once_a_split_under_the_first_variant_of_the_baseline():
    first = put("configurations.0.variants", ["untuned"])
    experiment = Experiment(matrix(*FITS, put("datasets.e.split.seeds", [7, 8]), first), "e.yaml")
    fits = [run for run in experiment.runs if run.workload != "virus-cnn"]
    assert {run.configuration[:3] for run in fits} == {("single", "1x1", "untuned")}
    repeats = {(run.dataset, run.repeat) for run in fits}
    assert repeats == {("d", 1), ("e", 1), ("e", 2)}
    assert len(fits) == 2 * len(repeats)
    assert {run.repeat for run in experiment.runs if run not in fits} == {1, 2, 3}
    assert {run.workload for run in experiment.probe_runs("timeline")} == {"virus-cnn"}
    assert changed(matrix(), matrix(*FITS)) == set()


def test_a_run_is_found_by_its_names_and_another_is_refused():
    experiment = Experiment(matrix(*FITS), "e.yaml")
    for run in experiment.runs + experiment.probe_runs("timeline"):
        names = (run.dataset, run.workload, run.strategy, run.layout, run.variant, run.network)
        assert experiment.run(*names, run.repeat, run.instrument) == run
    for position, name in ((0, "x"), (1, "x"), (2, "x"), (3, "1x9"), (4, "x"), (5, "x"), (6, 0)):
        names = ["d", "virus-cnn", "single", "1x1", "tuned", "native", 2]
        names[position] = name
        with pytest.raises(InputError, match=r"not among the runs of e\.yaml"):
            experiment.run(*names)


def requests(settings: dict) -> dict[str, str]:
    """Return each run's request by the run's file, as the workflow hands it on."""
    experiment = Experiment(settings, "e.yaml")
    return {
        run.file: json.dumps(experiment.request(run), allow_nan=False, sort_keys=True)
        for run in [*experiment.timed, *(r for p in PROBES for r in experiment.probe_runs(p))]
    }


def changed(before: dict, after: dict) -> set[str]:
    """Return the runs of one experiment whose request is another in the second."""
    old, new = requests(before), requests(after)
    assert set(old) <= set(new)
    return {file for file in old if old[file] != new[file]}


def measured_again(before: dict, after: dict) -> set[str]:
    """Return the runs of one experiment, all measured, that are measured again for the second."""
    old = plan_session(Experiment(before, "e.yaml"))
    present, files = Present(), {each.file for each in old.runs}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for each in old.runs:
            record = {"format": FORMAT, "session": "s", "status": "ok", "layout": each.run.layout}
            record |= present.identity(each)
            for file in (Path(each.file), Path(each.run.folder, "sessions", "s.json")):
                write_json(file, record, durable=False)
        again = runs_left_of(plan_session(Experiment(after, "e.yaml")), present)
    return {each.file for each in again} & files


def test_a_request_says_who_the_run_is_and_how_it_trains():
    trained = {"epochs": 3, "validate": True, "save_model": True}
    published = put("variants.untuned", {"checkpoint_epochs": 1, "batch": {"rows": 7}})
    experiment = Experiment(matrix(put("workloads.virus-cnn", trained), published), "e.yaml")
    for run in experiment.runs + experiment.probe_runs("timeline"):
        request = json.loads(json.dumps(experiment.request(run)))
        assert Run(**{k: request[k] for k in run.names}) == run
        cut = {"epochs": 1, "validate": False, "save_model": False, "checkpoint_epochs": None}
        training = experiment.settings_of(run)["training"]
        assert training.items() >= (cut if run.instrument else trained).items()
        # Settings of one variant are not those of the next.
        assert training["batch"]["rows"] == (7 if run.variant == "untuned" else 32)
        assert request["training"].items() <= training.items()
        settings = experiment.settings["variants"][run.variant].items()
        variant = {
            key: value for key, value in settings if key not in ("batch", "checkpoint_epochs")
        }
        assert request["knobs"] == read_by_run(variant, run.strategy, run.workload)
        assert request["max_steps"] == (30 if run.instrument else None)


def test_another_configuration_measures_its_references_again_and_nothing_else():
    added = {"strategy": "horovod-mpi", "layouts": ["1x4"], "variants": ["tuned"]}
    after = matrix(put("configurations.3", added))
    assert changed(matrix(), after) == set()
    again = {f for f in requests(matrix()) if "/single/1x1/tuned/" in f}
    # Of timing runs, and of runs with clocks.
    assert measured_again(matrix(), after) == again and len(again) == 2 * (3 + 3)


@pytest.mark.parametrize(
    "change",
    [
        put("repeats", 4),
        put("title", "Another title"),
        put("datasets.f", SMALL["datasets"]["d"]),
        lambda settings: settings["configurations"].reverse(),
    ],
)
def test_what_does_not_bear_on_a_run_changes_no_request(change):
    assert changed(matrix(), matrix(change)) == set()


def test_training_settings_knobs_and_steps_change_the_runs_that_use_them():
    everything = set(requests(matrix()))
    assert changed(matrix(), matrix(put("workloads.virus-cnn.seed", 1))) == everything
    plain = matrix(put("variants.untuned.sparse_as_dense", True))
    assert measured_again(matrix(), plain) == {f for f in everything if "/untuned/" in f}
    longer = matrix(put("timeline", {"steps": 9}))
    assert changed(matrix(), longer) == {f for f in everything if "/timeline/" in f}


@pytest.mark.parametrize("change", [{"rate": "10mbit"}, {"steps": 10}])
def test_another_link_is_measured_again_with_the_reference_alongside_it(change):
    across = small(put("configurations.1.layouts", ["1x2", "2x1"]))
    another = copy.deepcopy(across)
    put("networks", {"native": change})(another)
    assert measured_again(across, another) == {
        file
        for file in requests(across)
        if ("/2x1/" in file or "/single/" in file)
        and not ("steps" in change and ("/timeline/" in file or "/clocks." in file))
    }


def with_threads(**reference: str) -> dict:
    """Return an experiment whose second reference is one process with two cores."""
    single = {"strategy": "single", "layout": "1x1"}
    return small(
        put("variants", {"tuned": {}, "threads": {"cores_per_process": 2}}),
        put("configurations.1.variants", ["tuned"]),
        put("references", [single | {"variant": v} for v in ("tuned", "threads")]),
        lambda settings: settings["references"][1].update(reference),
    )


def test_configurations_are_compared_with_the_references_named_whatever_their_variant():
    experiment = Experiment(with_threads(), "e.yaml")
    every = {str(run.configuration) for run in experiment.runs}
    assert every == {"single 1x1 tuned", "single 1x1 threads", "horovod-mpi 1x2 tuned"}
    pairs = {
        frozenset((str(run.configuration), str(other.configuration)))
        for run in experiment.runs
        for other in experiment.references_of(run)
    }
    assert pairs == set(map(frozenset, itertools.combinations(every, 2)))


def test_a_reference_that_changes_is_measured_again_with_all_that_is_compared_with_it():
    probes = {name: {"enabled": True} for name in ("clocks", "resources", "timeline")}
    other = with_threads() | probes
    other["variants"]["threads"]["threads"] = {"inter_op": 1}
    again = measured_again(with_threads() | probes, other)
    compared = {f"{before}rep{n}" for before in ("", "clocks.") for n in (1, 2, 3)}
    assert again == {
        file for file in requests(other) if "/threads/" in file or file.split("/")[-2] in compared
    }


def test_results_belong_to_the_experiment_of_their_name(tmp_path):
    root = tmp_path
    (root / "experiments" / "virus").mkdir(parents=True)
    for path, name in (
        ("config.yaml", "demo"),
        ("experiments/virus/own.yaml", "own"),
        ("experiments/mine.yaml", "yours"),
    ):
        (root / path).write_text(yaml.safe_dump(small(put("experiment", name))))
    (root / "other.yaml").touch()
    (root / "escala-tried.yaml").write_text(yaml.safe_dump(small(put("experiment", "tried"))))
    # An older copy of it does not count, nor do other files of YAML.
    old = small(put("experiment", "tried"), put("repeats", 2))
    (root / "escala-a-copy.yaml").write_text(yaml.safe_dump(old))
    base = root / "experiments" / "virus" / "base.yaml"
    base.write_text("model:\n  experiment: base")
    assert load_by_name("tried", root).origin == str(root / "escala-tried.yaml")
    check_name("base", base, root)
    for name in ("demo", "own"):
        assert load_by_name(name, root).name == name
        with pytest.raises(InputError, match=f"to which results/{name} belongs"):
            check_name(name, root / "other.yaml", root)
    for name, reason in (
        ("base", "no such experiment.*use one of"),
        ("mine", r"differs from the file's name mine\.yaml.*write experiment: mine"),
        ("own", r"own\.yaml.*is also the name of"),
    ):
        if name == "own":
            (root / "experiments" / "own.yaml").write_text("experiment: own")
        with pytest.raises(InputError, match=reason):
            load_by_name(name, root)


def test_matches_follow_each_other_and_their_sides_take_turns():
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
    assert set(experiment.timed) == {*experiment.runs, *experiment.rung_runs}
    places = turns(experiment.timed)
    assert [places[run]["place"] for run in experiment.rung_runs[:4]] == [1, 2, 1, 2]
    files = [run.file for run in experiment.timed]
    assert len(set(files)) == len(files) > len(experiment.runs)
    names = ["d", "virus-cnn", "horovod-mpi", "1x2", "b", "native", 2, None]
    file = experiment.run(*names, "way-1").file
    assert file == "results/small/runs/d/virus-cnn/horovod-mpi/1x2/b/native/way-1.rep2/run.json"
    for match in ("way-ends", "way-3", None):
        with pytest.raises(InputError, match="not among the runs"):
            experiment.run(*names, match)
    with pytest.raises(InputError, match="timeline does not apply to it: A separate run"):
        experiment.run(*names[:2], "single", Layout(1, 1), "a", "native", None, "timeline")
    again = measured_again(laddered(), laddered(put("variants.b.autotune", False)))
    assert {file.split("/")[-2].partition(".")[0] for file in again} == {"way-1", "way-2"}
    assert len(again) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("make", "change", "where", "reason"),
    [
        (deciding, put("repeats.decide", False), "repeats.decide", "not among the values"),
        (deciding, put("repeats.at_most", 4), "repeats.at_most", "too small"),
        (deciding, put("repeats.at_most", 31), "repeats.at_most", "too large"),
        (deciding, put("repeats.minutes", 0), "repeats.minutes", "too small"),
        (deciding, put("question", "energy"), "question", "is not decided by the times"),
        (laddered, put("repeats", {"decide": True}), "repeats", "ladder"),
        (matrix, put("pilot", {"repeats": 6}), "pilot", "did you mean repeats"),
        (laddered, put("ladders.way.0.strategy", "single"), "ladders.way.0.layout", "one process"),
        (laddered, put("variants.b.batch", {"rows": 1, "per": "global"}),
         "variants.b.batch.rows", "some of the 2 ranks"),
        (laddered, put("ladders.way.2.variant", "a"), "ladders.way.2", "is already a rung"),
        (laddered, lambda s: s["ladders"]["way"].__delitem__(slice(1, 3)),
         "ladders.way", "too few"),
        (laddered, put("ladders.way.1.network", "slow"),
         "ladders.way.1.network", "no such network"),
        (laddered, put("workloads", {"majority": {}}), "ladders", "no workload is trained by"),
        (laddered, put("variants.c.busy_neighbours", [7]),
         "variants.c.busy_neighbours", "applies to rank 7, which no layout"),
    ],
)  # fmt: skip
def test_what_decides_nothing_and_what_is_no_ladder_is_refused(make, change, where, reason):
    error = refusal(make(change))
    assert error.where == f"e.yaml: {where}" and reason in str(error)


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


ONE = {"strategy": "single", "layout": "1x1", "variant": "one-core"}
THREADS = ONE | {"variant": "threads"}
ACROSS = {"strategy": "horovod-mpi", "layout": "2x1"}


@pytest.mark.parametrize(
    ("place", "references", "expected"),
    [
        ("horovod-mpi 1x2 tuned native", DEFAULT_REFERENCES, ["1: single 1x1 tuned"]),
        ("horovod-mpi 1x2 tuned native", [ONE, THREADS],
         ["1: single 1x1 one-core", "2: single 1x1 threads"]),
        ("single 1x1 threads native", [ONE, THREADS], ["1: single 1x1 one-core"]),
        ("horovod-gloo 2x1 fast slow", [ACROSS], ["1: horovod-mpi 2x1 fast slow"]),
        ("horovod-gloo 2x1 fast slow", [ACROSS | {"network": "quick", "variant": "plain"}],
         ["1: horovod-mpi 2x1 plain quick"]),
        # A reference of one node uses no network.
        ("horovod-mpi 2x1 tuned slow", [ONE | {"network": "slow"}], ["1: single 1x1 one-core"]),
        ("single 1x1 one-core native", [THREADS, ONE | {"network": "slow"}],
         ["1: single 1x1 threads"]),
        # Two references that come to the same are one.
        ("horovod-mpi 1x2 one-core native", [ONE, *DEFAULT_REFERENCES], ["1: single 1x1 one-core"]),
    ],
)  # fmt: skip
def test_a_configuration_is_compared_with_every_reference_before_it(place, references, expected):
    found = references_for(Configuration(*place.split()), references)
    assert [f"{number}: {reference}" for number, reference in found] == expected
