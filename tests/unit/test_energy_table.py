"""The table of energy, from made-up energy runs whose joules are known."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.analysis.statistics import (
    deviation_of_sessions,
    next_time_interval,
    ratio_interval,
)
from escala.analysis.verdicts import NO_VERDICT
from escala.core.files import read_json, write_json
from escala.record.schema import validate_run
from escala.report import tables
from escala.report.findings import section_findings
from escala.report.findings.context import Report
from tests.unit.fixtures_runs import FakeExperiment, changed
from tests.unit.pages import tabled

pytestmark = pytest.mark.usefixtures("few_resamples")

MODEL = {"power_model": {"node_watts": 40.0, "core_watts": 10.0}}


def device(name: str, joules: float, idle_watts: float | None = 0.0, used: bool | None = True):
    source = "nvml" if name.startswith("gpu") else "rapl"
    return {
        "device": name, "source": source, "joules": joules, "idle_watts": idle_watts,
        "used": used, "samples": 9,
    }  # fmt: skip


def add_energy(
    of: FakeExperiment, strategy: str, layout: str, seconds: float, *runs: list[dict] | str, **more
) -> list[Path]:
    """Add energy runs of a configuration: the devices of each, or the reason why there are none."""
    template = next(path for path in of.runs if f"/{strategy}/{layout}/" in str(path))
    files = []
    for repeat, devices in enumerate(runs, start=1):
        run = copy.deepcopy(read_json(template)) | {"instrument": "energy", "repeat": repeat}
        if isinstance(devices, str):
            run |= {"status": "unavailable", "reason": devices}
        else:
            run["epochs"] = [run["epochs"][0] | {"train_seconds": seconds}]
            run["seconds"]["train"] = seconds
            known = all(each["idle_watts"] is not None for each in devices)
            reason = None if known else "no time between the two moments"
            node = {"node": 0, "seconds": seconds, "idle_reason": reason, "devices": devices}
            run["energy"] = [node | more]
        validate_run(run)
        files.append(template.parents[1] / f"energy.rep{repeat}" / "run.json")
        write_json(files[-1], run)
    return files


def frames(of: FakeExperiment, files: list[Path], references=None, **settings):
    more = {"references": references} if references else {}
    return tabled(of, probe_files=files, probe_settings={"energy": settings}, **more)


def table(of: FakeExperiment, files: list[Path], references=None, **settings) -> pd.DataFrame:
    found = frames(of, files, references, **settings)
    tables.write(found, of.root / "tables")
    return found["energy"].set_index(["strategy", "layout", "basis"])


@pytest.fixture
def experiment(tmp_path) -> FakeExperiment:
    made = FakeExperiment(tmp_path).add_dataset()
    return made.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 6.0)


def test_the_table_has_the_form_of_the_published_one(tmp_path):
    """Cruz Varona 2021: MJ and energy × time relative to one GPU, without and with idle devices.

    The energies and speed-ups are his, and so are the expected ratios, which he rounded.
    """
    made = FakeExperiment(tmp_path).add_dataset()
    seconds, e, files = 1000.0, 1e6, []
    published = {
        ("single", "1x1"): (11.8, (8.48, 1.31, 1.31), 0, (8.48, 11.1, 86.7, 103.8)),
        ("mirrored", "1x1"): (1.0, (0.17, 1.0, 0.11), 1, (1.17, 1.28, 1, 1)),
        ("mirrored", "1x2"): (1 / 1.79, (0.15, 0.5, 0.5), 2, (1.15, 1.15, 0.56, 0.51)),
    }
    for names, (times, joules, gpus, _) in published.items():
        made.add(*names, 10.0)
        devices = [
            device(f"gpu{number - 1}" if number else "package-0", each * e, used=number <= gpus)
            for number, each in enumerate(joules)
        ]
        files += add_energy(made, *names, times * seconds, devices)
    found = table(made, files, references=[{"strategy": "mirrored", "layout": "1x1"}])
    for names, (*_, (used, every, edp_used, edp_every)) in published.items():
        for basis, total, edp in (("used", used, edp_used), ("all", every, edp_every)):
            row = found.loc[(*names, f"{basis} devices")]
            assert row["kind"] == "measured"
            assert row["joules_per_epoch"] == pytest.approx(total * e, rel=0.005)
            assert row["edp_ratio"] == pytest.approx(edp, rel=0.025)


def test_medians_ratios_and_intervals_are_those_of_plain_loops(experiment):
    random = np.random.default_rng(0)
    mine, theirs = random.uniform(500, 900, 5), random.uniform(800, 1200, 5)
    files = []
    for joules, *configuration in (
        (theirs, "single", "1x1", 10.0),
        (mine, "horovod-mpi", "1x2", 6.0),
    ):
        runs = ([device("package-0", j, 10.0), device("dram-0", 50.0, 2.0)] for j in joules)
        files += add_energy(experiment, *configuration, *runs)
    found = table(experiment, files, grams_co2_per_kwh=200.0)
    row, total = found.loc[("horovod-mpi", "1x2", "all devices")], np.median(mine) + 50
    assert row["joules_per_epoch"] == pytest.approx(total)
    assert row["joules_per_epoch_low"] == pytest.approx(mine.min() + 50)
    assert row["joules_per_epoch_high"] == pytest.approx(mine.max() + 50)
    assert row["watts"] == pytest.approx(total / 6)
    assert row["energy_delay_product"] == pytest.approx(total * 6)
    quotients = (mine + 50) / (theirs + 50)
    assert row["energy_ratio"] == pytest.approx(ratio_interval(quotients).estimate)
    product = next_time_interval(ratio_interval(quotients * 6 / 10), *deviation_of_sessions([]))
    assert row["edp_ratio_high"] == pytest.approx(product.high)
    assert row["verdict"] == NO_VERDICT
    assert (row["matches"], row["runs"], row["source"]) == (5, 5, "rapl")
    assert row["devices"] == "package-0;dram-0"
    assert row["grams_co2_per_epoch"] == pytest.approx(total / 3.6e6 * 200)
    above = found.loc[("horovod-mpi", "1x2", "above idle")]
    assert above["joules_per_epoch"] == pytest.approx(total - 12 * 6)
    reference = found.loc[("single", "1x1", "all devices")]
    assert (reference["energy_ratio"], reference["edp_ratio"]) == (1, 1)
    assert pd.isna(reference["energy_ratio_low"])
    timed = [read_json(path) for path in experiment.runs if "/1x2/" in str(path)]
    hours = [2 * sum(e["train_seconds"] for e in run["epochs"]) / 3 / 3600 for run in timed]
    assert row["core_hours_per_epoch"] == pytest.approx(np.median(hours))


def test_energy_that_was_not_measured_is_unavailable_and_not_zero(experiment):
    """Its core-hours are known."""
    files = add_energy(experiment, "single", "1x1", 10.0, *["this node has no energy counters"] * 2)
    found = table(experiment, files)
    assert len(found) == 3 and set(found["kind"]) == {"unavailable"}
    reason = "rep 1, 2: unavailable (this node has no energy counters)"
    assert set(found["reason"]) == {reason} and set(found["runs"]) == {0}
    energy_columns = [
        n for n in found if n.startswith(("joules", "edp", "energy", "watts", "grams"))
    ]
    assert found[energy_columns].isna().all(axis=None)
    assert (found["core_hours_per_epoch"] > 0).all()


def test_the_users_model_estimates_what_was_not_measured(experiment):
    """Two cores of one node for six seconds, by the timing runs."""
    files = add_energy(experiment, "horovod-mpi", "1x2", 6.0, "no energy counters")
    found = table(experiment, files, **MODEL)
    row, above = (
        found.loc[("horovod-mpi", "1x2", basis)] for basis in ("all devices", "above idle")
    )
    assert (row["kind"], row["source"], row["runs"]) == ("estimated", "power_model", 3)
    assert row["reason"] == "rep 1: unavailable (no energy counters)"
    assert row["watts"] == pytest.approx(60) and above["watts"] == pytest.approx(20)
    assert row["joules_per_epoch"] == pytest.approx(60 * row["seconds_per_epoch"])
    assert pd.isna(row["devices"])
    reference = found.loc[("single", "1x1", "all devices")]
    assert (reference["kind"], reference["energy_ratio"]) == ("estimated", 1)
    assert row["energy_ratio"] == pytest.approx(0.6 * 60 / 50, rel=0.15)
    assert row["matches"] == 3


def test_an_estimate_is_not_compared_with_a_measurement(experiment):
    files = add_energy(experiment, "horovod-mpi", "1x2", 6.0, [device("package-0", 500.0)])
    row = table(experiment, files, **MODEL).loc[("horovod-mpi", "1x2", "all devices")]
    assert row["kind"] == "measured" and pd.isna(row["energy_ratio"])
    assert row["reason"] == "no ratio: the energy of the reference is of another source"


def test_a_basis_whose_quantity_is_not_known_is_unavailable_with_the_reason(experiment):
    devices = [device("node", 500.0, None), device("node/accel0", 70.0, None, used=None)]
    files = add_energy(experiment, "single", "1x1", 10.0, devices)
    found = table(experiment, files)
    assert found.loc[("single", "1x1", "all devices"), "joules_per_epoch"] == 570
    used, above = (found.loc[("single", "1x1", b)] for b in ("used devices", "above idle"))
    assert (used["kind"], above["kind"]) == ("unavailable", "unavailable")
    assert used["reason"] == "node/accel0: it is not known whether it computed"
    assert above["reason"].startswith("the idle power was not measured: no time")


@pytest.mark.parametrize(("accuracies", "epochs"), [((0.1, 0.96, 0.9), 2), ((0.1, 0.2, 0.3), None)])
def test_the_energy_to_a_score_counts_the_epochs_of_timing_runs(experiment, accuracies, epochs):
    for path in experiment.runs:
        done = zip(read_json(path)["epochs"], accuracies, strict=True)
        changed([path], epochs=[epoch | {"validation_accuracy": each} for epoch, each in done])
    files = add_energy(experiment, "single", "1x1", 10.0, [device("package-0", 100.0)])
    row = table(experiment, files).loc[("single", "1x1", "all devices")]
    joules = row["joules_to_target"]
    assert (None if pd.isna(joules) else joules) == (epochs and 100 * epochs)


def sentences(of: FakeExperiment, files: list[Path], **settings) -> list[str]:
    found = section_findings("cost", Report(frames(of, files, **settings), of.name))
    return [each.text for each in found if each.table == "energy"]


def test_a_sentence_compares_the_energy_with_that_of_the_reference(experiment):
    assert sentences(experiment, []) == []
    files = add_energy(experiment, "single", "1x1", 10.0, *[[device("package-0", 1000.0)]] * 2)
    both = [[device("package-0", joules)] for joules in (600.0, 800.0)]
    files += add_energy(experiment, "horovod-mpi", "1x2", 6.0, *both)
    [text] = sentences(experiment, files)
    assert "`horovod-mpi 1x2` takes 0.69 of the energy of an epoch of `single 1x1`" in text
    assert text.endswith(" (range 0.58–0.83, widened).")


def test_a_sentence_says_why_the_energy_is_unavailable_or_that_it_is_estimated(experiment):
    files = add_energy(experiment, "horovod-mpi", "1x2", 6.0, "no energy counters")
    [text] = sentences(experiment, files)
    assert text.endswith(" is unavailable: `rep 1: unavailable (no energy counters)`.")
    [text] = sentences(experiment, files, **MODEL)
    assert "is estimated to take 0." in text and "by the stated power model (range 0." in text
