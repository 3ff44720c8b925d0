"""The advice is the least of the predictions, and what would pay pays."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from fixtures_runs import REFERENCES, changed, fair, three_configurations
from jsonschema import Draft202012Validator
from pages import tabled
from test_calibration import SETTINGS, experiment
from test_cost_model import PLAN, content

from escala import command
from escala.analysis.advice import Question, advise, advise_from, text
from escala.analysis.advice import measured as evidence
from escala.analysis.advice.candidates import (
    Candidate,
    ProcessMemory,
    Training,
    configuration_of,
    find_candidates,
)
from escala.analysis.advice.changes import BANDWIDTH, BATCH, RATIO, find_changes
from escala.analysis.advice.choice import CORE_HOURS, DEADLINE, ENERGY, Limits, Power, choose
from escala.analysis.advice.measured import Measured
from escala.analysis.best_use import best_uses
from escala.analysis.cost_model.calibrating import CalibrationExperiment
from escala.analysis.cost_model.calibration import Network, parse
from escala.analysis.cost_model.predict import predict
from escala.analysis.cost_model.works import Works, plans, with_rows
from escala.analysis.rates import DOES_NOT_LEARN, Learning
from escala.analysis.tables import dtypes
from escala.core.errors import InputError
from escala.core.files import read_json, read_schema, write_json
from escala.experiment.runs import Configuration
from escala.report import tables
from escala.report.findings.context import Report
from escala.runtime.layout import Layout
from tests.conftest import ROOT

SCHEMA = Draft202012Validator(read_schema(ROOT / "schemas" / "advice.schema.yaml"))
BASELINE = replace(PLAN, layout=Layout(1, 1))
FAST, SLOW_LINK = (40e-6, 1e-9), 200e6
EXACT = parse(content(link=FAST))
SLOW = replace(
    EXACT, networks=dict(EXACT.networks) | {"slow": Network("slow", SLOW_LINK, FAST[0], "")}
)
ACROSS = replace(PLAN, layout=Layout(2, 1), network="slow")
ROWS = {"train": 6400, "test": 1000}
EPOCHS = 3
STEPS = EPOCHS * ROWS["train"] // PLAN.rows
SINGLE = Configuration("single", "1x1", "tuned", "native")
_EXCHANGE = {
    "accumulation": 1,
    "bucket_cap_mb": None,
    "communication_hook": "none",
    "compression": "none",
    "dense_exchange": "allreduce",
    "sparse_as_dense": True,
}


def seconds(plan, of=EXACT) -> float:
    return float(np.median(predict(of, plan, draws=1).steps))


def planned(layout: str, network: str = "native", rows: int = PLAN.rows, **others) -> dict:
    several = layout != "1x1"
    names = Configuration(
        "horovod-mpi" if several else "single", Layout.parse(layout), "tuned", network
    )
    return {
        "dataset": "small",
        "workload": "cnn",
        **names._asdict(),
        "unavailable": None,
        "work": "cnn",
        "rows": rows,
        "library": "mpi" if several else None,
        "cores": 1,
        "bits_per_second": None,
        "exchange": _EXCHANGE,
        "other_knobs": [],
    } | others


def described(*layouts: dict, **others) -> dict:
    return {
        "experiment": "demo",
        "configurations": [planned("1x1"), *layouts],
        "workloads": {"cnn": {"epochs": EPOCHS, "validate": False}},
        "rows": {"small": ROWS},
        "memory_gib": 4,
        "power_model": None,
    } | others


PLANS = described(planned("1x2"), planned("2x1"))


def answers_of(advice) -> list[dict]:
    """Return the answers of an advice in the form of the schema."""
    found = json.loads(json.dumps(text.content(advice), allow_nan=False))
    SCHEMA.validate(found)
    return found["answers"]


def advice(of=EXACT, configurations=PLANS, memory=None, speedups=(), best_use=(), **question):
    """Return an advice, and its only answer in the form of the schema."""
    asked = Question(**question)
    measured = Measured(best_use, speedups, (), memory or {})
    found = advise_from(of, {"cpu": "Old"}, configurations, asked, measured, draws=20)
    [answer] = answers_of(found)
    return found, answer


def selected(answer: dict) -> str:
    return answer["selected"]["layout"]


def shown(found: dict) -> str:
    return "\n".join(text.lines(found))


def option(answer: dict, layout: str) -> dict:
    return next(each for each in answer["options"] if each["layout"] == layout)


def test_where_it_pays_the_fastest_is_advised_with_its_ratio():
    report, answer = advice()
    layouts = ("1x1", "1x2", "2x1")
    times = {each: seconds(replace(PLAN, layout=Layout.parse(each))) for each in layouts}
    quickest = min(times, key=times.get)
    part = times[quickest] / times["1x1"]
    assert part < RATIO and answer["distribute"] and selected(answer) == quickest
    best = option(answer, quickest)
    expected = {"ratio": part, "speedup": 1 / part, "efficiency": 1 / part / 2}
    for name, value in (expected | {"seconds": STEPS * times[quickest]}).items():
        assert best[name]["estimate"] == pytest.approx(value)
    amounts = [each["amount"]["estimate"] for each in answer["options"]]
    assert amounts == sorted(amounts) and not answer["changes"]
    assert f"horovod-mpi {quickest} tuned: {part:.2f} of the " in answer["answer"]
    assert "start of several ranks was not calibrated" in shown(report)
    # Of the rule of a study.
    for needed, verdict in ((0.6, "reaches"), (1.0, "does not reach")):
        rules = {"name": "a site", "efficiency": needed, "against": "doubling", "time": "steps"}
        report, _ = advice(configurations=described(planned("1x2"), rules=rules))
        assert f"which {verdict} the {needed:g} of the rule of a site." in shown(report)


def test_over_a_slow_link_it_is_advised_against_and_what_would_pay_is_named():
    report, answer = advice(SLOW, described(planned("2x1", "slow")))
    assert not answer["distribute"] and selected(answer) == "1x1"
    by_change = {each["change"]: each for each in answer["changes"]}
    bandwidth = by_change[BANDWIDTH]
    assert bandwidth["saves"] and bandwidth["value"] > SLOW_LINK
    for words in (
        f"saves 30% from about {bandwidth['value'] / 1e9:.2g} Gbit/s", "`compression: fp16`",
        "`dense_exchange: factors`", "#SBATCH --nodes=1",
    ):  # fmt: skip
        assert words in shown(report)
    factors = replace(ACROSS, exchange=replace(ACROSS.exchange, dense="factors"))
    expected = seconds(factors, SLOW) / seconds(BASELINE)
    assert by_change["factors"]["ratio"] == pytest.approx(expected)
    assert by_change["factors"]["saves"] == (expected <= RATIO)


def test_a_deadline_decides_between_fewest_core_hours_and_enough_of_them():
    _, free = advice()
    one, two = (option(free, each)["job_seconds"]["high"] for each in ("1x1", "1x2"))
    assert two < one
    late = advice(goal=DEADLINE, limits=Limits(seconds=1.01 * one))[1]
    assert selected(late) == "1x1" and not late["distribute"]
    between = {"goal": DEADLINE, "limits": Limits(seconds=(one + two) / 2)}
    answer = advice(**between)[1]
    assert selected(answer) in ("1x2", "2x1") and answer["distribute"]
    # The later start of several ranks counts, and leaves the time of the steps.
    start = {"library": "mpi", "network": "local", "layout": "1x2", "seconds": [one]}
    slow = advice(parse(content(link=FAST) | {"starts": [start]}), **between)[1]
    assert "may take" in option(slow, "1x2")["excluded"]
    assert option(slow, "1x2")["extrapolated_start"] == []
    [note] = option(slow, "2x1")["extrapolated_start"]
    assert "that of 1x2 stands" in note and not option(slow, "2x1")["extrapolated"]
    assert option(slow, "1x2")["seconds"] == option(free, "1x2")["seconds"]
    # Where nothing is in time, the shortest jobs are named.
    variants = [planned("1x2", variant=f"v{number}") for number in range(6)]
    limits = {"goal": DEADLINE, "limits": Limits(seconds=1)}
    none = advice(configurations=described(*variants), **limits)[1]
    assert "horovod-mpi 1x2 v0 " in none["answer"] and none["answer"].endswith("and 4 others.")
    assert all(each["excluded"] for each in none["options"])
    assert none["selected"] is none["distribute"] is None and not none["job_script"]


def test_several_ranks_never_need_fewer_core_hours_here():
    """A job is start, steps, evaluation of the test rows, and end."""
    _, answer = advice(goal=CORE_HOURS)
    assert selected(answer) == "1x1" and not answer["distribute"]
    for ranks in (1, 2):
        steps = STEPS * seconds(replace(PLAN, layout=Layout(1, ranks)))
        job = 7.0 + steps + ROWS["test"] / ranks * 1e-4 + 0.5
        found = option(answer, f"1x{ranks}")
        assert found["job_seconds"]["estimate"] == pytest.approx(job)
        assert found["amount"]["estimate"] == pytest.approx(ranks * job / 3600)


def test_energy_is_unavailable_unless_power_is_stated():
    report, answer = advice(goal=ENERGY)
    assert "no power is known" in answer["unavailable"] and answer["selected"] is None
    assert not answer["job_script"] and shown(report) and list(text.markdown(report))
    # Joules of a core-hour alone have the least energy where the core-hours are least.
    _, per_core = advice(goal=ENERGY, joules_per_core_hour=36e3)
    one = option(per_core, selected(per_core))
    assert one["layout"] == "1x1"
    assert one["amount"]["estimate"] == pytest.approx(10 * one["job_seconds"]["estimate"])
    # A node that takes much whether its cores work or not is used as shortly as possible.
    idle = PLANS | {"power_model": {"node_watts": 200, "core_watts": 1}}
    _, answer = advice(configurations=idle, goal=ENERGY)
    two = option(answer, selected(answer))
    assert two["layout"] == "1x2"
    assert two["amount"]["estimate"] == pytest.approx(202 * two["job_seconds"]["estimate"])


def test_limits_exclude_configurations():
    one_node = advice(limits=Limits(nodes=1))[1]
    assert selected(one_node) == "1x2" and "2 nodes" in option(one_node, "2x1")["excluded"]
    _, one_core = advice(limits=Limits(cores=1))
    assert selected(one_core) == "1x1" and one_core["nearest"] is None
    memory = {("small", "cnn", "tuned"): ProcessMemory(3 * 2**30, "measured in 1 run", True)}
    _, small = advice(memory=memory, limits=Limits(memory_bytes=4 * 2**30))
    assert selected(small) == "2x1" and "6.0 GiB" in option(small, "1x2")["excluded"]


def test_what_is_planned_is_predicted_by_network_and_rows_or_named():
    report, answer = advice(configurations=described(planned("1x2", rows=2 * PLAN.rows)))
    assert answer["rows"] == PLAN.rows and "`batch: {rows: 64, per: global}`" in shown(report)
    expected = seconds(replace(PLAN, layout=Layout(1, 2))) / seconds(BASELINE)
    assert option(answer, "1x2")["ratio"]["estimate"] == pytest.approx(expected)
    networks = described(planned("1x2"), planned("2x1"), planned("2x1", "slow"))
    answers = answers_of(advise_from(SLOW, {}, networks, Question(), draws=5))
    assert [each["network"] for each in answers] == ["native", "slow"]
    for answer in answers:
        layouts = {each["layout"]: each["network"] for each in answer["options"]}
        assert layouts.keys() == {"1x1", "1x2", "2x1"} and len(answer["options"]) == 3
        assert layouts["2x1"] == answer["network"]
    mirrored = planned("1x2", strategy="mirrored", unavailable="the model does not know mirrored")
    _, answer = advice(configurations=described(planned("1x2"), mirrored))
    [each] = answer["unpredicted"]
    assert (each["strategy"], each["reason"]) == ("mirrored", mirrored["unavailable"])
    several = described() | {"configurations": [planned("1x2")]}
    reason = advice(configurations=several)[1]["unavailable"]
    assert "no configuration of one rank is predicted" in reason
    assert "no deadline is given" in advice(goal=DEADLINE)[1]["unavailable"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"plans.json": "{"}, r"plans\.json.*is not JSON"),
        ({"plans.json": "[]"}, r"plans\.json.*keys are missing"),
        ({"plans.json": json.dumps(PLANS | {"rows": {}})}, "the rows of these datasets are"),
        ({"runs/rep1/run.json": "{}"}, r"tables.*holds no tables .*escala run report"),
        ({"calibration.json": None}, r"calibration\.json.*is missing"),
        ({"": None}, "is not a folder"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, files, message):
    for name, content_of in {"calibration.json": json.dumps(content(link=FAST)), **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if content_of is not None:
            (tmp_path / name).write_text(content_of)
        elif name:
            (tmp_path / name).unlink(missing_ok=True)
    if "runs/rep1/run.json" in files:
        (tmp_path / "calibration.json").unlink()
    with pytest.raises(InputError, match=message):
        advise(tmp_path / "none" if "" in files else tmp_path, Question())


def test_an_advantage_that_is_not_sure_is_no_reason_to_distribute():
    """Two ranks take 1 % less by the median, and the calibration varies by far more."""
    training = Training(ROWS["train"], EPOCHS, ROWS["test"])
    found, _ = find_candidates(EXACT, PLANS["configurations"], training, draws=200)
    one, two, _ = found
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, 200))
    two = replace(two, seconds=0.99 * one.seconds * noise)
    assert np.median(two.seconds) < np.median(one.seconds)
    choice = choose([one, two])
    assert not choice.distribute and choice.best.candidate is one
    assert choice.nearest.candidate is two
    assert choose([one, replace(two, seconds=0.5 * one.seconds)]).distribute
    # One that is sure is selected, also if another one has a lower median that is not.
    sure = replace(two, seconds=0.995 * one.seconds)
    assert choose([one, two, sure]).best.candidate is sure
    assert choose([one, two], ENERGY, power=Power(0, 1, "stated")).best.candidate is one


def test_the_cores_of_a_candidate_are_those_of_all_its_processes():
    setup = replace(PLAN, layout=Layout(2, 2), cores=3)
    assert Candidate(SINGLE, setup, 64, None, np.ones(1), np.ones(1)).cores == 12


def offered(plan, of) -> Candidate:
    steps = STEPS * predict(of, plan, draws=25).steps
    return Candidate(SINGLE, plan, plan.rows, of, steps, steps)


def change_of(name: str, plan, of, one=BASELINE, train_rows: int = 10_000):
    [found] = [
        each
        for each in find_changes([offered(plan, of)], offered(one, of), train_rows)
        if each.change == name
    ]
    return found


def test_the_rate_that_saves_is_the_least_one():
    found = change_of(BANDWIDTH, ACROSS, SLOW).value

    def ratio(rate: float) -> float:
        networks = dict(EXACT.networks) | {"slow": Network("slow", rate, FAST[0], "")}
        return seconds(ACROSS, replace(EXACT, networks=networks)) / seconds(BASELINE)

    assert ratio(found) <= RATIO * (1 + 1e-9) < ratio(found / 1.05)
    # Most of a step of few rows does not depend on them, and no link makes that shorter.
    few = change_of(BANDWIDTH, replace(ACROSS, rows=4), SLOW, replace(BASELINE, rows=4))
    assert few.value is None and few.ratio > RATIO and not few.saves


def test_the_rows_that_save_are_the_least_of_those_tried():
    calibrated = content(link=FAST)
    steps = calibrated["works"]["cnn"]["steps"]
    for rows in (128, 256, 512, 1024, 2048):
        steps.append(steps[0] | {"rows": rows, "seconds": [[4e-3 + 0.4e-3 * rows]] * 5})
    of = replace(parse(calibrated), networks=SLOW.networks)
    found = change_of(BATCH, ACROSS, of)

    def ratio(rows: int) -> float:
        return seconds(replace(ACROSS, rows=rows), of) / seconds(replace(BASELINE, rows=rows), of)

    rows = int(found.value)
    assert rows > 64
    assert found.ratio == pytest.approx(ratio(rows))
    assert found.ratio <= RATIO < ratio(rows // 2)
    assert not any("rows" in each for each in found.extrapolated)
    # Outside the calibrated rows the line continues, and this is noted.
    beyond = change_of(BATCH, ACROSS, SLOW)
    assert beyond.value == rows
    assert any("rows of a rank are outside" in each for each in beyond.extrapolated)
    # No step has more rows than an epoch.
    few = change_of(BATCH, ACROSS, of, train_rows=rows - 1)
    assert few.value is None and few.ratio > RATIO


def test_the_job_script_asks_for_what_is_needed_and_a_margin():
    measured = {("small", "cnn", "tuned"): ProcessMemory(10**9, "measured in 2 runs", True)}
    for memory, of_process in ((measured, 1.2 * 10**9), (None, 4 * 2**30)):
        _, answer = advice(memory=memory, partition="short")
        best = option(answer, selected(answer))
        script = "\n".join(answer["job_script"])
        lines = dict(re.findall(r"^#SBATCH --(\S+)=(\S+)$", script, re.M))
        assert lines["nodes"] == str(best["nodes"])
        assert lines["ntasks-per-node"] == str(best["processes"])
        assert lines["cpus-per-task"] == "1" and lines["partition"] == "short"
        needed, unit = of_process * best["processes"], lines["mem"][-1]
        assert needed <= int(lines["mem"][:-1]) * 2 ** (10 * ("KMGT".index(unit) + 1))
        assert int(lines["mem"][:-1]) * 2 ** (10 * ("KMGT".index(unit) + 1)) < needed + 2**20
        wanted = 1.25 * best["job_seconds"]["high"]
        assert wanted <= 60 * int(lines["time"]) < wanted + 60


def ratio(layout: str, estimate: float, low: float, high: float, verdict: str, /, **others) -> dict:
    """Return a row of the table `speedup` for a measured ratio to one process."""
    return {
        "dataset": "small",
        "workload": "cnn",
        **Configuration("horovod-mpi", layout, "tuned", "native")._asdict(),
        **{f"reference_{name}": value for name, value in SINGLE._asdict().items()},
        "global_batch": PLAN.rows,
        "reference_global_batch": PLAN.rows,
        "ratio": estimate,
        "ratio_low": low,
        "ratio_high": high,
        "matches": 7,
        "verdict": verdict,
        "basis": "epoch",
        "decides": True,
        "over_sessions": False,
        "sessions": 1,
    } | others


def test_a_measured_ratio_counts_before_a_prediction():
    """As in the lab: predicted and advised 0.56, alongside a measured 0.76 (0.69–1.16)."""
    _, before = advice()
    undecided = [ratio(each, 0.76, 0.69, 1.16, "not distinguishable") for each in ("1x2", "2x1")]
    report, answer = advice(speedups=undecided)
    assert before["distribute"] and not answer["distribute"] and selected(answer) == "1x1"
    two, old = option(answer, "1x2"), option(before, "1x2")
    assert two["basis"] == "measured" and two["contradiction"]
    ends = [two["ratio"][end] for end in ("estimate", "low", "high")]
    assert ends == pytest.approx([0.76, 0.69, 1.16], rel=0.02)
    assert two["predicted_ratio"] == pytest.approx(old["ratio"])
    assert "measured 0.76 (0.69–1.16) of the time of single 1x1 tuned" in shown(report)
    assert (two["verdict"], two["matches"]) == ("not distinguishable", 7)
    # The job takes longer by what the steps take longer.
    longer, steps = (
        two[name]["estimate"] - old[name]["estimate"] for name in ("job_seconds", "seconds")
    )
    assert longer == pytest.approx(steps)
    # The verdict decides and not the interval alone: the first is within the noise floor.
    for verdict, layout in (("not distinguishable", "1x1"), ("faster", "1x2")):
        near = [ratio("1x2", 0.97, 0.95, 0.99, verdict)]
        assert selected(advice(speedups=near, limits=Limits(nodes=1))[1]) == layout
    # A ratio to a configuration that was itself measured against one process.
    over = {"reference_strategy": "horovod-mpi", "reference_layout": "1x2"}
    first = ratio("1x2", 0.8, 0.79, 0.81, "faster")
    _, answer = advice(speedups=[first, ratio("2x1", 0.5, 0.49, 0.51, "faster", **over)])
    assert option(answer, "2x1")["ratio"]["estimate"] == pytest.approx(0.4, rel=0.02)


def timed(layout: str, per_epoch: float, **others) -> dict:
    """Return a row of the table `configurations`: a time of an epoch, within 1 % of it."""
    each = planned(layout)
    return {
        **{name: each[name] for name in ("dataset", "workload", *Configuration._fields)},
        "train_seconds_per_epoch": per_epoch,
        "train_low_seconds_per_epoch": 0.99 * per_epoch,
        "train_high_seconds_per_epoch": 1.01 * per_epoch,
        "total_train_seconds": EPOCHS * per_epoch,
        "wall_seconds": EPOCHS * per_epoch + 5,
        "oversubscribed": False,
    } | others


def advised_by_runs(
    *rows: dict, plans=PLANS, ratios=(), best_use=(), **question
) -> tuple[dict, dict]:
    asked, machine = Question(**question), {"cpu": "Old", "cores_available": 2}
    found = advise_from(None, machine, plans, asked, Measured(best_use, ratios, rows), 200)
    [answer] = answers_of(found)
    return found, answer


def test_without_a_calibration_the_advice_is_among_what_was_measured():
    rows = timed("1x1", 10.0), timed("1x2", 6.0)
    _, answer = advised_by_runs(*rows)
    assert not answer["distribute"] and option(answer, "1x2")["verdict"] == "no verdict"
    faster = [ratio("1x2", 0.6, 0.59, 0.61, "faster")]
    _, answer = advised_by_runs(*rows, ratios=faster)
    assert "horovod-mpi 1x2 tuned: 0.60 of the training time of" in answer["answer"]
    _, cheap = advised_by_runs(*rows, ratios=faster, goal=CORE_HOURS)
    assert selected(cheap) == "1x1" and option(cheap, "1x2")["verdict"] == "slower"
    two = option(answer, "1x2")
    assert (two["basis"], two["predicted_ratio"], two["contradiction"]) == ("measured", None, False)
    assert two["job_seconds"]["estimate"] == pytest.approx(EPOCHS * 6 + 5, rel=0.01)
    assert two["efficiency"]["estimate"] == pytest.approx(10 / 6 / 2, rel=0.01)
    [other] = answer["unpredicted"]
    assert other["layout"] == "2x1" and "nothing was calibrated" in other["reason"]
    assert not answer["changes"] and answer["repeats"] is None
    # The ratio of paired runs counts before that of times.
    wide = [ratio("1x2", 0.9, 0.7, 1.1, "not distinguishable")]
    _, answer = advised_by_runs(timed("1x1", 10.0), timed("1x2", 9.0), ratios=wide)
    assert selected(answer) == "1x1"
    assert option(answer, "1x2")["ratio"]["high"] == pytest.approx(1.1, rel=0.02)
    # With weak scaling an epoch of more ranks has more rows.
    weak = described(planned("1x2", epoch_rows=2 * ROWS["train"]))
    _, answer = advised_by_runs(*rows, plans=weak)
    assert option(answer, "1x2")["seconds"]["estimate"] == pytest.approx(EPOCHS * 3, rel=0.01)
    plans = described(planned("1x2", rows=2 * PLAN.rows))
    _, answer = advised_by_runs(*rows, plans=plans)
    assert selected(answer) == "1x1"
    assert "makes other updates" in answer["unpredicted"][0]["reason"]


def write_table(folder: Path, name: str, *rows: dict) -> None:
    """Write rows of a table with all its columns."""
    (folder / "tables").mkdir(exist_ok=True)
    table = pd.DataFrame(list(rows), columns=list(dtypes(name)))
    table.to_csv(folder / "tables" / f"{name}.csv", index=False)


def test_tables_of_an_experiment_are_read_as_text_and_without_shared_cores(tmp_path):
    """A variant 16 and a dataset 1000 are no numbers."""
    names = {"dataset": "1000", "variant": "16"}
    plans = described(planned("1x2", **names)) | {"rows": {"1000": ROWS}}
    plans["configurations"] = [each | names for each in plans["configurations"]]
    shared = timed("2x1", 5.0, oversubscribed=True, **names)
    unknown = timed("1x4", 5.0, train_seconds_per_epoch=None, **names)
    rows = timed("1x1", 10.0, **names), timed("1x2", 6.0, **names), shared, unknown
    write_table(tmp_path, "configurations", *rows)
    speedup = ratio("1x2", 0.6, 0.55, 0.66, "faster", reference_variant="16", **names)
    write_table(tmp_path, "speedup", speedup)
    [answer] = answers_of(advise(tmp_path, Question(), plans=plans))
    assert answer["selected"]["layout"] == "1x2" and option(answer, "1x2")["matches"] == 7
    assert {each["layout"] for each in answer["options"]} == {"1x1", "1x2"}
    pd.DataFrame([timed("1x1", 10.0)]).to_csv(tmp_path / "tables/configurations.csv", index=False)
    with pytest.raises(InputError, match=r"configurations\.csv.*columns are missing.*make it"):
        advise(tmp_path, Question(), plans=PLANS)


THREADS = Configuration("single", "1x1", "threads", "native")
TWO = Configuration("horovod-mpi", "1x2", "tuned", "native")
#: Two processes, one process with two threads, one with one.
ON_TWO_CORES = described(planned("1x2"), planned("1x1", variant="threads", cores=2))


def best(names: Configuration, *alternatives: tuple, dataset="small") -> list:
    """Return a best use: an alternative is a configuration, its use, verdict, ratio and matches."""
    verdicts = [verdict for _, _, verdict, *_ in alternatives]
    tied = "not distinguishable"
    closest = verdicts.index(tied) if tied in verdicts else 0
    rows = [
        {
            "dataset": dataset, "workload": "cnn", "task": None, "label": str(names),
            **names._asdict(), "alternative_label": str(other),
            **{f"alternative_{name}": value for name, value in other._asdict().items()},
            "nodes": 1, "cores": 2, "gpus": 0, "alternative_nodes": 1, "alternative_cores": 1,
            "alternative_gpus": 0, "uses": uses, "verdict": verdict, "ratio_of": "steps",
            "ratio": found[0], "ratio_low": found[1], "ratio_high": found[2], "matches": matches,
            "needed": 6, "stays_disturbed": False, "sessions": 1, "over_sessions": False,
            "closest": place == closest,
        }
        for place, (other, uses, verdict, found, matches) in enumerate(alternatives)
    ]  # fmt: skip
    return best_uses(pd.DataFrame(rows), {})


def speedups_to_one(threads: tuple, two: tuple) -> list[dict]:
    names = {"strategy": "single", "layout": "1x1", "variant": "threads"}
    return [
        ratio("1x2", *two, "faster"),
        ratio("1x1", *threads, "faster", **names),
    ]


def test_two_measured_configurations_are_drawn_independently_or_compared_directly():
    """Ratios to one process alone do not decide between two processes and two threads."""
    rows = timed("1x1", 10.0), timed("1x2", 6.0), timed("1x1", 6.5, variant="threads")
    ratios = speedups_to_one((0.65, 0.60, 0.71), (0.60, 0.55, 0.66))
    _, answer = advised_by_runs(*rows, plans=ON_TWO_CORES, ratios=ratios)
    two = option(answer, "1x2")
    assert answer["baseline"]["variant"] == "threads"
    assert two["ratio"]["estimate"] == pytest.approx(0.92, abs=0.02)
    assert two["ratio"]["low"] < 0.86 and two["ratio"]["high"] > 0.99
    assert two["verdict"] == "not distinguishable" and two["matches"] is None
    direct = {f"reference_{name}": value for name, value in THREADS._asdict().items()}
    undecided, faster = ((0.98, 0.8, 1.2), "not distinguishable"), ((0.9, 0.85, 0.95), "faster")
    for ends, verdict in (undecided, faster):
        row = ratio("1x2", *ends, verdict, matches=8, **direct)
        _, answer = advised_by_runs(*rows, plans=ON_TWO_CORES, ratios=[*ratios, row])
        two = option(answer, "1x2")
        assert [*two["ratio"].values()] == pytest.approx(ends)
        assert (two["verdict"], two["matches"]) == (verdict, 8)
        assert answer["distribute"] == (verdict == "faster")


def test_too_few_paired_runs_replace_no_prediction_and_refuse_nothing():
    few = [ratio("1x2", 0.53, 0.52, 0.55, "no verdict", matches=4)]
    _, before = advice(limits=Limits(nodes=1))
    _, answer = advice(speedups=few, limits=Limits(nodes=1))
    two = option(answer, "1x2")
    assert two["basis"] == "predicted" and two["ratio"] == option(before, "1x2")["ratio"]
    assert answer["selected"] == before["selected"] and answer["distribute"]
    assert two["matches"] is None and answer["answer"] == before["answer"]
    # Without predictions it is all that is known, and decides nothing.
    rows = timed("1x1", 10.0), timed("1x2", 5.3)
    _, answer = advised_by_runs(*rows, ratios=few)
    two = option(answer, "1x2")
    assert (two["verdict"], two["matches"]) == ("no verdict", 4)
    assert [*two["ratio"].values()] == pytest.approx([0.53, 0.52, 0.55])
    assert "4 paired runs" in answer["answer"]
    use = best(TWO, (SINGLE, "less", "no verdict", (0.53, 0.52, 0.55), 4))
    _, answer = advised_by_runs(*rows, ratios=few, best_use=use)
    assert answer["selected"] is answer["distribute"] is None and not answer["job_script"]
    assert answer["best_use"]["layout"] == "1x2" and answer["best_use"]["verdict"] == "no verdict"
    assert "a verdict needs 5 paired runs" in answer["answer"]


TIE = "not distinguishable"


@pytest.mark.parametrize(
    ("names", "alternatives", "verdict", "chosen"),
    [
        (TWO, [(THREADS, "as much", "faster", 0.8), (SINGLE, "less", "faster", 0.6)], "pays", TWO),
        (TWO, [(THREADS, "as much", TIE, 0.98), (SINGLE, "less", "faster", 0.6)], "tied", TWO),
        (TWO, [(THREADS, "as much", "faster", 0.8), (SINGLE, "less", TIE, 0.97)], "tied", SINGLE),
        (SINGLE, [(THREADS, "more", "faster", 0.9), (TWO, "more", "faster", 0.8)],
         "more does not pay", SINGLE),
        (THREADS, [(TWO, "as much", "faster", 0.8), (SINGLE, "less", "faster", 0.6)],
         "pays", THREADS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_best_use_that_was_measured_is_what_is_advised(
    names, alternatives, verdict, chosen, calibrated
):
    """Whatever is predicted, and whatever other rows would say."""
    use = best(names, *(
        (other, uses, of, (value, 0.9 * value, 1.1 * value), 7)
        for other, uses, of, value in alternatives
    ))  # fmt: skip
    ratios = speedups_to_one((0.3, 0.29, 0.31), (0.9, 0.8, 1.0))
    rows = [timed("1x1", 9.0), timed("1x2", 7.0), timed("1x1", 8.0, variant="threads")]
    if calibrated:
        calibration = content(link=FAST)
        steps = calibration["works"]["cnn"]["steps"]
        steps += [each | {"cores": 2} for each in steps]
        measured = Measured(use, ratios, rows)
        report = advise_from(parse(calibration), {}, ON_TWO_CORES, Question(), measured, draws=20)
        [answer] = answers_of(report)
    else:
        report, answer = advised_by_runs(*rows, plans=ON_TWO_CORES, ratios=ratios, best_use=use)
    assert Configuration(*answer["selected"].values()) == chosen
    assert answer["best_use"]["verdict"] == verdict
    assert Configuration(*(answer["best_use"][name] for name in Configuration._fields)) == names
    assert answer["distribute"] == (chosen.layout != "1x1")
    # The sentence has the ratio that decides, and what to use.
    other = use[0].closest
    fraction = f"{other.ratio.value:.2f} of the training time of {other.label} "
    fraction += f"({other.ratio.low:.2f}–{other.ratio.high:.2f}; measured, 7 paired runs)"
    assert fraction in shown(report) and f"se {chosen}" in answer["answer"]


def test_a_best_use_holds_for_its_goal_and_limits_and_for_what_learns():
    use = best(TWO, (SINGLE, "less", "faster", (0.6, 0.5, 0.7), 7))
    rows = timed("1x1", 10.0), timed("1x2", 6.0)
    _, answer = advised_by_runs(*rows, best_use=use)
    assert selected(answer) == "1x2" and answer["best_use"]["verdict"] == "pays"
    _, answer = advised_by_runs(*rows, best_use=use, limits=Limits(cores=1))
    assert selected(answer) == "1x1" and answer["best_use"] is None
    assert advice(best_use=use, goal=CORE_HOURS)[1]["best_use"] is None
    unlearnt = [replace(use[0], learning=Learning(DOES_NOT_LEARN))]
    _, answer = advised_by_runs(*rows, best_use=unlearnt)
    assert answer["selected"] is None and answer["best_use"]["verdict"] == "not learnt"
    # The model does not know `mirrored`, which was measured.
    configurations = described(planned("1x2", strategy="mirrored", unavailable="not known"))
    mirrored = Configuration("mirrored", "1x2", "tuned", "native")
    use = best(mirrored, (SINGLE, "less", "faster", (0.6, 0.5, 0.7), 7))
    measured = Measured(use, (), [timed("1x1", 10.0), timed("1x2", 6.0, strategy="mirrored")])
    [answer] = answers_of(advise_from(EXACT, {}, configurations, Question(), measured, draws=20))
    assert answer["selected"]["strategy"] == "mirrored" and not answer["unpredicted"]


def test_plans_that_all_train_another_model_are_all_refused():
    plans = [planned(layout, knobs={"trained_module": "bare"}) for layout in ("1x2", "2x1")]
    offered, refused = find_candidates(EXACT, plans, Training(ROWS["train"], EPOCHS, 0), draws=2)
    assert (offered, len(refused)) == ([], 2)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"knobs": {"trained_module": "bare"}}, "trains another model"),
        ({"knobs": {"shard": False}}, "trains another model"),
        ({"knobs": {"weighting": "ranks"}}, "trains another model"),
        ({"learning_rate": 0.1}, "another learning rate"),
    ],
)
def test_what_trains_another_model_is_never_advised(more, reason):
    other = described(planned("1x2", variant="other", **more))
    _, answer = advice(configurations=other)
    [each] = answer["unpredicted"]
    assert selected(answer) == "1x1"
    assert each["variant"] == "other" and reason in each["reason"]
    rows = timed("1x1", 10.0), timed("1x2", 5.0, variant="other")
    _, answer = advised_by_runs(*rows, plans=other)
    assert selected(answer) == "1x1" and len(answer["options"]) == 1


def test_an_extrapolated_prediction_does_not_beat_what_was_measured_to_pay():
    configurations = described(planned("1x2"), planned("2x1", "infiniband-40gbit"))
    _, before = advice(configurations=configurations)
    assert selected(before) == "2x1" and option(before, "2x1")["basis"] == "extrapolated"
    predicted = option(before, "1x2")["ratio"]["estimate"]
    row = ratio("1x2", predicted + 0.1, predicted + 0.05, predicted + 0.15, "faster")
    use = best(TWO, (SINGLE, "less", "faster", (0.7, 0.65, 0.75), 7))
    for best_use in (), use:
        _, answer = advice(configurations=configurations, speedups=[row], best_use=best_use)
        assert selected(answer) == "1x2" and answer["passed_over"]["layout"] == "2x1"


@pytest.mark.parametrize(
    ("seconds", "repeats"),
    [
        ((5.6, 4.6, 3.9), 9),
        ((5.0, 6.0, 7.0), 9),
        ((5.0, 4.98, 4.96), 9),
        ((5.6, 4.6, 3.0), 3),
    ],
)
def test_page_and_advice_name_one_configuration_and_one_verdict(tmp_path, seconds, repeats):
    """From the tables of an experiment. `test_best_use` holds the page against its answers."""
    fake = fair(tmp_path, *seconds, repeats)
    frames = tabled(fake, references=REFERENCES)
    tables.write(frames, fake.folder / "tables")
    run = read_json(fake.runs[0])
    task = {name: run[name] for name in ("dataset", "workload")}
    rows = {"rows": run["training"]["global_batch"]}
    plans = ON_TWO_CORES | {
        "workloads": {run["workload"]: {"epochs": EPOCHS, "validate": False}},
        "rows": {run["dataset"]: ROWS},
        "configurations": [each | task | rows for each in ON_TWO_CORES["configurations"]],
    }
    found = advise(fake.folder, Question(), plans=plans)
    [answer] = answers_of(found)
    [use] = Report(frames).answers
    assert [*configuration_of(answer["best_use"])] == [*use.names[2:]]
    assert answer["best_use"]["verdict"] == use.verdict
    advised = None if use.advised is None else [*use.advised[2:]]
    assert (answer["selected"] and [*answer["selected"].values()]) == advised
    rival = next(
        each for each in answer["best_use"]["alternatives"]
        if configuration_of(each) == Configuration(*use.closest.names[2:])
    )  # fmt: skip
    row = use.closest.row
    assert (rival["estimate"], rival["matches"]) == (pytest.approx(row["ratio"]), row["matches"])


def test_more_ranks_than_predictions_were_checked_with_are_not_advised():
    configurations = described(planned("1x2"), planned("4x1"))
    _, answer = advice(configurations=configurations)
    four = option(answer, "4x1")
    assert four["ratio"]["low"] is None and four["verdict"] == "no verdict"
    assert four["ratio"]["estimate"] < option(answer, "1x2")["ratio"]["estimate"]
    assert selected(answer) == "1x2"
    assert "estimate without an interval" in "".join(four["extrapolated"])
    late = Limits(seconds=10 * four["job_seconds"]["estimate"])
    _, answer = advice(configurations=configurations, limits=late)
    assert "without an upper end" in option(answer, "4x1")["excluded"]


def test_a_ratio_of_another_machine_or_without_a_number_does_not_count(tmp_path):
    row = ratio("1x2", 0.8, 0.79, 0.81, "faster")
    write_table(tmp_path, "speedup", row, row | {"ratio_low": None})
    names = ("small", "cnn", "horovod-mpi", "1x2", "tuned", "native")
    run = read_json(three_configurations(tmp_path / "fake").runs[0])
    [machine] = run["ranks"]["machines"]
    file = (tmp_path / "runs").joinpath(*names, "rep1", "run.json")
    file.parent.mkdir(parents=True)
    write_json(file, run)
    for like in ({}, machine):
        [each] = evidence.read_measured(tmp_path, like).speedup
        assert each["ratio_low"] == pytest.approx(0.79)
    other = machine | {"cores_total": 2 * machine["cores_total"]}
    assert evidence.read_measured(tmp_path, other).speedup == []
    assert evidence.read_measured(tmp_path / "none", machine).speedup == []


def test_memory_is_that_of_the_largest_measured_process(tmp_path):
    fake = three_configurations(tmp_path)
    for source, used in zip((fake.runs[0], fake.runs[3]), (5, 7), strict=True):
        target = source.parents[1] / "resources" / "run.json"
        target.parent.mkdir()
        target.write_text(source.read_text())
        changed([target], resources=[{"rss_bytes_max": used}, {"rss_bytes_max": None}])
    run = read_json(fake.runs[0])
    names = run["dataset"], run["workload"], run["variant"]
    found = evidence.read_memory(fake.folder)
    assert found == {names: ProcessMemory(7, "measured in 2 runs", True)}
    assert evidence.memory_of(found, *names, 4) == found[names]
    known = {(*names[:2], "small"): ProcessMemory(5, "measured in 1 run", True)} | found
    other = evidence.memory_of(known, *names[:2], "other", 4)
    assert other.bytes == 7 and "another variant" in other.source
    asked = evidence.memory_of({}, *names, 4)
    assert asked.bytes == 4 * 2**30 and not asked.measured


def test_the_plans_of_an_experiment_have_all_its_configurations(tmp_path):
    file = tmp_path / "data" / "small" / "split4" / "dataset.json"
    write_json(file, {"rows": ROWS})
    made = json.loads(json.dumps(with_rows(plans(CalibrationExperiment(experiment())), [file])))
    assert made["rows"] == {"small": ROWS} and made["power_model"] is None
    assert made["workloads"] == {"virus-cnn": {"epochs": 2, "validate": True}}
    assert {each["layout"] for each in made["configurations"]} == {"1x1", "1x2", "2x1", "2x2"}
    # So has one of which nothing is predicted, which `CalibrationExperiment` refuses.
    alone = experiment(configurations=[{"strategy": "single", "layouts": ["1x1"]}])
    assert {each["layout"] for each in plans(Works(alone))["configurations"]} == {"1x1"}


def test_an_advice_without_plans_takes_those_of_a_file_wherever_it_is(tmp_path, monkeypatch):
    folder = Path("results/small")
    monkeypatch.chdir(tmp_path)
    folder.mkdir(parents=True)
    write_table(folder, "configurations", timed("1x1", 10.0))
    module, arguments = command.parse(["advise", str(folder)])
    with pytest.raises(InputError, match="no file here has this name") as refused:
        module.run(arguments)
    assert f"escala advise {folder} --experiment FILE" in refused.value.remedy
    for name, fails in (("other", True), ("small", False)):
        Path(f"mine-{name}.yaml").write_text(yaml.safe_dump(SETTINGS | {"experiment": name}))
        _, arguments = command.parse(["advise", str(folder), "-e", f"mine-{name}.yaml"])
        if fails:
            with pytest.raises(InputError, match="is the experiment other"):
                module.run(arguments)
    assert module._plans(folder, "mine-small.yaml")["workloads"]["virus-cnn"]["epochs"] == 2


def test_the_command_advises_from_the_files_of_an_experiment(tmp_path):
    folder = tmp_path / "results" / "demo"
    write_json(folder / "calibration.json", content(link=FAST))
    write_json(folder / "plans.json", PLANS)
    command = [sys.executable, "-m", "escala.command", "advise", str(folder), "--draws", "5"]
    outputs = ["--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md")]
    hours = ["--goal", CORE_HOURS]
    done = subprocess.run([*command, *outputs, *hours], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = read_json(tmp_path / "a.json")
    SCHEMA.validate(found)
    assert found["answers"][0]["answer"] in done.stdout
    assert found["answers"][0]["answer"] in (tmp_path / "a.md").read_text()
