"""Bounds of programs hold a simulated truth, and say what they lack."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fixtures_runs import FakeExperiment
from hypothesis import given
from hypothesis import strategies as st

from escala.analysis.advice.document import Question, advise_from
from escala.analysis.advice.text import content
from escala.analysis.cost_model import predictions
from escala.analysis.cost_model.calibrating import Calibration
from escala.analysis.cost_model.calibration import parse
from escala.analysis.cost_model.programs import (
    compute_seconds,
    program_costs,
    step_bounds,
    sum_seconds,
)
from escala.analysis.cost_model.works import first_of_programs, plan_works, why_unbounded
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.experiment import Experiment
from escala.programs.program import HOOK
from escala.runtime.layout import Layout
from tests.programs import experiment_on

FIXED, OF_ROW, LATENCY, OF_BYTE = 2e-3, 1e-4, 5e-4, 1e-9
SIZES = (2**10, 2**16, 2**20, 2**24)


def program(noise=lambda: 1.0, **changed) -> dict:
    """Return what was measured of a program with a fixed part, a part by row, and one sum."""
    steps = [
        {"rows": rows, "seconds": [(FIXED + OF_ROW * rows) * noise() for _ in range(3)]}
        for rows in (24, 48, 96)
    ]
    times = [
        {"bytes": size, "seconds": [(LATENCY + OF_BYTE * size) * noise() for _ in range(3)]}
        for size in SIZES
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
    measured = program(lambda: float(np.exp(abs(rng.normal(0, 0.02)))))
    # Each repeat is as slow as the truth or slower, and the truth as slow as one of them.
    compute = np.median([compute_seconds(measured["steps"], n, rows) for n in range(3)])
    exchange = np.median(
        [sum_seconds(measured["exchanges"][0]["times"], n, 2**22) for n in range(3)]
    )
    compute = compute * contention * slowest
    truth = compute + exchange - overlap * min(compute, exchange)
    found = step_bounds(measured, "1x2", "native", 2 * rows, 2)
    low, high = found.step
    assert low <= truth * (1 + 1e-9) and truth <= high * (1 + 1e-9)
    # On a machine that is slower as a whole, the ratio stays where it is.
    slower = program(lambda: 3.0)
    as_fast = step_bounds(program(), "1x2", "native", 2 * rows, 2).ratio
    assert step_bounds(slower, "1x2", "native", 2 * rows, 2).ratio == pytest.approx(as_fast)


def test_one_process_has_the_time_of_its_rows():
    low, high = step_bounds(program(), "1x1", "native", 64, 1).step
    assert low == pytest.approx(FIXED + OF_ROW * 64) == high


@pytest.mark.parametrize(
    ("changed", "layout", "reason"),
    [
        ({"gradient_bytes": None}, "1x2", "bytes of its gradients are not known"),
        ({"unavailable": "its steps are not known"}, "1x2", "its steps are not known"),
        ({}, "1x4", "sums were not timed on 1x4"),
        ({"exchanges": [program()["exchanges"][0] | {"unavailable": "No module named mpi4py"}]},
         "1x2", "No module named mpi4py"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(changed, layout, reason):
    with pytest.raises(InputError, match=reason):
        step_bounds(program(**changed), layout, "native", 64, 2)


PROGRAM = "none train torch-ddp plain"


def calibrated(**changed):
    """Return a calibration of nothing but the program."""
    content = {
        "format": 2, "machine": {"cpu": "Example"}, "cores_per_node": 2, "core": None,
        "networks": {}, "collectives": [], "works": {},
        "programs": {PROGRAM: program(**changed)},
    }  # fmt: skip
    return parse(json.loads(json.dumps(content)))


def asked(layout: str) -> dict:
    return {
        "dataset": "none", "workload": "train", "strategy": "torch-ddp",
        "layout": Layout.parse(layout), "variant": "plain", "network": "native",
        "unavailable": None, "program": PROGRAM, "rows": 64, "cores": 1,
    }  # fmt: skip


def test_a_program_alone_is_a_calibration_and_has_bounds_of_an_epoch():
    [row] = predictions.rows(calibrated(), [asked("1x2")], {})
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
        [answer] = content(found)["answers"]
        return answer

    small, large = advised(2**16), advised(2**22)
    assert small["distribute"] and not large["distribute"]
    [two] = [each for each in large["options"] if each["layout"] == "1x2"]
    assert two["basis"] == "bounds"
    assert "torch-ddp 1x2 plain may pay or not: measure it" in large["answer"]
    low, high = step_bounds(program(), "1x2", "native", 64, 2).step
    assert two["seconds"]["low"] == pytest.approx(3 * 16 * low)
    assert two["seconds"]["high"] == pytest.approx(3 * 16 * high)
    assert two["ratio"]["low"] < 1 < two["ratio"]["high"]


def experiment(tmp_path: Path, name: str, command: str, **more) -> Experiment:
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
    base = experiment(tmp_path, "bounded", "python train.py {rows_of_rank} {epochs}")
    found = Calibration(base)
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


def test_a_program_of_one_size_is_refused_with_the_reason(tmp_path):
    base = experiment(tmp_path, "fixed", "python train.py")
    for run in first_of_programs(base):
        assert "neither {rows}" in why_unbounded(run)
    with pytest.raises(InputError, match=r"names \{rows\}"):
        Calibration(base)


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
    told = {
        "allreduce_1024": 0.001,
        "allreduce_65536": 0.002,
        "beside_copy": 1.2,
        "beside_count": 1,
    }
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
    low, high = step_bounds(each, "1x2", "native", 64, 2).step
    exchange = 0.001 + 0.001 * (4000 - 1024) / (65536 - 1024)
    assert low == pytest.approx(0.0032)
    assert high == pytest.approx(0.0032 * 1.2 * 1.75 / 1.5 + exchange)
