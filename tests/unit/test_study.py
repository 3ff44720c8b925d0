"""The document of a scaling study: its figures against made-up runs, and its forms."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from fixtures_runs import FakeExperiment
from pages import Parsed, drawn, tabled
from test_amdahl import rewritten
from test_experiment import SMALL
from test_scaling import as_weak

from escala.analysis.measurements import read_run
from escala.core import environment
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.experiment import load
from escala.record.schema import validate_run
from escala.report import study, tables
from escala.report.steps import JOB_SCRIPT, job_script
from escala.report.study import forms, statement
from escala.report.study.doublings import doublings, file_of

pytestmark = pytest.mark.usefixtures("few_resamples")

REPEATS = 6
#: Seconds of an epoch by layout; those of repeat n are n percent longer on every layout.
SECONDS = {"1x1": 12.0, "2x1": 7.0, "4x1": 5.0}


def rule(**more) -> dict:
    return {
        "name": "Site & Co", "efficiency": 0.75, "against": "baseline", "time": "run",
        "same_input": True,
    } | more  # fmt: skip


def settings(**more) -> dict:
    """Return the key `scaling` of an experiment, with its defaults."""
    return {
        "kind": "strong",
        "strategies": ["horovod-mpi"],
        "layouts": list(SECONDS),
        "rules": rule(),
        "planned_runs": 40,
        "margin": 0.5,
        "unit": {"name": "BU", "hours_of": "core", "per_hour": 2.0},
    } | more


def experiment(folder: Path, seconds: dict[str, float] = SECONDS, weak: bool = False, **named):
    """Return runs on one, two and four nodes, of three epochs and 14 s around them."""
    found = FakeExperiment(folder, **named).add_dataset()
    for layout, took in seconds.items():
        strategy = "single" if layout == "1x1" else "horovod-mpi"
        found.add(strategy, layout, took, repeats=REPEATS, rows=32)

        def simplify(run: dict, took: float = took) -> None:
            epoch_seconds = took * (1 + run["repeat"] / 100)
            for epoch in run["epochs"]:
                epoch["train_seconds"] = epoch_seconds
            train = 3 * epoch_seconds
            run["seconds"] |= {"train": train, "loading": 0.5, "checkpoint": 2.0}
            run |= {"wall_seconds": train + 14, "samples_per_second": 3 * 3150 / train}
            run["ranks"] |= {"oversubscribed": False, "hosts": ["n1", "n2"]}
            if weak:
                as_weak(run)

        rewritten(found.runs[-REPEATS:], simplify)
    return found


def table(found: FakeExperiment, **more) -> pd.DataFrame:
    made = tabled(found, scaling=settings(**more), only=["scaling"])
    return made["scaling"].set_index("layout", drop=False)


def test_speedups_and_efficiencies_are_those_of_the_times(tmp_path):
    rows = table(experiment(tmp_path))
    assert set(rows["baseline"]) == {"1x1"} and set(rows["study_strategy"]) == {"horovod-mpi"}
    middle = {layout: seconds * 1.035 for layout, seconds in SECONDS.items()}
    assert rows["seconds_per_epoch"].to_dict() == pytest.approx(middle)
    assert rows["speedup"].to_dict() == pytest.approx({"1x1": 1, "2x1": 12 / 7, "4x1": 12 / 5})
    assert rows["efficiency"].to_dict() == pytest.approx({"1x1": 1, "2x1": 6 / 7, "4x1": 3 / 5})
    assert np.isnan(rows.loc["1x1", "doubling_efficiency"])
    assert rows.loc["2x1", "doubling_efficiency"] == pytest.approx(12 / 7 / 2)
    # 7 s become 5 s: 1.4 times as fast, and the rule asks for 1.5.
    assert rows.loc["4x1", "doubling_efficiency"] == pytest.approx(7 / 5 / 2)
    # Whole runs take 14 s besides three epochs.
    whole = [[3 * seconds * (1 + n / 100) + 14 for n in range(1, 7)] for seconds in (12, 7, 5)]
    gains = [np.divide(whole[0], each) for each in whole[1:]]
    for layout, gain in zip(("2x1", "4x1"), gains, strict=True):
        assert gain.min() < rows.loc[layout, "whole_speedup"] < gain.max()
        ends = [rows.loc[layout, f"whole_speedup_{end}"] for end in ("low", "high")]
        # Another call may differ, by Student's 95 % of a deviation of 5 % with 11 degrees.
        within = np.abs(np.log([gain.min(), gain.max()] / rows.loc[layout, "whole_speedup"]))
        arms = np.hypot(within, 2.201 * 0.05)
        assert np.abs(np.log(ends / rows.loc[layout, "whole_speedup"])) == pytest.approx(
            arms, rel=1e-3
        )


#: What a rule asks for, the seconds of an epoch by size, and the verdicts of two and four nodes.
VERDICTS = [
    # 3 times as fast when quadrupling is 0.75 over the baseline, whatever the last doubling is.
    ({"time": "steps"}, {"1x1": 12.0, "2x1": 4.6, "4x1": 3.5}, ["passes", "passes"]),
    (
        {"time": "steps", "against": "doubling"},
        {"1x1": 12.0, "2x1": 4.6, "4x1": 3.5},
        ["passes", "fails"],
    ),
    # Each doubling passes, and four nodes are 2.9 times as fast.
    (
        {"time": "steps", "against": "doubling"},
        {"1x1": 12.0, "2x1": 7.0, "4x1": 4.1},
        ["passes", "passes"],
    ),
    ({"time": "steps"}, {"1x1": 12.0, "2x1": 7.0, "4x1": 4.1}, ["passes", "not decided"]),
    ({"time": "steps"}, {"1x1": 12.0, "2x1": 7.0, "4x1": 5.0}, ["passes", "fails"]),
    # 14 s of each whole run are divided by no size.
    ({}, {"1x1": 12.0, "2x1": 4.5, "4x1": 3.0}, ["passes", "fails"]),
    ({}, {"1x1": 1200.0, "2x1": 605.0, "4x1": 320.0}, ["passes", "passes"]),
    ({"against": "doubling"}, {"1x1": 1200.0, "2x1": 605.0, "4x1": 450.0}, ["passes", "fails"]),
    ({"efficiency": 0.5}, {"1x1": 12.0, "2x1": 6.0, "4x1": 1.5}, ["passes", "passes"]),
]


@pytest.mark.parametrize(("asked", "seconds", "verdicts"), VERDICTS)
def test_a_rule_judges_what_it_asks_for(tmp_path, asked, seconds, verdicts):
    rows = table(experiment(tmp_path, seconds), rules=rule(**asked))
    assert pd.isna(rows.loc["1x1", "passes"])
    assert rows.loc[["2x1", "4x1"], "passes"].to_list() == verdicts
    passing = [layout for layout in ("2x1", "4x1") if rows.loc[layout, "passes"] == "passes"]
    best = statement.largest_passing(rows)["layout"]
    assert best == (passing[-1] if verdicts[0] == "passes" else "1x1")


def test_csc_comes_without_a_rule_of_ones_own():
    from escala.experiment import Experiment

    scaling = {"kind": "strong", "strategies": ["horovod-mpi"], "layouts": list(SECONDS)}
    plain = {key: value for key, value in SMALL.items() if key != "configurations"}
    found = Experiment(plain | {"scaling": scaling}, "small.yaml").settings["scaling"]["rules"]
    assert found == rule(name="CSC Roihu (2026)")


@pytest.mark.parametrize(
    ("ends", "matches", "weak", "expected"),
    [
        ((0.80, 0.75, 0.90), 6, False, "passes"),
        ((0.70, 0.60, 0.749), 6, False, "fails"),
        ((0.746, 0.676, 0.819), 6, False, "not decided"),
        ((0.95, 0.74, 0.99), 12, False, "not decided"),
        ((0.95, 0.94, 0.96), 5, False, None),
        ((0.10, 0.09, 0.11), 5, False, None),
        ((0.95, 0.94, 0.96), 6, True, None),
        ((None, None, None), 6, False, None),
    ],
)
def test_a_verdict_is_by_the_whole_interval_of_six_pairs(ends, matches, weak, expected):
    from escala.analysis.statistics import Interval
    from escala.report.tables.scaling import verdict

    given = settings(kind="weak" if weak else "strong")
    found = verdict(Interval(*ends), matches, given)
    assert found["passes"] == expected
    assert (found["rule_reason"] is None) == (expected is not None)
    # A rule may be one of weak scaling.
    if weak:
        given["rules"] = rule(same_input=False)
        assert verdict(Interval(*ends), matches, given)["passes"] == "passes"


def noisy(folder: Path, at: dict[int, float], repeats: int = REPEATS) -> FakeExperiment:
    """Return runs in which two nodes take a factor more, by repeat, than 1/2 of one node."""
    found = experiment(folder, {"1x1": 1200.0, "2x1": 600.0, "4x1": 400.0})

    def change(run: dict) -> None:
        factor = at.get(run["repeat"], 1.0) if run["layout"] == "2x1" else 1.0
        for epoch in run["epochs"]:
            epoch["train_seconds"] *= factor
        run["seconds"]["train"] *= factor
        run["wall_seconds"] *= factor

    found.runs = [path for path in found.runs if int(path.parent.name[3:]) <= repeats]
    rewritten(found.runs, change)
    return found


def test_what_is_not_decided_says_so_with_its_interval_in_the_sentence(tmp_path):
    found = noisy(tmp_path, {1: 1.6, 2: 1.45, 3: 1.36, 4: 1.3, 5: 1.2, 6: 1.1})
    frames = tabled(found, scaling=settings())
    row = frames["scaling"].set_index("layout").loc["2x1"]
    assert row["rule_efficiency_low"] < 0.75 < row["rule_efficiency_high"]
    assert row["passes"] == "not decided"
    [series] = study.study(frames, "T", settings(), []).series
    ends = [f"{row[f'rule_efficiency{end}']:.3f}" for end in ("", "_low", "_high")]
    assert f"not decided, {ends[0]} ({ends[1]}–{ends[2]})" in series.statement
    assert "not decided" in series.tables["Time and efficiency"]["≥ 75%"].to_list()
    # Compute time is asked for the baseline, as nothing beyond it is decided to pass.
    assert statement.largest_passing(frames["scaling"])["layout"] == "1x1"


def test_below_six_paired_runs_there_is_no_sentence_to_paste(tmp_path):
    frames = tabled(noisy(tmp_path, {}, repeats=5), scaling=settings())
    assert frames["scaling"]["passes"].isna().all()
    [series] = study.study(frames, "T", settings(), []).series
    assert "there are 5" in series.statement and "s on one process" not in series.statement
    assert set(series.tables["Time and efficiency"]["≥ 75%"]) == {"baseline", "not judged"}


def test_weak_scaling_is_not_judged_by_a_rule_of_one_input(tmp_path):
    found = experiment(tmp_path, {"1x1": 4.0, "2x1": 4.0, "4x1": 4.0}, weak=True)
    rows = table(found, kind="weak")
    assert rows["passes"].isna().all() and rows.loc["4x1", "efficiency"] == pytest.approx(1)
    frames = tabled(found, scaling=settings(kind="weak"))
    [series] = study.study(frames, "T", settings(kind="weak"), []).series
    assert "does not judge weak scaling" in series.statement
    own = settings(kind="weak", rules=rule(same_input=False, time="steps"))
    assert table(found, **own).loc["4x1", "passes"] == "passes"


def shared(found: FakeExperiment, layout: str) -> FakeExperiment:
    """Let the processes of a layout share cores."""
    paths = [path for path in found.runs if path.parts[-5] == layout]
    rewritten(paths, lambda run: run["ranks"].update(oversubscribed=True))
    return found


@pytest.mark.parametrize("layout", ["1x1", "2x1", "4x1"])
def test_a_size_that_shares_cores_leaves_statement_and_figure(tmp_path, layout):
    from escala.report.figures import scaling

    frames = tabled(shared(experiment(tmp_path), layout), scaling=settings())
    rows = frames["scaling"].set_index("layout", drop=False)
    others = [each for each in SECONDS if each != layout]
    assert rows.loc[layout, "shares_cores"] and pd.isna(rows.loc[layout, "speedup"])
    assert pd.isna(rows.loc[layout, "passes"])
    assert set(rows["baseline"].dropna()) == {others[0]}
    assert layout not in set(rows["doubled_from"].dropna())
    [series] = study.study(frames, "T", settings(), []).series
    words = dict(zip(SECONDS, ["one process", "two processes", "four processes"], strict=True))
    assert words[layout] not in series.statement
    assert all(words[each] in series.statement for each in others)
    assert any(words[layout] in note and "shared" in note for note in series.notes)
    drawn_sizes = {float(x) for axes in scaling.draw(frames).axes for x in axes.get_xticks()}
    assert drawn_sizes == {float(rows.loc[each, "nodes"]) for each in others}


def in_the_lab(run: dict) -> None:
    run["ranks"]["emulated"] = True


def with_a_link(run: dict, **more) -> None:
    if run["layout"] != "1x1":
        link = {"interface": None, "rate": None, "mbit_per_second": 940.0, "latency_ms": 0.1}
        run["link"] = link | more


@pytest.mark.parametrize(
    ("change", "is_emulated"),
    [
        (lambda run: None, False),
        (in_the_lab, True),
        # Older files tell of the lab by how its links were measured.
        (with_a_link, True),
        (lambda run: with_a_link(run, measured_by="tcp"), False),
        (lambda run: with_a_link(run, mbit_per_second=None, latency_ms=None), False),
    ],
)
def test_an_emulated_cluster_is_named_in_the_first_sentence(tmp_path, change, is_emulated):
    found = experiment(tmp_path)
    rewritten(found.runs, change)
    document = study.study(tabled(found, scaling=settings()), "T", settings(), [])
    first = document.series[0].statement.split(". ")[0]
    figure = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    texts = [document.kind, first, "\n".join(list(study.markdown(document))[:3])]
    texts.append(Parsed(study.html(document, figure)).text_of("p")[0])
    assert [("emulated" in text) for text in texts] == [is_emulated] * len(texts)


def test_the_parts_of_a_whole_run_add_up(tmp_path):
    frames = tabled(experiment(tmp_path), scaling=settings())
    parts = [f"{part}_seconds" for part in (
        "set_up", "train", "validation", "checkpoint", "closing", "unaccounted",
    )]  # fmt: skip
    rows = frames["scaling"]
    assert rows[parts].sum(axis=1).to_list() == pytest.approx(rows["wall_seconds"].to_list())
    # Of 14 s besides the steps, these are in no part: the fixture says what the others take.
    inside = 3 * 0.65 + 2.0 + 0.7 + 0.2 + rows["set_up_seconds"]
    assert rows["unaccounted_seconds"].to_list() == pytest.approx(list(14 - inside))
    [series] = study.study(frames, "T", settings(), []).series
    cost = series.tables["What a run takes"]
    whole, *columns = (
        "whole run (s)", "set-up (s)", "steps (s)", "validation (s)", "checkpoints (s)",
        "test and saving (s)", "not accounted for (s)",
    )  # fmt: skip
    for row in cost.to_dict("records"):
        assert sum(float(row[name]) for name in columns) == pytest.approx(
            float(row[whole]), rel=0.01
        )


def test_what_is_unknown_of_a_run_is_in_the_rest(tmp_path):
    found = experiment(tmp_path)
    rewritten(found.runs, lambda run: run["seconds"].update(loading=None, evaluation=None))
    before, after = table(experiment(tmp_path / "other")), table(found)
    assert after["set_up_seconds"].isna().all() and after["closing_seconds"].isna().all()
    more = (after["unaccounted_seconds"] - before["unaccounted_seconds"]).to_list()
    assert more == pytest.approx([0.5 + 0.7] * 3)


def test_counts_of_nodes_and_the_shortest_run_are_checked(tmp_path):
    def notes(seconds: dict[str, float]) -> str:
        given = settings(layouts=list(seconds))
        folder = tmp_path / "-".join(seconds) / str(max(seconds.values()))
        frames = tabled(experiment(folder, seconds), scaling=given)
        return " ".join(study.study(frames, "T", given, []).series[0].notes)

    # Four layouts, of two counts of nodes.
    assert "counts of nodes at least; measured: 1 and 2." in notes(
        {"1x1": 12.0, "1x2": 7.0, "2x1": 7.0, "2x2": 5.0}
    )
    short, long = notes(SECONDS), notes({"1x1": 900.0, "2x1": 500.0, "4x1": 300.0})
    assert "counts of nodes" not in short and "counts of nodes" not in long
    least = 3 * 5 * 1.035 + 14
    assert f"on four processes on four nodes, takes {least:.1f} s" in short
    assert "shortest whole run" not in long


def test_gpu_hours_are_those_of_the_gpus_each_counted_once(tmp_path):
    found = experiment(tmp_path, {"1x1": 12.0, "2x2": 4.0})
    devices = {"1x1": [["GPU-a"]], "2x2": [["0"], ["0"], ["0"], ["0"]]}
    rewritten(found.runs, lambda run: run["ranks"].update(gpus=devices[run["layout"]]))
    given = settings(layouts=["1x1", "2x2"], unit={"name": "u", "hours_of": "gpu", "per_hour": 1})
    frames = tabled(found, scaling=given)
    rows = frames["scaling"].set_index("layout")
    # Two processes of each of two nodes share its GPU 0.
    assert rows["gpus"].to_dict() == {"1x1": 1, "2x2": 2}
    hours = rows["wall_seconds"] / 3600 * [1, 2]
    assert rows["gpu_hours"].to_list() == pytest.approx(list(hours))
    [series] = study.study(frames, "T", given, []).series
    assert f"and {hours['1x1']:.4f} GPU-hours;" in series.statement
    # Without a GPU nothing is asked for in hours of one.
    plain = tabled(experiment(tmp_path / "plain"), scaling=settings(unit=given["unit"]))
    [series] = study.study(plain, "T", settings(unit=given["unit"]), []).series
    assert "GPU-hours" not in series.statement and "are unavailable u." in series.statement


def test_whole_runs_of_other_epochs_are_not_compared(tmp_path):
    found = experiment(tmp_path)
    fewer = [path for path in found.runs if path.parts[-5] == "4x1"]
    rewritten(fewer, lambda run: run["training"].update(epochs_done=2, stopped_early=True))
    rows = table(found)
    assert np.isnan(rows.loc["4x1", "whole_speedup"]) and rows.loc["4x1", "speedup"] > 1
    assert pd.isna(rows.loc["4x1", "passes"]) and "epochs" in rows.loc["4x1", "rule_reason"]


def test_pairs_are_counted_and_not_the_runs_of_other_sessions(tmp_path):
    found = FakeExperiment(tmp_path).add_dataset()
    older = {"20250101T000000Z-1": 5.0}
    for strategy, layout, seconds in (("single", "1x1", 12.0), ("horovod-mpi", "2x1", 7.0)):
        found.add(strategy, layout, seconds, repeats=REPEATS, older=older)
    given = settings(layouts=["1x1", "2x1"])
    frames = tabled(found, scaling=given)
    assert frames["scaling"]["runs"].to_list() == [2 * REPEATS] * 2
    [series] = study.study(frames, "T", given, []).series
    assert f"with {REPEATS} paired runs of each" in series.statement


def test_four_times_the_cores_are_two_doublings(tmp_path):
    found = experiment(tmp_path, {"1x1": 12.0, "4x1": 5.0})
    rows = table(found)
    # Each of two doublings makes it √2.4 times as fast.
    assert rows.loc["4x1", "doubling_efficiency"] == pytest.approx((12 / 5) ** 0.5 / 2)
    assert rows.loc["4x1", "doubled_from"] == "1x1"


def test_the_smallest_layout_that_was_measured_is_the_baseline(tmp_path):
    found = experiment(tmp_path)

    def fail(run: dict) -> None:
        run |= {"status": "out-of-memory", "reason": "no memory", "epochs": []}
        run |= dict.fromkeys(("seconds", "step_seconds", "samples_per_second", "evaluation",
                              "weights_sha256"))  # fmt: skip

    rewritten(found.runs[:REPEATS], fail)
    rows = table(found)
    assert rows.loc["1x1", "kind"] == "unavailable"
    assert rows.loc[["2x1", "4x1"], "baseline"].to_list() == ["2x1", "2x1"]
    assert rows.loc["4x1", "speedup"] == pytest.approx(7 / 5)
    assert rows.loc["4x1", "efficiency"] == pytest.approx(7 / 5 / 2)
    frames = tabled(found, scaling=settings())
    [series] = study.study(frames, "T", settings(), []).series
    assert any(note.startswith("No time of one process: rep 1, 2") for note in series.notes)
    assert any("measured: 2 and 4." in note for note in series.notes)


def test_a_doubling_over_other_links_is_unknown_and_says_why(tmp_path):
    found = experiment(tmp_path)
    for layout, rate in {"2x1": 900.0, "4x1": 500.0}.items():
        paths = [path for path in found.runs if path.parts[-5] == layout]
        link = {"rate": "1gbit", "mbit_per_second": rate, "latency_ms": 0.1}
        rewritten(paths, lambda run, link=link: run.update(link=link))
    rows = table(found)
    assert rows.loc["4x1", "speedup"] == pytest.approx(12 / 5)
    assert np.isnan(rows.loc["4x1", "doubling_efficiency"])
    assert "500" in rows.loc["4x1", "gain_reason"] and pd.isna(rows.loc["2x1", "gain_reason"])
    doubling = table(found, rules=rule(against="doubling"))
    assert pd.isna(doubling.loc["4x1", "passes"]) and "500" in doubling.loc["4x1", "rule_reason"]
    [series] = study.study(tabled(found, scaling=settings()), "T", settings(), []).series
    assert any(rows.loc["4x1", "gain_reason"] in note for note in series.notes)


def test_weak_efficiency_and_its_doublings(tmp_path):
    found = experiment(tmp_path, {"1x1": 4.0, "2x1": 5.0, "4x1": 8.0}, weak=True)
    rows = table(found, kind="weak")
    assert rows["efficiency"].to_dict() == pytest.approx({"1x1": 1, "2x1": 4 / 5, "4x1": 4 / 8})
    assert rows["speedup"].to_dict() == pytest.approx({"1x1": 1, "2x1": 2 * 4 / 5, "4x1": 2})
    assert rows.loc["4x1", "doubling_efficiency"] == pytest.approx(5 / 8)
    frames = tabled(found, scaling=settings(kind="weak"))
    [series] = study.study(frames, "T", settings(kind="weak"), []).series
    assert "weak efficiency of 0.500" in series.statement
    assert "weak efficiency" in series.tables["Time and efficiency"].columns


def test_compute_time_is_that_of_the_planned_runs_with_a_margin(tmp_path):
    rows = table(experiment(tmp_path))
    wall = 3 * 7 * 1.035 + 14
    two = rows.loc["2x1"]
    assert two["wall_seconds"] == pytest.approx(wall)
    assert two["node_hours"] == two["core_hours"] == pytest.approx(2 * wall / 3600)
    assert two["gpu_hours"] == 0
    assert statement.units(two, settings()) == pytest.approx(2 * wall / 3600 * 2.0 * 40 * 1.5)
    # Start, loading, build, first step and prediction, broadcast.
    assert two["set_up_seconds"] == pytest.approx(3.1 + 0.5 + 0.4 + 2.5 + 0.3 + 0.1)


def sampled(found: FakeExperiment, layout: str, processes: list[tuple[int, int, float]]) -> Path:
    """Add a run whose resources were sampled.

    A process has its memory, what its node sent in a second, and its use of the processor.
    """
    same_layout = [path for path in found.runs if path.parts[-5] == layout]
    run = read_json(same_layout[0])
    keys = ("rss_bytes_max", "sent_bytes_per_second", "cpu_percent_mean")
    run |= {
        "instrument": "resources", "repeat": None,
        "resources": [
            {"rank": rank} | dict(zip(keys, values, strict=True))
            for rank, values in enumerate(processes)
        ],
    }  # fmt: skip
    path = same_layout[0].parent.with_name("resources") / "run.json"
    write_json(path, run)
    return path


def test_memory_and_bytes_are_those_of_the_node_with_the_most(tmp_path):
    found = experiment(tmp_path, {"1x1": 12.0, "2x2": 4.0})
    of_nodes = [(100, 9000, 90.0), (150, 9000, 80.0), (300, 6000, 100.0), (50, 6000, 50.0)]
    probed = [sampled(found, "1x1", [(120, 77, 99.0)]), sampled(found, "2x2", of_nodes)]
    epochs = read_json(probed[1])["epochs"]
    steps, seconds = (sum(epoch[key] for epoch in epochs) for key in ("steps", "train_seconds"))
    given = settings(layouts=["1x1", "2x2"])
    rows = tabled(found, probe_files=probed, scaling=given)["scaling"].set_index("layout")
    assert rows["node_memory_bytes"].to_dict() == {"1x1": 120, "2x2": 350}
    assert rows["core_percent"].to_dict() == {"1x1": 99.0, "2x2": 80.0}
    [series] = study.study(tabled(found, probe_files=probed, scaling=given), "T", given, []).series
    assert not any("resources" in note for note in series.notes)
    # One node sends nothing to others.
    assert np.isnan(rows.loc["1x1", "sent_bytes_per_step"])
    assert rows.loc["2x2", "sent_bytes_per_step"] == pytest.approx(9000 * seconds / steps)

    probed[0] = sampled(found, "1x1", [(None, None, None)])
    [series] = study.study(tabled(found, probe_files=probed, scaling=given), "T", given, []).series
    [note] = [note for note in series.notes if "resources" in note]
    assert note.startswith("An epoch of one process is too short") and "seconds: 0.05" in note


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[study.Study, dict[str, pd.DataFrame], Path]:
    folder = tmp_path_factory.mktemp("whole")
    found = experiment(folder)
    frames = tabled(found, scaling=settings())
    runs = [read_run(path) for path in found.runs]
    return study.study(frames, "Nodes | and <cores>", settings(), runs), frames, folder


def test_the_statement_has_what_a_reviewer_asks_for(whole):
    [series] = whole[0].series
    wall = 3 * 12 * 1.035 + 14
    for words in (
        "Strong scaling of training virus-cnn on demo-1000 with Horovod over MPI was measured with "
        "one process, two processes on two nodes and four processes on four nodes, "
        "with 6 paired runs of each, "
        "on Example CPU @ 2.00GHz with 2 cores a node, 2026-01.",
        "s on one process, the baseline, and 5.18",
        "a speed-up of 2.40",
        "4 times the cores, and an efficiency of 0.600",
        "The rule of Site & Co asks for an efficiency of whole runs of 75% over the baseline, 1.5 "
        "times the speed with twice the cores and 3 times with four times",
        "Two processes on two nodes: not decided, 0.717 (0.642–0.80",
        "four processes on four nodes: fails, 0.43",
        "No size is decided to pass beyond the baseline, one process.",
        f"A whole run on one process takes {wall:.1f} s, of which 6.50 s are before "
        "the training steps",
        f"40 such runs with a margin of 50% are {wall / 3600 * 120:.3g} BU",
    ):
        assert words in series.statement
    [verdict] = [name for name in series.tables["Time and efficiency"] if name.startswith("≥")]
    assert list(series.tables["Time and efficiency"][verdict]) == [
        "baseline",
        "not decided",
        "fails",
    ]
    about = dict(whole[0].about)
    assert about["hosts"] == "n1, n2" and about["date"] == "2026-01-01"
    assert "openmpi 1.0" in about["software"] and "parameters 2067181" in about["case: virus-cnn"]
    assert about["paired runs"] == "the two runs of a ratio on the same nodes, begun 0 s apart"


def test_the_interconnect_and_the_jobs_are_those_that_runs_record(tmp_path):
    found = experiment(tmp_path)
    runs = [*map(read_run, found.runs)]
    frames = tabled(found, scaling=settings())
    about = dict(study.study(frames, "T", settings(), runs).about)
    assert about["interconnect"] == (
        "interface lo, transport unavailable, rate unavailable, latency unavailable"
    )
    assert about["jobs"].startswith("none")
    for number, run in enumerate(runs):
        run["link"] = {"mbit_per_second": 940.0 + number % 3, "latency_ms": 0.05}
        run["ranks"]["transport"] = {"pml": "ob1", "btl": ["tcp"]}
        run["job"] = {"number": str(99 + number % 2), "slurm": "24.05", "exclusive": True}
    about = dict(study.study(frames, "T", settings(), runs).about)
    assert about["interconnect"] == (
        "interface lo, transport ob1/tcp, rate 941 Mbit/s, latency 0.05 ms"
    )
    assert about["jobs"] == "99, 100, SLURM 24.05, exclusive nodes"


def test_what_is_unavailable_says_so_and_names_the_remedy(whole):
    [series] = whole[0].series
    cost = series.tables["What a run takes"].set_index("layout")
    assert set(cost["memory of a node"]) == {"unavailable"}
    assert "GPU-hours" not in cost
    notes = " ".join(series.notes)
    assert "write resources: {enabled: true}" in notes
    assert "There are no predictions" in notes and "The data are simulated" in notes


def test_scores_and_what_lies_beyond_the_largest_size(whole):
    found, frames, _ = whole
    [series] = found.series
    further = series.tables["Scores, and predicted times"].set_index("layout")
    means = frames["mean_scores"].drop_duplicates(["layout", "score"]).set_index("layout")["mean"]
    for layout, name in (("2x1", "2x1"), ("1x1", "1x1 (single)")):
        assert further.loc[name, "accuracy"].startswith(f"{means[layout]:.3f} (")
    [law] = frames["amdahl"][frames["amdahl"]["layout"] == "4x1"].to_dict("records")
    assert law["extrapolated_times"] == 8
    expected = f"8 times the cores of one process are {law['extrapolated_speedup']:.3g}"
    start = "Beyond four processes on four nodes nothing"
    assert any(note.startswith(start) and expected in note for note in series.notes)


def test_predicted_times_stand_beside_the_measured_ones(whole):
    _, frames, _ = whole
    predicted = frames["scaling"].assign(
        predicted_seconds_per_epoch=[12.42, 9.0, 4.0],
        predicted_low_seconds_per_epoch=[12.0, 8.0, 3.0],
        predicted_high_seconds_per_epoch=[13.0, 10.0, 5.0],
    )
    [series] = study.study(frames | {"scaling": predicted}, "T", settings(), []).series
    further = series.tables["Scores, and predicted times"]
    assert further["predicted s per epoch"].iloc[1] == "9.00 (8.00–10.0)"
    assert further["predicted / measured"].iloc[0] == "1.00"
    assert not any("no predictions" in note for note in series.notes)


def test_the_forms_hold_the_same_tables(whole):
    found, frames, folder = whole
    figure = drawn(frames, folder, ["scaling"])["scaling"]
    page = Parsed(study.html(found, figure, ["tables/scaling.csv"]))
    assert not page.errors and page.text_of("h1") == ["Nodes | and <cores>"]
    rows = [row for table in found.series[0].tables.values() for row in table.to_numpy()]
    cells = [cell for row in rows for cell in row]
    assert page.text_of("td") == cells
    assert "tables/scaling.csv" in [each.get("href") for each in page.all("a")]
    lines = list(study.markdown(found))
    in_markdown = [line.strip("| ").split(" | ") for line in lines if line.startswith("| 1x1")]
    assert in_markdown == [list(row) for row in rows if row[0].startswith("1x1")]
    text = "\n".join(study.latex(found))
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == 3
    assert r"$\geq$ 75\%" in text and r"Site \& Co" not in text.split(r"\begin{table}", 1)[1]


def test_the_job_script_is_part_of_the_document(whole):
    found = whole[0]._replace(script="#SBATCH --nodes=4\nescala run <file>")
    figure = drawn(whole[1], whole[2], ["scaling"])["scaling"]
    page = Parsed(study.html(found, figure))
    assert page.text_of("pre") == [found.script]
    assert "#SBATCH --nodes=4" in list(study.markdown(found))
    assert not any("Job script" in line for line in study.markdown(whole[0]))
    # No line of it ends its fence.
    script = "echo a\n```\n````sh\necho b"
    lines = list(study.markdown(whole[0]._replace(script=script)))
    opened = next(place for place, line in enumerate(lines) if line.endswith("`bash"))
    fence = lines[opened].removesuffix("bash")
    assert lines[opened + 1 : lines.index(fence, opened)] == script.splitlines()


def test_the_job_script_names_no_folder_of_the_one_who_measured(tmp_path):
    file = tmp_path / JOB_SCRIPT
    assert job_script(file) is None
    file.write_text(
        '#SBATCH --chdir=/home/ada/escala\n#SBATCH "--chdir=/home/ada/an escala"\nexec x\n'
    )
    assert job_script(file) == '#SBATCH --chdir=.\n#SBATCH "--chdir=."\nexec x\n'


def test_the_figure_shows_the_ideal_and_what_was_measured(whole):
    from escala.report.figures import scaling

    figure = scaling.draw(whole[1])
    times, speedups = figure.axes
    lines = {
        axes: [np.asarray(line.get_ydata(), float) for line in axes.get_lines()]
        for axes in (times, speedups)
    }

    def shows(axes, values: list[float]) -> bool:
        return any(len(y) == 3 and np.allclose(y, values) for y in lines[axes])

    middle = 12 * 1.035
    assert shows(times, [middle, middle / 2, middle / 4]) and shows(speedups, [1, 2, 4])
    assert shows(times, [each * 1.035 for each in SECONDS.values()])
    assert shows(speedups, [1, 12 / 7, 12 / 5])


def test_without_a_study_the_table_is_empty_and_is_kept_as_a_file(tmp_path, whole):
    frames = tabled(experiment(tmp_path / "none"))
    assert frames["scaling"].empty
    tables.write({"scaling": whole[1]["scaling"]}, tmp_path)
    with (tmp_path / "scaling.csv").open() as file:
        assert [row["layout"] for row in csv.DictReader(file)] == list(SECONDS)


def test_a_pdf_needs_chromium_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Chromium is not installed" in forms.pdf(tmp_path / "a.html", tmp_path / "a.pdf")
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\necho no display >&2\nexit 1\n")
    browser.chmod(0o755)
    reason = forms.pdf(tmp_path / "a.html", tmp_path / "a.pdf")
    assert "wrote no PDF: no display" in reason and not (tmp_path / "a.pdf").exists()


def test_made_up_runs_are_like_real_ones(tmp_path):
    for path in experiment(tmp_path, weak=True).runs:
        validate_run(read_json(path))


def doubling(folder: Path, name: str, took: dict[str, float], **more) -> study.Part:
    """Return the doubling of two sizes, measured in a job of its own."""
    found = experiment(folder / name, took)
    for layout in took:
        paths = [path for path in found.runs if path.parts[-5] == layout]
        changed = {"job": {"number": name, "slurm": "24.05", "exclusive": True}} | more
        rewritten(paths, lambda run, changed=changed: run.update(changed))
    scaling = settings(layouts=list(took))
    return study.Part(
        f"demo-{name}", tabled(found, scaling=scaling), [read_run(path) for path in found.runs]
    )


def test_doublings_of_jobs_of_their_own_are_one_table_whose_speedups_are_products(tmp_path):
    parts = [
        doubling(tmp_path, "12", {"1x1": 12.0, "2x1": 7.0}),
        doubling(tmp_path, "31", {"2x1": 7.7, "4x1": 5.5}),
    ]
    found, joined = study.join(parts, "T", settings())
    rows = joined["scaling"].set_index("layout", drop=False)
    assert list(rows["layout"]) == list(SECONDS)
    # The ratio of each doubling is of its own job: 12 s to 7 s, and 7.7 s to 5.5 s.
    assert rows.loc["4x1", "speedup"] == pytest.approx(12 / 7 * 7.7 / 5.5)
    assert rows.loc["4x1", "efficiency"] == pytest.approx(12 / 7 * 7.7 / 5.5 / 4)
    assert rows["doubling_efficiency"].to_list()[1:] == pytest.approx([12 / 14, 7.7 / 11])
    # The rule is on the baseline, so its efficiency is that of the product.
    gains = [part.tables["scaling"].set_index("layout")["whole_speedup"] for part in parts]
    product = gains[0]["2x1"] * gains[1]["4x1"]
    assert rows.loc["4x1", "whole_speedup"] == pytest.approx(product)
    assert rows.loc["4x1", "rule_efficiency"] == pytest.approx(product / 4)
    assert rows.loc["4x1", "passes"] == "fails" and rows.loc["4x1", "rule_matches"] == REPEATS
    [series] = found.series
    assert next(iter(series.tables)) == "Doublings"
    table = series.tables["Doublings"]
    assert table[["from", "to", "jobs"]].to_numpy().tolist() == [
        ["1x1", "2x1", "12"], ["2x1", "4x1", "31"],
    ]  # fmt: skip
    assert "product of theirs" in series.statement
    assert any("in demo-12" in note and "+10.0%" in note for note in series.notes)
    assert dict(found.about)["jobs"] == "12, 31, SLURM 24.05, exclusive nodes"


def test_the_interval_of_a_product_combines_those_of_its_doublings():
    from escala.report.study.doublings import Interval as Ends
    from escala.report.study.doublings import _product

    found = _product(Ends(2.0, 1.0, 4.0), Ends(1.5, 1.5, 1.5))
    assert found == pytest.approx((3.0, 1.5, 6.0))
    found = _product(Ends(2.0, 1.0, 4.0), Ends(2.0, 1.0, 4.0))
    assert found == pytest.approx((4.0, 4.0 / 2**2**0.5, 4.0 * 2**2**0.5))
    assert _product(Ends(2.0, None, None), Ends(1.5, 1.4, 1.6))[:2] == (3.0, None)
    assert _product(Ends(None, None, None), Ends(1.5, 1.4, 1.6)).estimate is None


def test_there_is_no_product_over_runs_that_may_not_be_compared(tmp_path):
    other = {"versions": {"python": "3.99"}}
    parts = [
        doubling(tmp_path, "12", {"1x1": 12.0, "2x1": 7.0}),
        doubling(tmp_path, "31", {"2x1": 7.0, "4x1": 5.0}, **other),
    ]
    found, joined = study.join(parts, "T", settings())
    rows = joined["scaling"].set_index("layout")
    assert np.isnan(rows.loc["4x1", "speedup"])
    assert rows.loc["4x1", "doubling_efficiency"] == pytest.approx(7 / 5 / 2)
    assert "other versions" in rows.loc["4x1", "gain_reason"]
    assert any("other versions" in note for note in found.series[0].notes)


def test_a_doubling_that_is_missing_leaves_no_product(tmp_path):
    parts = [
        doubling(tmp_path, "12", {"1x1": 12.0, "2x1": 7.0}),
        doubling(tmp_path, "48", {"4x1": 5.0, "8x1": 4.0}),
    ]
    rows = study.join(parts, "T", settings())[1]["scaling"].set_index("layout")
    assert rows["speedup"].isna().to_list() == [False, False, True, True]
    assert "begins with 4x1" in rows.loc["8x1", "gain_reason"]
    assert rows.loc["8x1", "doubling_efficiency"] == pytest.approx(5 / 4 / 2)


def test_the_command_joins_what_the_doublings_measured(tmp_path, monkeypatch, capsys):
    from escala.commands import study as script

    scaling = {"kind": "strong", "strategies": ["horovod-mpi"], "layouts": list(SECONDS)}
    settings = {key: value for key, value in SMALL.items() if key != "configurations"}
    settings |= {"experiment": "demo", "repeats": REPEATS, "scaling": scaling}
    settings["datasets"] = {"demo-1000": SMALL["datasets"]["d"]}
    monkeypatch.chdir(tmp_path)
    Path("whole.yaml").write_text(yaml.safe_dump(settings))
    whole = load("whole.yaml")
    asked: list[str] = []
    monkeypatch.setattr(script, "_report", lambda file: asked.append(str(file)))
    monkeypatch.setenv("PATH", "")  # It would print by Chromium.
    with pytest.raises(InputError, match="no doubling was measured"):
        script.join(whole)
    for name, each in doublings(whole).items():
        environment.claim_results(file_of(whole, name).parent)
        file_of(whole, name).write_text(yaml.safe_dump(each))
        took = {layout: SECONDS[layout] for layout in each["scaling"]["layouts"]}
        frames = tabled(experiment(tmp_path, took, name=name), scaling=load(
            file_of(whole, name)).settings["scaling"])  # fmt: skip
        tables.write(frames, Path("results", name, "tables"))
    script.join(whole)
    assert asked == [
        "results/demo/demo-1to2.yaml", "results/demo/demo-2to4.yaml",
    ]  # fmt: skip
    with Path("results/demo/doublings.csv").open() as file:
        gains = {row["layout"]: float(row["speedup"]) for row in csv.DictReader(file)}
    assert gains == pytest.approx({"1x1": 1, "2x1": 12 / 7, "4x1": 12 / 5})
    page = Parsed(Path("results/demo/doublings.html").read_text())
    assert not page.errors and "demo-2to4" in page.text_of("td")
    assert "Doublings" in Path("results/demo/doublings.md").read_text()
    assert "a speed-up of 2.40" in capsys.readouterr().out
