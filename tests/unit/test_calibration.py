"""Runs that calibrate are none of those that are predicted, and give back a known machine."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import FakeExperiment, changed, three_configurations
from hypothesis import given
from hypothesis import strategies as st
from pages import tabled
from sentences import check

from escala.analysis import steps
from escala.analysis.cost_model import predictions
from escala.analysis.cost_model.calibrating import Calibration
from escala.analysis.cost_model.calibration import parse
from escala.analysis.cost_model.document import document
from escala.analysis.cost_model.exchange import Exchange
from escala.analysis.cost_model.predict import Setup, predict
from escala.analysis.cost_model.transfers import traffic
from escala.analysis.cost_model.works import (
    Works,
    first_of_programs,
    first_repeats,
    plan_works,
    predictable,
    rows_to_calibrate,
    variant_name,
    why_unsupported,
)
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.engines.costs import FACTORS
from escala.experiment import Experiment, load
from escala.probes.collectives import OPERATIONS, SIZES
from escala.report import tables
from escala.report.findings import sure, write
from escala.report.findings.context import Report
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from tests.conftest import CLASSES, ROOT

FILES = [ROOT / "config.yaml", *sorted((ROOT / "experiments").rglob("*.yaml"))]
SETTINGS = {
    "experiment": "small",
    "title": "A small experiment",
    "repeats": 2,
    "datasets": {
        "small": {
            "source": {"type": "simulated", "seed": 1, "records": dict.fromkeys(CLASSES, 200)},
            "classes": CLASSES,
            "length": 300,
            "split": {"seeds": [4]},
        }
    },
    "workloads": {
        "virus-cnn": {"epochs": 2, "batch": {"rows": 64, "per": "global"}, "validate": True},
        "kmer-logreg": {},
    },
    "variants": {
        "tuned": {},
        "halved": {"compression": "fp16"},
        "fast": {"convolution": "lookup-table"},
    },
    "networks": {"native": {}, "slow": {"rate": "100mbit"}},
    "configurations": [
        {"strategy": "single", "layouts": ["1x1"]},
        {"strategy": "horovod-mpi", "layouts": ["1x2", "2x1", "2x2"]},
        {"strategy": "horovod-gloo", "layouts": ["1x2"], "variants": ["tuned"]},
        {"strategy": "mirrored", "layouts": ["1x2"], "variants": ["tuned"]},
    ],
}

PILOT = {"repeats": 6, "half_width": "5 %", "at_most": 9}
NAMES = ("dataset", "workload", "strategy", "layout", "variant", "network")
BY_STEPS = {"virus-cnn": SETTINGS["workloads"]["virus-cnn"]}


def experiment(**changes) -> Experiment:
    return Experiment(SETTINGS | changes, "small.yaml")


# The runs that calibrate.


@given(st.sets(st.integers(1, 5000), min_size=1, max_size=6))
def test_calibrated_rows_surround_those_predicted_and_are_others(rows):
    found = rows_to_calibrate(rows)
    assert len(found) == 3 and list(found) == sorted(set(found))
    assert not rows & set(found)
    assert found[-1] > max(rows)
    assert found[0] < min(rows) or min(rows) <= 2
    limited = rows_to_calibrate(rows, most=100)
    assert len(set(limited)) == 3 and not rows & set(limited)
    assert limited[-1] <= 100 + len(rows) + 3


@pytest.mark.sweep
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_experiment_of_the_project_is_calibrated_or_says_why_not(file, monkeypatch):
    for name in ("ESCALA_TORCH", "ESCALA_MPI"):
        monkeypatch.setenv(name, sys.executable)
    base = load(file)
    program_works = Works(base).program_works
    if program_works or any(STRATEGIES[run.strategy].library for run in predictable(base)):
        found = Calibration(base)
        assert found.runs_needed(links=True)
        told = [*first_repeats(base), *first_of_programs(base)]
        assert len(plan_works(found)) == len(told)
        for run in found.runs_needed(links=True):
            assert found.request(run)
    else:
        with pytest.raises(InputError, match="several ranks"):
            Calibration(base)


@pytest.mark.parametrize("changes", [{}, {"repeats": 6, "pilot": PILOT}], ids=["alone", "pilot"])
def test_what_calibrates_is_no_run_of_the_experiment(changes):
    base = experiment(**changes)
    requests = {run.file: base.request(run) for run in base.runs}
    found = Calibration(base)
    needed = found.runs_needed(links=True)
    assert {run.file: base.request(run) for run in base.runs} == requests
    settings = [json.dumps(base.settings_of(run), sort_keys=True) for run in base.runs]
    for run in needed:
        names = [getattr(run, name) for name in NAMES]
        assert found.run(*names, run.repeat, run.instrument) == run
        assert run.file not in requests
        assert json.dumps(found.settings_of(run), sort_keys=True) not in settings
        assert found.references_of(run) == []
    assert {run.repeat for run in needed if run.instrument is None} == {1, 2, 3}
    assert found.split_folder("small", 4) == base.split_folder("small", 4)
    assert len({run.file for run in needed}) == len(needed)


def test_variants_of_one_computation_are_one_work_and_one_rank_alone_is_refused():
    found = Calibration(experiment())
    assert {work.variant for work in found.different_works} == {"tuned", "fast"}
    names = ("small", "virus-cnn", "single")
    assert found.works[*names, "halved"] == found.works[*names, "tuned"]
    assert found.works[*names, "tuned"].rows == rows_to_calibrate({64, 32, 16})
    with pytest.raises(InputError, match="several ranks"):
        Calibration(experiment(configurations=[{"strategy": "single", "layouts": ["1x1"]}]))


def test_collectives_are_timed_for_each_library_and_network():
    found = Calibration(experiment())
    on_links = {
        (run.strategy, run.layout, run.network)
        for run in found.collectives(links=True)
        if "tuned" in run.variant
    }
    assert on_links == {
        ("horovod-mpi", "1x2", "native"),
        ("horovod-gloo", "1x2", "native"),
        ("horovod-mpi", "2x1", "native"),
        ("horovod-mpi", "2x1", "slow"),
    }
    assert {run.layout for run in found.collectives(links=False)} == {"1x2"}


@pytest.mark.parametrize(
    ("variant", "strategy", "reason"),
    [
        ({}, "mirrored", "does not know how mirrored"),
        ({}, "hybrid", "by the speed"),
        ({"shard": False}, "horovod-mpi", "do not divide"),
        ({"slowdown": [2]}, "horovod-mpi", "on purpose"),
        ({"dense_exchange": "factors"}, "horovod-mpi", None),
        ({}, "ddp-gloo", None),
        ({"communication_hook": "shared-memory"}, "ddp-gloo", "in shared memory"),
        ({"communication_hook": "shared-memory"}, "horovod-mpi", None),
        ({}, "ddp-single", "does not know how ddp-single"),
        # Their engine records no parts of a step.
        ({}, "jax-single", "no run of jax-single"),
        ({}, "jax-gloo", "no run of jax-single"),
    ],
)
def test_what_the_model_does_not_know_is_not_predicted(variant, strategy, reason):
    layout = "1x1" if STRATEGIES[strategy].layouts.one_rank else "1x2"
    found = experiment(
        workloads=BY_STEPS,
        variants={"tuned": variant},
        configurations=[{"strategy": strategy, "layouts": [layout]}],
    )
    [run] = first_repeats(found)
    told = why_unsupported(run)
    assert told is None if reason is None else reason in told
    assert bool(predictable(found)) == (reason is None)


# The document, from files of a machine that is known.

#: Seconds of a message and of a byte, of a row and of a step without rows, and of an update. Two
#: processes at the same time take so many times longer.
MEMORY, FIXED, PER_ROW, UPDATE, BOTH = (2e-6, 0.5e-9), 4e-3, 0.4e-3, 2e-3, 1.25
WAIT, GRADIENT = 1e-3, (2000, 100)
#: Seconds that a step loses after its exchange.
BEYOND = 0.3e-3
#: How many times longer a step of PyTorch takes.
TORCH = 1.5


def seconds_of_step(rows: int, processes: int = 1) -> float:
    return (FIXED + PER_ROW * rows) * (BOTH if processes > 1 else 1)


def seconds_of_collective(operation: str, size: int) -> float:
    return WAIT + np.dot(MEMORY, traffic("mpi", operation, 2, size))


def write_runs(
    root: Path, found: Calibration, slower_clocks: float = 1.0, links: bool = False, **changes
) -> dict:
    """Write the files of the runs that calibrate, as a machine of known times leaves them.

    Steps with clocks are slower by a factor, and those of PyTorch by another.
    """
    fake = FakeExperiment(root / "fake").add_dataset().add("single", "1x1", 5.0, repeats=1)
    example = read_json(fake.runs[0])
    sources = found.sources(links)
    for run in found.runs_needed(links):
        layout, rows = Layout.parse(run.layout), int(run.variant.partition("-")[0][4:])
        content = example | {name: getattr(run, name) for name in (*NAMES, "repeat", "instrument")}
        content["training"] = example["training"] | {"rows_per_rank": rows}
        if run.instrument == "collectives":
            content["collectives"] = collectives(STRATEGIES[run.strategy].library)
        path = root / run.file
        write_json(path, content | changes.get(run.instrument or "timing", {}))
        for rank in range(layout.ranks):
            # A run of another day, whose steps are no reference of those of one process.
            factor = 1.0 if layout.ranks == 1 else 3.0
            if run.instrument == "clocks":
                factor = slower_clocks
            factor *= TORCH if run.strategy == "torch-single" else 1.0
            write_steps(path.parent / "ranks" / f"rank{rank}.steps.csv", rows, factor)
        if run.instrument == "clocks":
            clocks(rows).to_csv(path.parent / "ranks" / "rank0.clocks.csv", index=False)
    for each in found.different_works:
        gradient = {"name": "0.dense/kernel", "shape": list(GRADIENT), "factor_rows": 1}
        write_json(root / found.gradients_file(each), [gradient])
    return json.loads(json.dumps(sources).replace('"results/', f'"{root}/results/'))


def collectives(name: str = "mpi") -> dict:
    times = []
    for operation, size in product(OPERATIONS, SIZES):
        seconds = seconds_of_collective(operation, size)
        times.append({"operation": operation, "bytes": size, "seconds": [seconds] * 4})
    core = {"bytes_per_second": [8e9] * 3, "operations_per_second": [50e9] * 3}
    exchange = seconds_of_collective("allreduce", 4 * int(np.prod(GRADIENT))) + BEYOND
    rounds = {
        "contention": [BOTH, 9.0, *[BOTH] * 8],
        "exchange_seconds": [exchange, -9.0, *[exchange] * 8],
        "alone_seconds": [],
    }
    return {"library": name, "core": core, "times": times} | rounds


def write_steps(path: Path, rows: int, factor: float) -> None:
    """Write two epochs of three whole steps and one of a single row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seconds = factor * seconds_of_step(rows)
    steps = [
        (epoch, step, rows if step < 4 else 1, 0.25 * seconds, 0.75 * seconds, 1.0, 1.0)
        for epoch in (1, 2)
        for step in (1, 2, 3, 4)
    ]
    columns = ["epoch", "step", "rows", "input_seconds", "step_seconds", "loss_sum", "correct"]
    pd.DataFrame(steps, columns=columns).to_csv(path, index=False)


def clocks(rows: int) -> pd.DataFrame:
    """Clocks of six steps: of two gradients, one is known after a quarter of the computing."""
    computing = seconds_of_step(rows) - UPDATE
    moments_of_step = {
        ("gather_begins", ""): 0.0,
        ("gather_ends", ""): 0.001,
        ("gradient_ready", "1.bias"): computing / 4,
        ("gradient_ready", "0.dense/kernel"): computing,
        ("returned", ""): computing + UPDATE,
    }
    return pd.DataFrame(
        [
            (1, step, moment, tensor, 100.0 * step + at)
            for step in range(1, 7)
            for (moment, tensor), at in moments_of_step.items()
        ],
        columns=["epoch", "step", "moment", "tensor", "seconds"],
    )


#: Only layouts of one node, and two computations.
ON_ONE_NODE = {
    "configurations": [
        {"strategy": "single", "layouts": ["1x1"], "variants": ["tuned"]},
        {"strategy": "horovod-mpi", "layouts": ["1x2"], "variants": ["tuned", "halved"]},
        {"strategy": "mirrored", "layouts": ["1x2"], "variants": ["tuned"]},
    ]
}


def test_a_document_of_a_known_machine_predicts_its_times(tmp_path):
    found = Calibration(experiment(**ON_ONE_NODE))
    content, left_out = document(write_runs(tmp_path, found))
    assert not left_out
    # The error of the model draws its medians a little aside.
    assert content["model_deviation"] == 0.05
    calibration = parse(content | {"model_deviation": 0.0})
    train_rows = 1000
    rows = {
        (row["strategy"], row["variant"]): row
        for row in predictions.rows(calibration, plan_works(found), {"small": train_rows})
    }
    one, two, halved, mirrored = rows.values()
    assert mirrored["basis"] == "unavailable" and "mirrored" in mirrored["reason"]
    # 15 whole steps of 64 rows, and one of the 40 that are left.
    assert one["predicted_seconds_per_epoch"] == pytest.approx(
        15 * seconds_of_step(64) + seconds_of_step(40)
    )
    assert one["basis"] == two["basis"] == "predicted"
    computing = seconds_of_step(32, 2) - BOTH * UPDATE
    size = 4 * np.prod(GRADIENT)
    exchanged = seconds_of_collective("allreduce", int(size)) + BEYOND
    assert two["exchange_seconds"] == pytest.approx(exchanged, rel=1e-3)
    assert two["step_seconds"] == pytest.approx(computing + exchanged + BOTH * UPDATE, rel=1e-3)
    casts = 2 * np.prod(GRADIENT) * (4 + 2) / 8e9
    assert halved["exchange_seconds"] == pytest.approx(
        seconds_of_collective("allreduce", int(size / 2)) + casts + BEYOND, rel=1e-3
    )


def test_each_engine_is_calibrated_by_one_process_and_several_of_its_own(tmp_path):
    base = experiment(
        workloads=BY_STEPS,
        variants={"tuned": {}, "buckets": {"bucket_cap_mb": 0.1}},
        configurations=[
            {"strategy": "single", "layouts": ["1x1"], "variants": ["tuned"]},
            {"strategy": "horovod-mpi", "layouts": ["1x2"], "variants": ["tuned"]},
            {"strategy": "ddp-gloo", "layouts": ["1x2"]},
        ],
    )
    found = Calibration(base)
    # The size of buckets changes nothing of what one process computes.
    assert {work.name for work in found.different_works} == {
        "small virus-cnn tuned", "small virus-cnn torch-single tuned",
    }  # fmt: skip
    needed = found.runs_needed(links=False)
    assert {(run.strategy, run.layout, run.instrument) for run in needed} == {
        (strategy, layout, instrument)
        for alone, several in (("single", "horovod-mpi"), ("torch-single", "ddp-gloo"))
        for strategy, layout, instrument in (
            (alone, "1x1", None), (alone, "1x1", "clocks"), (several, "1x2", "collectives"),
        )
    }  # fmt: skip
    content, left_out = document(write_runs(tmp_path, found))
    assert not left_out
    calibration = parse(content | {"model_deviation": 0.0})
    rows = predictions.rows(calibration, plan_works(found), {"small": 640})
    by_names = {(row["strategy"], row["variant"]): row for row in rows}
    horovod, ddp = by_names["horovod-mpi", "tuned"], by_names["ddp-gloo", "tuned"]
    assert {row["basis"] for row in by_names.values()} == {"predicted"}
    for term in ("fixed", "compute"):
        # The clocks tell the same time of the update for both.
        name, update = f"{term}_seconds", UPDATE if term == "fixed" else 0.0
        assert ddp[name] + update == pytest.approx(TORCH * (horovod[name] + update))
    # The only gradient is known last, and one bucket.
    size = 4 * int(np.prod(GRADIENT))
    exchanged = seconds_of_collective("allreduce", size) + BEYOND
    assert ddp["exchange_seconds"] == pytest.approx(exchanged, rel=1e-3)


def test_contention_is_by_the_processes_of_a_node_over_all_networks(tmp_path):
    """Runs of one node, and of two nodes over two links, each with ten rounds."""
    found = Calibration(experiment())
    content, _ = document(write_runs(tmp_path, found, links=True))
    parse(content)
    for work in content["works"].values():
        expected: dict[tuple, int] = {}
        for each in work["exchanges"]:
            kind = each["library"], Layout.parse(each["layout"]).processes
            expected[kind] = expected.get(kind, 0) + len(each["seconds"])
        assert {processes for _, processes in expected} == {1, 2}
        assert {
            (each["library"], each["processes"]): len(each["ratios"]) for each in work["contention"]
        } == expected


def test_drift_is_that_of_runs_of_other_minutes(tmp_path):
    found = Calibration(experiment(workloads=BY_STEPS))
    works = len(found.different_works)
    content, _ = document(write_runs(tmp_path / "same", found))
    assert content["drift"] == pytest.approx([1.0] * works) and works > 1
    content, _ = document(write_runs(tmp_path / "slower", found, slower_clocks=1.5))
    assert content["drift"] == pytest.approx([1.5] * works)
    parse(content)


def test_the_start_of_several_ranks_is_that_beyond_one_process(tmp_path):
    found = Calibration(experiment(**ON_ONE_NODE))
    [run, *_] = document(write_runs(tmp_path, found))[0]["starts"]
    assert run == {"library": "mpi", "network": "local", "layout": "1x2", "seconds": [0.0]}
    file = Path(found.sources(links=False)["collectives"][0])
    run = read_json(tmp_path / file)
    seconds = run["seconds"]
    parts = {"startup": 1.5, "broadcast": 0.25, "build": 20.0}
    slower = seconds | {name: seconds.get(name, 0.0) + more for name, more in parts.items()}
    # Half a second is spent after the steps.
    wall = run["wall_seconds"] + sum(parts.values()) + 0.5
    changes = {"seconds": slower, "wall_seconds": wall}
    content, _ = document(write_runs(tmp_path / "slower", found, collectives=changes))
    assert content["starts"][0]["seconds"] == [pytest.approx(1.5 + 0.25 + 0.5)]


def test_variants_with_long_names_are_calibrated_each_by_itself():
    long = "a-name-that-is-as-long-as-a-name-of-a-variant-may-be-with-digit-"
    names = {variant_name(f"{long}{last}"[-64:], 32) for last in "12"}
    assert len(names) == 2 and all(len(name) <= 64 for name in names)
    assert variant_name("tuned", 32) == "rows32-tuned"


def test_a_run_that_failed_is_named_or_left_out(tmp_path):
    found = Calibration(experiment(**ON_ONE_NODE))
    failed = {"status": "failed", "reason": "no luck"}
    content, left_out = document(write_runs(tmp_path / "one", found, clocks=failed))
    assert "no luck" in left_out[0]
    [work] = content["works"].values()
    assert work["update_seconds"] is None and work["gradients"][0]["ready"] == 1
    for instrument in ("timing", "collectives"):
        with pytest.raises(InputError, match=r"no luck|none ended ok"):
            document(write_runs(tmp_path / instrument, found, **{instrument: failed}))


def test_runs_of_unlike_machines_are_refused(tmp_path):
    found = Calibration(experiment(**ON_ONE_NODE))
    sources = write_runs(tmp_path, found)
    file = Path(next(iter(sources["works"].values()))["steps"][0])
    run = read_json(file)
    [machine] = run["ranks"]["machines"]
    changed([file], ranks=run["ranks"] | {"machines": [machine | {"cores_total": 64}]})
    with pytest.raises(InputError, match="different kinds of machines"):
        document(sources)


def test_a_network_without_times_is_extrapolated_by_its_rate_or_unavailable(tmp_path):
    base = experiment(
        workloads=BY_STEPS,
        variants={"tuned": {}},
        configurations=[{"strategy": "horovod-mpi", "layouts": ["1x2", "2x1"]}],
    )
    found = Calibration(base)
    content, _ = document(write_runs(tmp_path, found))
    rows = list(predictions.rows(parse(content), plan_works(found), {"small": 640}))
    by_place = {(row["layout"], row["network"]): row for row in rows}
    assert by_place["1x2", "native"]["basis"] == "predicted"
    slow, native = (by_place["2x1", name] for name in ("slow", "native"))
    assert native["basis"] == "unavailable" and "was not calibrated" in native["reason"]
    assert slow["basis"] == "extrapolated" and "slow was not calibrated" in slow["reason"]
    # 800 000 bytes at 100 Mbit/s take 64 ms and more.
    assert slow["exchange_seconds"] > 0.064
    *lines, assumed = predictions.lines(rows)
    assert all(row["basis"] in line for row, line in zip(rows, lines, strict=True))
    assert assumed.startswith("Assumed in the intervals with several ranks")


def test_the_steps_of_rules_write_the_calibration_and_its_predictions(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ESCALA_STORE", "off")
    found = Calibration(experiment(workloads=BY_STEPS, variants={"tuned": {}}))
    sources, split = write_runs(tmp_path, found), tmp_path / "data/small/split4/dataset.json"
    write_json(split, {"rows": {"train": 640}})
    configurations = json.loads(json.dumps(plan_works(found), default=str))
    made = {name: tmp_path / f"{name}.json" for name in ("calibration", "times")}
    output = {"calibration": made["calibration"]}
    steps.calibrate(output, SimpleNamespace(sources=sources), files=[])
    assert read_json(made["calibration"]) == json.loads(json.dumps(document(sources)[0]))
    given = SimpleNamespace(configurations=configurations)
    of = {"calibration": made["calibration"], "datasets": [split]}
    steps.predict_times({"times": made["times"]}, given, **of)
    rows = list(predictions.rows(parse(document(sources)[0]), plan_works(found), {"small": 640}))
    assert read_json(made["times"])["configurations"] == json.loads(json.dumps(rows))
    capsys.readouterr()
    steps.predictions({}, given, made["times"])
    assert capsys.readouterr().out.splitlines() == list(predictions.lines(rows))


def test_knobs_of_collectives_that_were_calibrated_otherwise_are_named():
    base = experiment(
        workloads=BY_STEPS,
        variants={"tuned": {"eager_limit_mib": 8}, "often": {}},
        configurations=[
            {"strategy": "horovod-mpi", "layouts": ["1x2"]},
            {"strategy": "horovod-gloo", "layouts": ["1x2"]},
        ],
    )
    found = {
        (each["strategy"], each["variant"]): each["other_knobs"]
        for each in plan_works(Calibration(base))
    }
    assert found["horovod-mpi", "often"] == ["eager_limit_mib"]
    # Open "mpi" alone reads it.
    assert not found["horovod-mpi", "tuned"] and not found["horovod-gloo", "often"]


def test_exchanges_of_a_dense_layer_differ_in_nothing_else(tmp_path):
    """One process computes the same in both variants, so the exchange is all that differs."""
    batch = {"batch": {"rows": 32, "per": "global"}}
    base = experiment(
        workloads=BY_STEPS,
        variants={"sums": batch, "other": batch | {"dense_exchange": FACTORS}},
        configurations=[{"strategy": "horovod-mpi", "layouts": ["1x2"]}],
    )
    found = Calibration(base)
    assert len(found.different_works) == 1
    calibration = parse(document(write_runs(tmp_path, found))[0])
    rows = predictions.rows(calibration, plan_works(found), {"small": 640})
    by_name = {row["variant"]: row for row in rows}
    [work] = calibration.works
    expected = predict(calibration, Setup(work, Layout(1, 2), 32, exchange=Exchange(FACTORS)))
    row = by_name["other"]
    assert row["step_seconds"] == pytest.approx(np.median(expected.steps))
    assert row["predicted_seconds_per_epoch"] == pytest.approx(20 * row["step_seconds"])
    assert row["step_seconds"] != pytest.approx(by_name["sums"]["step_seconds"])
    assert row["basis"] == "predicted"


# Predicted alongside measured.


@pytest.fixture
def reported(tmp_path):
    """Tables of three configurations, of which two are predicted."""
    fake = three_configurations(tmp_path)
    run = read_json(fake.runs[0])
    seen = {tuple(read_json(path)[name] for name in NAMES) for path in fake.runs}
    ends = {"": 4.0, "_low": 0.01, "_high": 99.0}
    rows = [
        dict(zip(NAMES, each, strict=True))
        | {"ranks": 1, "basis": "predicted", "reason": None}
        | {f"predicted{end}_seconds_per_epoch": at for end, at in ends.items()}
        for each in sorted(seen)[:2]
    ]
    file = tmp_path / "predictions.json"

    def of(machine: dict) -> dict:
        write_json(file, {"machine": machine, "configurations": rows})
        return tabled(fake, predictions_file=file)

    return of, run["ranks"]["machines"][0]


def test_predicted_times_stand_beside_measured_ones(reported, tmp_path):
    of, machine = reported
    frames = of(machine)
    found = frames["predictions"]
    known = frames["configurations"].set_index(["strategy", "layout"])
    assert len(found) == 2 and (found["runs"] > 0).all()
    for row in found.itertuples():
        measured = known.loc[(row.strategy, row.layout), "train_seconds_per_epoch"]
        assert row.measured_seconds_per_epoch == measured
        assert row.error == pytest.approx(4.0 / measured - 1)
        assert row.covered == row.runs
    report = Report(frames, "demo")
    told = list(write(sure.predictions, report, report))
    check(told)
    assert f"Of {found['runs'].sum()} runs" in told[0].text
    tables.write(frames, tmp_path / "tables")


def test_times_of_another_kind_of_machine_are_not_compared(reported):
    of, machine = reported
    found = of(machine | {"cores_total": 64})["predictions"]
    assert (found["runs"] == 0).all() and found["error"].isna().all()
    assert found["uncompared"].str.contains("different kinds of machines").all()
