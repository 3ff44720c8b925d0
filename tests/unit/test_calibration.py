"""Runs that calibrate are none of those that are predicted, and give back a known machine."""

from __future__ import annotations

import json
import re
import socket
import subprocess
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
from pages import table_of, tabled
from sentences import check

from escala.analysis import steps
from escala.analysis.advice import Question, advise_from
from escala.analysis.advice.text import content as advice_content
from escala.analysis.cost_model import predictions
from escala.analysis.cost_model.calibrating import CalibrationExperiment
from escala.analysis.cost_model.calibration import parse
from escala.analysis.cost_model.document import document
from escala.analysis.cost_model.predict import predict
from escala.analysis.cost_model.programs import (
    compute_seconds,
    program_costs,
    step_bounds,
    sum_seconds,
)
from escala.analysis.cost_model.transfers import traffic
from escala.analysis.cost_model.works import (
    Works,
    first_of_programs,
    first_repeats,
    plan_works,
    predictable,
    rows_to_calibrate,
    why_unbounded,
    why_unsupported,
)
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.experiment import Experiment, load
from escala.probes.collectives import OPERATIONS, SIZES
from escala.programs.program import HOOK
from escala.report import tables
from escala.report.findings import sure, write
from escala.report.findings.context import Report
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from tests.conftest import CLASSES, ROOT
from tests.programs import experiment_on

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

NAMES = ("dataset", "workload", "strategy", "layout", "variant", "network")
BY_STEPS = {"virus-cnn": SETTINGS["workloads"]["virus-cnn"]}


def experiment(**changes) -> Experiment:
    return Experiment(SETTINGS | changes, "small.yaml")


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


@pytest.mark.parametrize("changes", [{}, {"repeats": {"decide": True, "at_most": 9}}])
def test_what_calibrates_is_no_run_of_the_experiment(changes):
    base = experiment(**changes)
    requests = {run.file: base.request(run) for run in base.runs}
    settings = [json.dumps(base.settings_of(run), sort_keys=True) for run in base.runs]
    calibration = CalibrationExperiment(base)
    needed = calibration.runs_needed(links=True)
    assert {run.file: base.request(run) for run in base.runs} == requests
    for run in needed:
        names = [getattr(run, name) for name in NAMES]
        assert calibration.run(*names, run.repeat, run.instrument) == run
        assert run.file not in requests and calibration.references_of(run) == []
        assert json.dumps(calibration.settings_of(run), sort_keys=True) not in settings
    assert {run.repeat for run in needed if run.instrument is None} == {1, 2, 3}
    assert calibration.split_folder("small", 4) == base.split_folder("small", 4)
    assert len({run.file for run in needed}) == len(needed)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "file",
    [ROOT / "config.yaml", *sorted((ROOT / "experiments").rglob("*.yaml"))],
    ids=lambda path: path.stem,
)
def test_every_experiment_of_the_project_is_calibrated_or_says_why_not(file, monkeypatch):
    for name in ("ESCALA_TORCH", "ESCALA_MPI"):
        monkeypatch.setenv(name, sys.executable)
    base = load(file)
    several = any(STRATEGIES[run.strategy].library for run in predictable(base))
    if not several and not Works(base).program_works:
        with pytest.raises(InputError, match="several ranks"):
            CalibrationExperiment(base)
        return
    calibration = CalibrationExperiment(base)
    runs = calibration.runs_needed(links=True)
    assert runs and all(calibration.request(run) for run in runs)
    names = [*first_repeats(base), *first_of_programs(base)]
    assert len(plan_works(calibration)) == len(names)


def test_variants_of_one_computation_are_one_work_and_one_rank_alone_is_refused():
    found = CalibrationExperiment(experiment())
    assert {work.variant for work in found.different_works} == {"tuned", "fast"}
    names = ("small", "virus-cnn", "single")
    assert found.works[*names, "halved"] == found.works[*names, "tuned"]
    assert found.works[*names, "tuned"].rows == rows_to_calibrate({64, 32, 16})
    with pytest.raises(InputError, match="several ranks"):
        CalibrationExperiment(
            experiment(configurations=[{"strategy": "single", "layouts": ["1x1"]}])
        )


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
    root: Path,
    found: CalibrationExperiment,
    slower_clocks: float = 1.0,
    links: bool = False,
    **changes,
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
    found = CalibrationExperiment(experiment(**ON_ONE_NODE))
    content, left_out = document(write_runs(tmp_path, found))
    assert not left_out
    # The error of the model draws its medians a little aside.
    assert content["model_deviation"] == 0.05
    calibration = parse(content | {"model_deviation": 0.0})
    train_rows = 1000
    rows = {
        (row["strategy"], row["variant"]): row
        for row in predictions.predict_rows(calibration, plan_works(found), {"small": train_rows})
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
    found = CalibrationExperiment(base)
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
    rows = predictions.predict_rows(calibration, plan_works(found), {"small": 640})
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


def test_contention_and_drift_are_those_of_the_runs(tmp_path):
    """Runs of one node, and of two nodes over two links, each with ten rounds."""
    calibration = CalibrationExperiment(experiment())
    content, _ = document(write_runs(tmp_path / "same", calibration, links=True))
    for work in content["works"].values():
        expected: dict[tuple, int] = {}
        for each in work["exchanges"]:
            kind = each["library"], Layout.parse(each["layout"]).processes
            expected[kind] = expected.get(kind, 0) + len(each["seconds"])
        assert {processes for _, processes in expected} == {1, 2}
        rounds = {(each["library"], each["processes"]): len(each["ratios"])
                  for each in work["contention"]}  # fmt: skip
        assert rounds == expected
    works = sum("virus-cnn" in name for name in content["works"])
    assert content["drift"] == pytest.approx([1.0] * works) and works > 1
    slower, _ = document(write_runs(tmp_path / "slower", calibration, slower_clocks=1.5))
    assert slower["drift"] == pytest.approx([1.5] * works)
    parse(content)


def test_the_start_of_several_ranks_is_that_beyond_one_process(tmp_path):
    found = CalibrationExperiment(experiment(**ON_ONE_NODE))
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


def test_runs_that_failed_or_are_of_unlike_machines_are_named(tmp_path):
    calibration = CalibrationExperiment(experiment(**ON_ONE_NODE))
    failed = {"status": "failed", "reason": "no luck"}
    content, left_out = document(write_runs(tmp_path / "one", calibration, clocks=failed))
    assert "no luck" in left_out[0]
    [work] = content["works"].values()
    assert work["update_seconds"] is None and work["gradients"][0]["ready"] == 1
    for instrument in ("timing", "collectives"):
        with pytest.raises(InputError, match=r"no luck|none ended ok"):
            document(write_runs(tmp_path / instrument, calibration, **{instrument: failed}))
    sources = write_runs(tmp_path, calibration)
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
    found = CalibrationExperiment(base)
    content, _ = document(write_runs(tmp_path, found))
    rows = list(predictions.predict_rows(parse(content), plan_works(found), {"small": 640}))
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
    monkeypatch.setattr(
        predictions, "predict", lambda calibration, setup, draws: predict(calibration, setup, 20)
    )
    found = CalibrationExperiment(experiment(workloads=BY_STEPS, variants={"tuned": {}}))
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
    rows = list(
        predictions.predict_rows(parse(document(sources)[0]), plan_works(found), {"small": 640})
    )
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
        for each in plan_works(CalibrationExperiment(base))
    }
    assert found["horovod-mpi", "often"] == ["eager_limit_mib"]
    # Open "mpi" alone reads it.
    assert not found["horovod-mpi", "tuned"] and not found["horovod-gloo", "often"]


def test_predicted_times_stand_beside_measured_ones_of_the_same_machine(tmp_path):
    fake = three_configurations(tmp_path)
    [machine] = read_json(fake.runs[0])["ranks"]["machines"]
    names = {tuple(read_json(path)[name] for name in NAMES) for path in fake.runs}
    ends = {"": 4.0, "_low": 0.01, "_high": 99.0}
    rows = [
        dict(zip(NAMES, each, strict=True))
        | {"ranks": 1, "basis": "predicted", "reason": None}
        | {f"predicted{end}_seconds_per_epoch": at for end, at in ends.items()}
        for each in sorted(names)[:2]
    ]
    file = tmp_path / "predictions.json"
    write_json(file, {"machine": machine, "configurations": rows})
    frames = tabled(fake, predictions_file=file)
    known = frames["configurations"].set_index(["strategy", "layout"])["train_seconds_per_epoch"]
    assert len(frames["predictions"]) == 2
    for row in frames["predictions"].itertuples():
        measured = known[row.strategy, row.layout]
        assert row.measured_seconds_per_epoch == measured
        assert row.error == pytest.approx(4.0 / measured - 1)
        assert row.covered == row.runs > 0
    report = Report(frames, "demo")
    sentences = list(write(sure.predictions, report, report))
    check(sentences)
    assert f"Of {frames['predictions']['runs'].sum()} runs" in sentences[0].text
    tables.write(frames, tmp_path / "tables")
    write_json(file, {"machine": machine | {"cores_total": 64}, "configurations": rows})
    other = table_of("predictions", fake, predictions_file=file)
    assert (other["runs"] == 0).all() and other["error"].isna().all()
    assert other["uncompared"].str.contains("different kinds of machines").all()


P_FIXED, OF_ROW, LATENCY, OF_BYTE = 2e-3, 1e-4, 5e-4, 1e-9
P_SIZES = (2**10, 2**16, 2**20, 2**24)


def of_program(noise=lambda: 1.0, **changed) -> dict:
    """Return what was measured of a program with a fixed part, a part by row, and one sum."""
    steps = [
        {"rows": rows, "seconds": [(P_FIXED + OF_ROW * rows) * noise() for _ in range(3)]}
        for rows in (24, 48, 96)
    ]
    times = [
        {"bytes": size, "seconds": [(LATENCY + OF_BYTE * size) * noise() for _ in range(3)]}
        for size in P_SIZES
    ]
    exchange = {"layout": "1x2", "network": "native", "unavailable": None, "times": times}
    return {
        "unavailable": None,
        "steps": steps,
        "epoch_rows": 1000,
        "gradient_bytes": 2**22,
        "exchanges": [exchange | {"contention": [1.05, 1.1, 0.99], "skew": 1.02}],
    } | changed


@given(
    st.floats(0, 1), st.floats(1, 1.1), st.floats(1, 1.02), st.integers(8, 200),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_the_truth_is_within_whatever_the_overlap(overlap, contention, slowest, rows, seed):
    rng = np.random.default_rng(seed)
    measured = of_program(lambda: float(np.exp(abs(rng.normal(0, 0.02)))))
    # Each repeat is as slow as the truth or slower, and the truth as slow as one of them.
    compute = np.median([compute_seconds(measured["steps"], n, rows) for n in range(3)])
    exchange = np.median(
        [sum_seconds(measured["exchanges"][0]["times"], n, 2**22) for n in range(3)]
    )
    compute = compute * contention * slowest
    truth = compute + exchange - overlap * min(compute, exchange)
    found = step_bounds(measured, Layout(1, 2), "native", 2 * rows)
    low, high = found.step
    assert low <= truth * (1 + 1e-9) and truth <= high * (1 + 1e-9)
    alone = step_bounds(of_program(), Layout(1, 1), "native", rows).step
    assert alone == pytest.approx((P_FIXED + OF_ROW * rows,) * 2)
    # Without noise: everything overlaps, or nothing does and the slowest rank is waited for.
    exact = step_bounds(of_program(), Layout(1, 2), "native", 2 * rows)
    one, sums = P_FIXED + OF_ROW * rows, LATENCY + OF_BYTE * 2**22
    assert exact.step == pytest.approx((max(one, sums), 1.1 * 1.02 * one + sums))
    # On a machine that is slower as a whole, the ratio stays where it is.
    slower = step_bounds(of_program(lambda: 3.0), Layout(1, 2), "native", 2 * rows)
    assert slower.ratio == pytest.approx(exact.ratio)


@pytest.mark.parametrize(
    ("changed", "layout", "reason"),
    [
        ({"gradient_bytes": None}, "1x2", "bytes of its gradients are not known"),
        ({"unavailable": "its steps are not known"}, "1x2", "its steps are not known"),
        ({}, "1x4", "sums were not timed on 1x4"),
        ({"exchanges": [of_program()["exchanges"][0] | {"unavailable": "No module named mpi4py"}]},
         "1x2", "No module named mpi4py"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(changed, layout, reason):
    with pytest.raises(InputError, match=reason):
        step_bounds(of_program(**changed), Layout.parse(layout), "native", 64)


PROGRAM = "none train torch-ddp plain"


def calibrated(**changed):
    """Return a calibration of nothing but the program."""
    advice_content = {
        "format": 2, "machine": {"cpu": "Example"}, "cores_per_node": 2, "core": None,
        "networks": {}, "collectives": [], "works": {},
        "programs": {PROGRAM: of_program(**changed)},
    }  # fmt: skip
    return parse(json.loads(json.dumps(advice_content)))


def asked(layout: str) -> dict:
    return {
        "dataset": "none", "workload": "train", "strategy": "torch-ddp",
        "layout": Layout.parse(layout), "variant": "plain", "network": "native",
        "unavailable": None, "program": PROGRAM, "rows": 64, "cores": 1,
    }  # fmt: skip


def test_a_program_alone_is_a_calibration_and_has_bounds_of_an_epoch():
    [row] = predictions.predict_rows(calibrated(), [asked("1x2")], {})
    assert (row["kind"], row["basis"]) == ("estimated", "bounds")
    assert row["predicted_low_seconds_per_epoch"] == pytest.approx(16 * row["step_low_seconds"])
    assert "predicted_seconds_per_epoch" not in row
    assert "bounds" in predictions.line(row)


def test_sums_are_told_by_two_processes_that_have_no_library(tmp_path):
    """As `processes` starts them; only the contention can be told then."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HOOK / "escala_collectives.py"), "none", "1024"],
            env={
                "PYTHONPATH": str(HOOK), "ESCALA_STEPS": str(tmp_path), "RANK": str(rank),
                "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            },
        )
        for rank in (0, 1)
    ]  # fmt: skip
    assert [each.wait(timeout=120) for each in ranks] == [0, 0]
    [told] = tmp_path.glob("*.jsonl")
    event, _, values = json.loads(told.read_text())
    assert event == "score" and {"beside_copy", "beside_count"} <= set(values)
    assert not any(re.match("allreduce", name) for name in values)
    assert all(0.5 < value < 20 for value in values.values())


def test_advice_takes_bounds_as_bounds():
    """Two ranks that surely take less are advised; those that may or may not are not."""

    def advised(size: int) -> dict:
        plans = {
            "experiment": "e", "configurations": [asked("1x1"), asked("1x2")], "memory_gib": 1,
            "workloads": {"train": {"epochs": 3, "validate": False}}, "power_model": None,
            "rows": {"none": {"train": None, "test": None}},
        }  # fmt: skip
        found = advise_from(calibrated(gradient_bytes=size), {"cpu": "Old"}, plans, Question())
        [answer] = advice_content(found)["answers"]
        return answer

    small, large = advised(2**16), advised(2**22)
    assert small["distribute"] and not large["distribute"]
    [two] = [each for each in large["options"] if each["layout"] == "1x2"]
    assert two["basis"] == "bounds"
    assert "torch-ddp 1x2 plain may pay or not: measure it" in large["answer"]
    low, high = step_bounds(of_program(), Layout(1, 2), "native", 64).step
    assert two["seconds"]["low"] == pytest.approx(3 * 16 * low)
    assert two["seconds"]["high"] == pytest.approx(3 * 16 * high)
    assert two["ratio"]["low"] < 1 < two["ratio"]["high"]


def experiment_of(tmp_path: Path, name: str, command: str, **more) -> Experiment:
    """Return an experiment of a program, under strategies with and without a library."""
    (tmp_path / "train.py").write_text("")
    program = {"command": command, "directory": str(tmp_path), "files": ["train.py"]}
    settings = experiment_on(
        "of-program",
        {name: program | {"epochs": 9, "batch": {"rows": 64, "per": "global"}} | more},
        repeats=2,
        variants={"plain": {}, "large": {"batch": {"rows": 256, "per": "rank"}}},
        networks={"native": {}, "slow": {"rate": "100mbit"}},
        configurations=[
            {"strategy": "torch-ddp", "layouts": ["1x1", "1x2", "2x1"]},
            {"strategy": "tf-config", "layouts": ["1x2"]},
        ],
        references=[{"strategy": "torch-ddp", "layout": "1x1"}],
    )
    return Experiment(settings, "of-program.yaml")


def test_a_program_is_calibrated_by_runs_that_are_not_predicted(tmp_path):
    fixed = experiment_of(tmp_path, "fixed", "python train.py")
    assert all("neither {rows}" in why_unbounded(run) for run in first_of_programs(fixed))
    with pytest.raises(InputError, match=r"names \{rows\}"):
        CalibrationExperiment(fixed)
    base = experiment_of(tmp_path, "bounded", "python train.py {rows_of_rank} {epochs}")
    found = CalibrationExperiment(base)
    needed = found.runs_needed(links=True)
    assert len(set(needed)) == len(needed)
    assert all(run.declared for run in needed), "they are runs of the calibration"
    steps = [run for run in needed if run.workload == "bounded"]
    rows = {found.settings_of(run)["training"]["batch"]["rows"] for run in steps}
    assert len(steps) == 2 * 3 * 3 and {run.layout for run in steps} == {"1x1"}
    assert not rows & {64, 32, 256} and min(rows) < 32 and max(rows) > 256
    assert {found.settings_of(run)["training"]["epochs"] for run in steps} == {3}
    sums = {(run.layout, run.network) for run in needed if run.workload == "bounded-sums-torch"}
    assert sums == {("1x2", "native"), ("2x1", "native"), ("2x1", "slow")}
    # Without links, layouts of several nodes are left out, and told of as not timed.
    local = {run.layout for run in found.runs_needed(links=False)}
    assert "2x1" not in local
    reasons = {each["strategy"]: each["unavailable"] for each in plan_works(found)}
    assert reasons["torch-ddp"] is None and "tf-config" in reasons["tf-config"]


def test_times_of_a_program_come_from_its_runs(tmp_path):
    """A run of one process takes steps of rows / 10 ms; one of the sums lost its library."""
    run = FakeExperiment(tmp_path).add("single", "1x1", 1.0, repeats=1).runs[0]
    files = {"steps": [], "sums": [[], []], "gradient_bytes": None}

    def add(part: list, number: int, change: dict) -> None:
        content = read_json(run)
        content |= {key: value for key, value in change.items() if key != "training"}
        content["training"] |= {**change.get("training", {})}
        path = tmp_path / f"{len(part)}-{number}" / "run.json"
        write_json(path, content)
        (path.parent / "ranks").mkdir()
        rows = "".join(f"2,{n},1,0.0,{0.001 * (1 + n % 2)}\n" for n in range(20))
        (path.parent / "ranks" / "rank0.steps.csv").write_text(
            f"epoch,step,rows,input_seconds,step_seconds\n{rows}"
        )
        part.append(str(path))

    for number, rows in enumerate((24, 48, 96) * 2):
        epoch = read_json(run)["epochs"][0] | {
            "epoch": 2, "steps": 10, "rows": 960, "train_seconds": 10 * rows / 10_000
        }  # fmt: skip
        training = {"global_batch": rows, "parameters": 1000}
        add(files["steps"], number, {"epochs": [epoch], "training": training})
    told = {"allreduce_1024": 0.001, "allreduce_65536": 0.002, "beside_copy": 1.2}
    told["beside_count"] = 1
    for number in (10, 11):
        two_ranks = {"layout": "1x2", "evaluation": {"rows": None, "scores": told}}
        add(files["sums"][0], number, two_ranks)
        failed = {"layout": "1x4", "status": "failed", "reason": "No module named mpi4py"}
        add(files["sums"][1], number + 10, failed)
    found, machines = program_costs({"p": files})
    [each] = found.values()
    assert len(machines) == 8 and each["unavailable"] is None
    assert each["gradient_bytes"] == 4000 and each["epoch_rows"] == 960
    assert each["steps"][0] == {"rows": 24, "seconds": pytest.approx([0.0024] * 2)}
    two, four = each["exchanges"]
    assert two["contention"] == [1.2, 1.2] and two["skew"] == pytest.approx(1.75 / 1.5)
    assert two["times"][1] == {"bytes": 65536, "seconds": [0.002, 0.002]}
    assert "mpi4py" in four["unavailable"]
    low, high = step_bounds(each, Layout(1, 2), "native", 64).step
    exchange = 0.001 + 0.001 * (4000 - 1024) / (65536 - 1024)
    assert low == pytest.approx(0.0032)
    assert high == pytest.approx(0.0032 * 1.2 * 1.75 / 1.5 + exchange)
