"""The document of a scaling study: its figures against made-up runs, and its study."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import FakeExperiment, as_program, rewritten
from pages import Parsed, drawn, table_of, tabled
from test_scaling import as_weak

from escala.analysis.measurements import read_run
from escala.analysis.statistics import Interval
from escala.core.files import read_json, write_json
from escala.core.readable import size
from escala.data.files import STATES
from escala.experiment.schema import SITES
from escala.record.schema import validate_run
from escala.report import study, tables
from escala.report.figures import scaling as figure_of_scaling
from escala.report.steps import JOB_SCRIPT, attached_text, data_files
from escala.report.study import statement
from escala.report.tables.scaling import least_efficiency, verdict

pytestmark = pytest.mark.usefixtures("few_resamples")

REPEATS = 6
#: Seconds of an epoch by layout; those of repeat n are n percent longer on every layout.
SECONDS = {"1x1": 12.0, "2x1": 7.0, "4x1": 5.0}


def rule(**more) -> dict:
    return {
        "name": "Site & Co", "efficiency": 0.75, "against": "baseline", "time": "run",
        "same_input": True, "node_counts": 3, "shortest_minutes": 3, "start_at_most": 0.5,
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
        "proposal": {},
        "plan": [],
    } | more


def experiment(folder: Path, seconds: dict[str, float] = SECONDS, weak: bool = False, **named):
    """Return runs on one, two and four nodes, of three epochs and 14 s around them."""
    made = FakeExperiment(folder, **named).add_dataset()
    for layout, took in seconds.items():
        strategy = "single" if layout == "1x1" else "horovod-mpi"
        made.add(strategy, layout, took, repeats=REPEATS, rows=32)

    def simplify(run: dict) -> None:
        epoch_seconds = seconds[run["layout"]] * (1 + run["repeat"] / 100)
        for epoch in run["epochs"]:
            epoch["train_seconds"] = epoch_seconds
        train = 3 * epoch_seconds
        run["seconds"] |= {"train": train, "loading": 0.5, "checkpoint": 2.0}
        run |= {"wall_seconds": train + 14, "samples_per_second": 3 * 3150 / train}
        run["ranks"] |= {"oversubscribed": False, "hosts": ["n1", "n2"]}
        if weak:
            as_weak(run)
        validate_run(run)

    rewritten(made.runs, simplify)
    return made


def of_layout(made: FakeExperiment, layout: str) -> list[Path]:
    return [path for path in made.runs if path.parts[-5] == layout]


def series_of(frames: dict[str, pd.DataFrame], runs: Sequence[dict] = (), **more):
    """Return the only series of a study, of the settings of its tables."""
    [series] = study.study(frames, "T", settings(**more), runs).series
    return series


def table(made: FakeExperiment, **more) -> pd.DataFrame:
    frames = tabled(made, scaling=settings(**more), only=["scaling"])
    return frames["scaling"].set_index("layout", drop=False)


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
    ({"time": "steps"}, (12.0, 4.6, 3.5), ["passes", "passes"]),
    ({"time": "steps", "against": "doubling"}, (12.0, 4.6, 3.5), ["passes", "fails"]),
    # Each doubling passes, and four nodes are 2.9 times as fast.
    ({"time": "steps", "against": "doubling"}, (12.0, 7.0, 4.1), ["passes", "passes"]),
    ({"time": "steps"}, (12.0, 7.0, 4.1), ["passes", "not decided"]),
    # 14 s of each whole run are divided by no size.
    ({}, (12.0, 4.5, 3.0), ["passes", "fails"]),
    ({}, (1200.0, 605.0, 320.0), ["passes", "passes"]),
    ({"against": "doubling"}, (1200.0, 605.0, 450.0), ["passes", "fails"]),
    ({"efficiency": 0.5}, (12.0, 6.0, 1.5), ["passes", "passes"]),
]


@pytest.mark.parametrize(("asked", "seconds", "verdicts"), VERDICTS)
def test_a_rule_judges_what_it_asks_for(tmp_path, asked, seconds, verdicts):
    made = experiment(tmp_path, dict(zip(SECONDS, seconds, strict=True)))
    rows = table(made, rules=rule(**asked))
    assert pd.isna(rows.loc["1x1", "passes"])
    assert rows.loc[["2x1", "4x1"], "passes"].to_list() == verdicts
    passing = [layout for layout in ("2x1", "4x1") if rows.loc[layout, "passes"] == "passes"]
    best = statement.largest_passing(rows)["layout"]
    assert best == (passing[-1] if verdicts[0] == "passes" else "1x1")


@pytest.mark.parametrize(
    ("ends", "matches", "weak", "expected"),
    [
        ((0.80, 0.75, 0.90), 6, False, "passes"),
        ((0.70, 0.60, 0.749), 6, False, "fails"),
        ((0.95, 0.74, 0.99), 12, False, "not decided"),
        ((0.95, 0.94, 0.96), 4, False, None),
        ((0.95, 0.94, 0.96), 6, True, None),
        ((None, None, None), 6, False, None),
    ],
)
def test_a_verdict_is_by_the_whole_interval_of_enough_pairs(ends, matches, weak, expected):
    given = settings(kind="weak" if weak else "strong")
    found = verdict(Interval(*ends), 0.75, matches, given)
    assert found["passes"] == expected
    assert (found["rule_reason"] is None) == (expected is not None)
    # A rule may be one of weak scaling.
    if weak:
        given["rules"] = rule(same_input=False)
        assert verdict(Interval(*ends), 0.75, matches, given)["passes"] == "passes"


def test_weak_scaling_has_an_efficiency_and_is_not_judged_by_a_rule_of_one_input(tmp_path):
    made = experiment(tmp_path, {"1x1": 4.0, "2x1": 5.0, "4x1": 8.0}, weak=True)
    frames = tabled(made, scaling=settings(kind="weak"))
    rows = frames["scaling"].set_index("layout")
    assert rows["efficiency"].to_dict() == pytest.approx({"1x1": 1, "2x1": 4 / 5, "4x1": 4 / 8})
    assert rows["speedup"].to_dict() == pytest.approx({"1x1": 1, "2x1": 2 * 4 / 5, "4x1": 2})
    assert rows.loc["4x1", "doubling_efficiency"] == pytest.approx(5 / 8)
    assert rows["passes"].isna().all()
    series = series_of(frames, kind="weak")
    assert "weak efficiency of 0.500" in series.statement
    assert "does not judge weak scaling" in series.statement
    assert "weak efficiency" in series.tables["Time and efficiency"].columns
    rules = rule(same_input=False, time="steps", efficiency=0.4)
    assert table(made, kind="weak", rules=rules).loc["4x1", "passes"] == "passes"


@pytest.mark.parametrize("layout", ["1x1", "2x1", "4x1"])
def test_a_size_that_shares_cores_leaves_statement_and_figure(tmp_path, layout):
    made = experiment(tmp_path)
    rewritten(of_layout(made, layout), lambda run: run["ranks"].update(oversubscribed=True))
    frames = tabled(made, scaling=settings())
    rows = frames["scaling"].set_index("layout", drop=False)
    others = [each for each in SECONDS if each != layout]
    assert rows.loc[layout, "shares_cores"]
    assert rows.loc[layout, ["speedup", "passes"]].isna().all()
    assert set(rows["baseline"].dropna()) == {others[0]}
    assert layout not in set(rows["doubled_from"].dropna())
    series = series_of(frames)
    words = dict(zip(SECONDS, ["one process", "two processes", "four processes"], strict=True))
    assert [words[each] in series.statement for each in (layout, *others)] == [False, True, True]
    assert any(words[layout] in note and "shared" in note for note in series.notes)
    sizes = {float(x) for axes in figure_of_scaling.draw(frames).axes for x in axes.get_xticks()}
    assert sizes == {float(rows.loc[each, "nodes"]) for each in others}


LINK = {"interface": None, "rate": None, "mbit_per_second": 940.0, "latency_ms": 0.1}


@pytest.mark.parametrize(
    ("emulated", "link", "is_emulated"),
    [
        (None, None, False),
        (True, None, True),
        # Older files tell of the lab by how its links were measured.
        (None, LINK, True),
        (None, LINK | {"measured_by": "tcp"}, False),
    ],
)
def test_an_emulated_cluster_is_named_in_the_first_sentence(tmp_path, emulated, link, is_emulated):
    def change(run: dict) -> None:
        run["ranks"] |= {"emulated": True} if emulated else {}
        run["link"] = link if run["layout"] != "1x1" else None

    made = experiment(tmp_path)
    rewritten(made.runs, change)
    document = study.study(tabled(made, scaling=settings()), "T", settings(), [])
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
    series = series_of(frames)
    cost = series.tables["What a run takes"]
    whole, *columns = (
        "whole run (s)", "set-up (s)", "steps (s)", "validation (s)", "checkpoints (s)",
        "test and saving (s)", "not accounted for (s)",
    )  # fmt: skip
    for row in cost.to_dict("records"):
        total = sum(float(row[name]) for name in columns)
        assert total == pytest.approx(float(row[whole]), rel=0.01)
    # What is unknown of a run is in the rest.
    made = experiment(tmp_path / "unknown")
    rewritten(made.runs, lambda run: run["seconds"].update(loading=None, evaluation=None))
    after = table(made)
    assert after[["set_up_seconds", "closing_seconds"]].isna().all(axis=None)
    more = after["unaccounted_seconds"].to_numpy() - rows["unaccounted_seconds"].to_numpy()
    assert more == pytest.approx([0.5 + 0.7] * 3)


#: The steps of a window and of an epoch of one rank, the rows of a step of a rank, and the epochs.
WINDOW, STEPS, ROWS, EPOCHS = 20, 100, 32, 5


def windows(folder: Path, epochs: int | None, rows: int = ROWS) -> FakeExperiment:
    """Return runs of a program that were ended after a window of steps; four nodes take `rows`."""

    def cut(run: dict) -> None:
        nodes, epoch = int(run["layout"][0]), run["epochs"][0]
        as_program(run, "seen", ("epochs",) if epochs else ())
        train = epoch["train_seconds"] * WINDOW * nodes / STEPS
        of_step = nodes * (rows if nodes == 4 else ROWS)
        window = {"steps": WINDOW, "rows": WINDOW * of_step, "train_seconds": train}
        run["epochs"] = [run["epochs"][0] | window]
        run["training"] |= {
            "steps_per_epoch": STEPS // nodes, "epochs_done": 1, "epochs_asked": epochs
        }  # fmt: skip
        run["seconds"] |= {"train": train, "startup": 3.0}
        run |= {"wall_seconds": train + 14, "samples_per_second": WINDOW * of_step / train}
        validate_run(run)

    made = experiment(folder)
    rewritten(made.runs, cut)
    return made


@pytest.mark.parametrize("epochs", [EPOCHS, None])
def test_a_whole_run_is_projected_from_a_window_or_unknown(tmp_path, epochs):
    made = windows(tmp_path, epochs)
    frames = tabled(made, scaling=settings())
    rows = frames["scaling"].set_index("layout")
    whole = {layout: seconds * 1.035 for layout, seconds in SECONDS.items()}
    assert rows["seconds_per_epoch"].to_dict() == pytest.approx(whole)
    assert rows["efficiency"].to_dict() == pytest.approx({"1x1": 1, "2x1": 6 / 7, "4x1": 3 / 5})
    assert rows["global_batch"].to_dict() == {"1x1": ROWS, "2x1": 2 * ROWS, "4x1": 4 * ROWS}
    # A rule of whole runs judges none that was cut.
    assert rows[["passes", "whole_speedup", "validation_seconds"]].isna().all(axis=None)
    assert set(rows["set_up_seconds"]) == {3.0}
    runs = [read_run(path) for path in made.runs]
    document = study.study(frames, "T", settings(), runs)
    [series], about = document.series, dict(document.about)
    assert f"{WINDOW} steady steps of each run" in about["timed: train"]
    projected = ["An epoch is projected from" in note for note in series.notes]
    assert sum(projected) == 1 and ("projected to take" in series.statement) == bool(epochs)
    if epochs:
        trained = {layout: epochs * seconds for layout, seconds in whole.items()}
        assert rows["train_seconds"].to_dict() == pytest.approx(trained)
        walls = {layout: seconds + 14 for layout, seconds in trained.items()}
        assert rows["wall_seconds"].to_dict() == pytest.approx(walls)
        assert rows["unaccounted_seconds"].to_list() == pytest.approx([14 - 3] * 3)
    else:
        unknown = ["train_seconds", "wall_seconds", "node_hours", "unaccounted_seconds"]
        assert rows[unknown].isna().all(axis=None)
        assert "The time of a whole run is unavailable." in series.statement


def test_sizes_of_other_work_are_named(tmp_path):
    other = windows(tmp_path / "other", None, rows=2 * ROWS)
    for made, named in ((windows(tmp_path, None), False), (other, True)):
        [series] = study.study(tabled(made, scaling=settings()), "T", settings(), []).series
        notes = [note for note in series.notes if note.startswith("Not the same work")]
        assert bool(notes) == named
    assert f"four processes on four nodes {2 * ROWS * STEPS}" in notes[0]
    assert f"{ROWS * STEPS}" in notes[0]


def test_what_a_site_asks_of_the_runs_is_checked_and_told(tmp_path):
    def checked(seconds: dict[str, float], change=None, **more) -> dict[str, tuple[str, str]]:
        given = settings(layouts=list(seconds), **more)
        folder = tmp_path / "-".join(seconds) / str(max(seconds.values())) / given["kind"]
        made = experiment(folder, seconds, weak=given["kind"] == "weak")
        rewritten(made.runs, change or (lambda run: None))
        rows = tabled(made, scaling=given, only=["scaling"])["scaling"]
        return {row[0]: (row[1], row[2]) for row in statement.conditions(rows, given).to_numpy()}

    nodes, same, shortest, start = (
        "3 counts of nodes at least", "the same input for all sizes",
        "3 minutes for the shortest run", "a start that does not dominate a run",
    )  # fmt: skip
    # Four layouts, of two counts of nodes.
    few = checked({"1x1": 12.0, "1x2": 7.0, "2x1": 7.0, "2x2": 5.0})
    assert few[nodes] == ("1 and 2", "no")
    short, long = checked(SECONDS), checked({"1x1": 900.0, "2x1": 500.0, "4x1": 300.0})
    assert {holds for _, holds in long.values()} == {"yes"} and len(long) == 4
    assert short[shortest][1] == "no" and short[same][1] == "yes"
    assert short[shortest][0].startswith(f"{3 * 5 * 1.035 + 14:.1f} s on four processes")
    # Of 29.5 s, 6.9 s are set-up; steps, validation, checkpoints, evaluation and saving are not.
    steps = 3 * 5 * 1.035
    share = (14 - 3 * 0.65 - 2.0 - 0.7 - 0.2) / (steps + 14)
    assert short[start] == (f"at most {share:.0%}, on four processes on four nodes", "yes")

    def start_slowly(run: dict) -> None:
        run["wall_seconds"] += 30

    slow = checked({"1x1": 13.0, "2x1": 7.0, "4x1": 5.0}, start_slowly)
    assert slow[start][1] == "no" and "more epochs" in slow[start][0]
    # The input of weak scaling grows, and nothing is asked for that the rule leaves out.
    weak = checked({"1x1": 4.0, "2x1": 5.0, "4x1": 8.0}, kind="weak")
    assert weak[same] == ("the rows of an epoch grow with the processes", "no")
    bare = {"name": "Site", "against": "baseline", "time": "run", "same_input": False}
    assert not checked(SECONDS, rules=bare)


TIERS = [
    # All of a doubling, or of two, in one tier.
    (128, 256, 1.5), (128, 512, 1.5), (512, 1024, 1.4), (1024, 2048, 1.3),
    # 1.5 to 512 cores, then 1.4: 2.1 times for four times the cores; then 1.3 as well.
    (256, 1024, 2.1**0.5), (256, 2048, (1.5 * 1.4 * 1.3) ** (1 / 3)),
    # Half of a doubling is in either.
    (512 / 2**0.5, 512 * 2**0.5, 2.1**0.5),
    (2048, 4096, None), (1024, 2049, None),
]  # fmt: skip


@pytest.mark.parametrize(("smaller", "cores", "speedup"), TIERS)
def test_a_doubling_is_held_against_the_tier_of_its_cores(smaller, cores, speedup):
    least = least_efficiency(SITES["notur"], smaller, cores)
    assert least == (speedup and pytest.approx(speedup / 2))
    # Without tiers, one number is for all.
    assert least_efficiency(SITES["csc-roihu"], smaller, cores) == 0.75
    assert least_efficiency(SITES["jsc"], smaller, cores) is None


def test_a_size_is_judged_by_its_tier_and_not_beyond_the_last(tmp_path):
    # 1.71, 1.4 and 1.11 times as fast by each doubling.
    seconds = {"1x1": 1200.0, "2x1": 700.0, "4x1": 500.0, "8x1": 450.0}
    made = experiment(tmp_path, seconds)
    tiers = [{"cores": 2, "speedup": 1.4}, {"cores": 4, "speedup": 1.1}]
    asked = rule(against="doubling", time="steps", tiers=tiers, efficiency=None)
    rows = table(made, layouts=list(seconds), rules=asked)
    assert rows["rule_least"].to_list()[1:3] == pytest.approx([0.7, 0.55])
    assert rows["passes"].to_list()[1:3] == ["passes", "passes"]
    assert pd.isna(rows.loc["8x1", "passes"])
    assert "no number to reach for so many cores" in rows.loc["8x1", "rule_reason"]
    higher = [tiers[0], {"cores": 8, "speedup": 1.9}]
    rows = table(made, layouts=list(seconds), rules=asked | {"tiers": higher})
    assert rows["passes"].to_list()[1:] == ["passes", "fails", "fails"]


def test_without_a_number_nothing_is_judged_and_the_largest_size_is_asked_for(tmp_path):
    given = settings(rules=SITES["archer2"] | {"same_input": False, "fields": []})
    frames = tabled(experiment(tmp_path), scaling=given)
    rows = frames["scaling"].set_index("layout", drop=False)
    assert rows["passes"].isna().all() and rows["speedup"].notna().all()
    series = series_of(frames, rules=given["rules"])
    assert not any("≥" in name for name in series.tables["Time and efficiency"])
    cost = f"{statement.units(rows.loc['4x1'], given):.3g} BU"
    assert cost in series.statement and "passes" not in series.statement


def test_the_plan_is_costed_by_period_and_package(tmp_path):
    plan = [
        {"period": "2027 I", "package": "WP1", "runs": 10, "layout": "4x1"},
        {"period": "2027 II", "package": "WP2", "runs": 5},
    ]
    frames = tabled(experiment(tmp_path), scaling=settings(plan=plan))
    series = series_of(frames, plan=plan)
    found = series.tables["Compute time by period and work package"]
    # Nothing passes beyond one process, so that is the second entry's size.
    hours = [10 * 4 * (15 * 1.035 + 14) / 3600, 5 * (36 * 1.035 + 14) / 3600]
    assert found["layout"].to_list() == ["4x1", "1x1 (single)", ""]
    assert found["runs"].to_list() == ["10", "5", "15"]
    cost = [2.0 * 1.5 * value for value in hours]
    for name, values in (("node-hours", hours), ("BU + 50%", cost)):
        assert found[name].map(float).to_list() == pytest.approx([*values, sum(values)], rel=5e-3)
    assert "GPU-hours" not in found
    assert f"the plan asks for {sum(cost):.2f} BU" in series.statement
    # A layout without a time has no cost, and so has all.
    rows = frames["scaling"].query("layout != '4x1'")
    unknown = statement.plan_table(rows, settings(plan=plan))
    assert unknown["BU + 50%"].to_list()[::2] == ["unavailable"] * 2


def test_the_document_lists_what_is_missing_and_only_that(tmp_path):
    made = experiment(tmp_path)
    rewritten(made.runs, lambda run: run.update(checkpoint_bytes=1000))
    frames, runs = tabled(made, scaling=settings()), [*map(read_run, made.runs)]

    def keys(frames=frames, runs=runs, **more) -> list[str]:
        return [key for _, key in statement.missing_fields(frames["scaling"], more, runs)]

    for site, entry in SITES.items():
        given = settings(rules={"same_input": False} | entry)
        # These runs use no GPU, and one core for each process.
        prose = {key: f"scaling.proposal.{key}" for key in
                 ("software", "case", "io", "storage", "need", "job_script")}  # fmt: skip
        filled = {"plan": "scaling.plan"}
        filled |= dict.fromkeys(("bytes", "memory"), "resources: {enabled: true}")
        expected = [key for field in entry["fields"] if (key := (prose | filled).get(field))]
        assert keys(**given) == expected, site
        sampled = frames["scaling"].assign(read_bytes=1, node_memory_bytes=1)
        known = {"proposal": dict.fromkeys(prose, "x"), "plan": [{"period": "I"}]}
        assert not keys({"scaling": sampled}, **given | known), site
        # Hybrid runs place threads.
        hybrid = [run | {"ranks": run["ranks"] | {"cores": [[0, 1], [2, 3]]}} for run in runs]
        affinity = ["scaling.proposal.affinity"] * ("affinity" in entry["fields"])
        assert keys({"scaling": sampled}, hybrid, **given | known) == affinity
        document = study.study(frames, "T", given, runs)
        lines = [line for line in study.markdown(document) if "Key: `" in line]
        assert [line.split("`")[-2] for line in lines] == expected
        figure = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
        page = Parsed(study.html(document, figure))
        assert [t for t in page.text_of("code") if t in expected] == expected
    gpu_hours = given | known | {"unit": {"name": "GPU-h", "hours_of": "gpu", "per_hour": 1}}
    assert keys({"scaling": sampled}, **gpu_hours) == ["scaling.unit"]
    assert not keys({"scaling": sampled.assign(gpu_hours=1.0)}, **gpu_hours)
    written = given | {"proposal": {"software": "Trains\n  a <net>", "job_script": "job.sh"}}
    document = study.study(frames, "T", written, runs)
    assert document.proposal == [("software", "Trains a <net>")]
    assert "- **software:** Trains a <net>" in list(study.markdown(document))


def test_compute_time_is_that_of_the_planned_runs_with_a_margin(tmp_path):
    two = table(experiment(tmp_path)).loc["2x1"]
    wall = 3 * 7 * 1.035 + 14
    assert two["wall_seconds"] == pytest.approx(wall) and two["gpu_hours"] == 0
    assert two["node_hours"] == two["core_hours"] == pytest.approx(2 * wall / 3600)
    assert statement.units(two, settings()) == pytest.approx(2 * wall / 3600 * 2.0 * 40 * 1.5)
    # Start, loading, build, first step and prediction, broadcast.
    assert two["set_up_seconds"] == pytest.approx(3.1 + 0.5 + 0.4 + 2.5 + 0.3 + 0.1)
    made = experiment(tmp_path / "gpus", {"1x1": 12.0, "2x2": 4.0})
    # Two processes of each of two nodes share its GPU 0.
    devices = {"1x1": [["GPU-a"]], "2x2": [["0"], ["0"], ["0"], ["0"]]}
    rewritten(made.runs, lambda run: run["ranks"].update(gpus=devices[run["layout"]]))
    unit = {"unit": {"name": "u", "hours_of": "gpu", "per_hour": 1}}
    given = {"layouts": ["1x1", "2x2"]} | unit
    frames = tabled(made, scaling=settings(**given))
    rows = frames["scaling"].set_index("layout")
    assert rows["gpus"].to_dict() == {"1x1": 1, "2x2": 2}
    hours = rows["wall_seconds"] / 3600 * [1, 2]
    assert rows["gpu_hours"].to_list() == pytest.approx(list(hours))
    assert f"and {hours['1x1']:.4f} GPU-hours;" in series_of(frames, **given).statement
    # Without a GPU nothing is asked for in hours of one.
    plain = tabled(experiment(tmp_path / "plain"), scaling=settings(**unit))
    assert "GPU-hours" not in series_of(plain, **unit).statement


def test_only_pairs_of_like_work_of_one_session_count(tmp_path):
    made = experiment(tmp_path)
    fewer = {"epochs_done": 2, "stopped_early": True}
    rewritten(of_layout(made, "4x1"), lambda run: run["training"].update(fewer))
    row = table(made).loc["4x1"]
    assert np.isnan(row["whole_speedup"]) and row["speedup"] > 1
    assert pd.isna(row["passes"]) and "epochs" in row["rule_reason"]
    made, older = FakeExperiment(tmp_path / "older").add_dataset(), {"20250101T000000Z-1": 5.0}
    made.add("single", "1x1", 12.0, REPEATS, older=older)
    made.add("horovod-mpi", "2x1", 7.0, REPEATS, older=older)
    frames = tabled(made, scaling=settings(layouts=["1x1", "2x1"]))
    assert frames["scaling"]["runs"].to_list() == [2 * REPEATS] * 2
    statement_of = series_of(frames, layouts=["1x1", "2x1"]).statement
    assert f"with {REPEATS} paired runs of each" in statement_of
    # Below five paired runs, there is no sentence to paste.
    made = experiment(tmp_path / "four")
    made.runs = [path for path in made.runs if path.parent.name not in ("rep5", "rep6")]
    frames = tabled(made, scaling=settings())
    series = series_of(frames)
    assert frames["scaling"]["passes"].isna().all() and "there are 4" in series.statement
    assert set(series.tables["Time and efficiency"]["≥ 75%"]) == {"baseline", "not judged"}
    # Four times the cores are two doublings, each of which makes it √2.4 times as fast.
    row = table(experiment(tmp_path / "without", {"1x1": 12.0, "4x1": 5.0})).loc["4x1"]
    assert row["doubling_efficiency"] == pytest.approx((12 / 5) ** 0.5 / 2)
    assert row["doubled_from"] == "1x1"


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
    series = series_of(frames)
    assert any(note.startswith("No time of one process: rep 1, 2") for note in series.notes)
    assert series.tables["What the site asks of the runs"]["here"].iloc[0] == "2 and 4"


def test_a_doubling_over_other_links_is_unknown_and_says_why(tmp_path):
    found = experiment(tmp_path)
    for layout, rate in {"2x1": 900.0, "4x1": 500.0}.items():
        link = {"rate": "1gbit", "mbit_per_second": rate, "latency_ms": 0.1}
        rewritten(of_layout(found, layout), lambda run, link=link: run.update(link=link))
    rows = table(found)
    assert rows.loc["4x1", "speedup"] == pytest.approx(12 / 5)
    assert np.isnan(rows.loc["4x1", "doubling_efficiency"])
    assert "500" in rows.loc["4x1", "gain_reason"] and pd.isna(rows.loc["2x1", "gain_reason"])
    doubling = table(found, rules=rule(against="doubling"))
    assert pd.isna(doubling.loc["4x1", "passes"]) and "500" in doubling.loc["4x1", "rule_reason"]
    series = series_of(tabled(found, scaling=settings()))
    assert any(rows.loc["4x1", "gain_reason"] in note for note in series.notes)


def test_memory_and_bytes_are_those_of_the_node_with_the_most(tmp_path):
    made = experiment(tmp_path, {"1x1": 12.0, "2x2": 4.0})
    keys = ("rss_bytes_max", "sent_bytes_per_second", "cpu_percent_mean")

    def sampled(layout: str, *processes: tuple) -> Path:
        first = of_layout(made, layout)[0]
        resources = [{"rank": rank} | dict(zip(keys, values, strict=True))
                     for rank, values in enumerate(processes)]  # fmt: skip
        changes = {"instrument": "resources", "repeat": None, "resources": resources}
        path = first.parent.with_name("resources") / "run.json"
        write_json(path, read_json(first) | changes)
        return path

    of_nodes = (100, 9000, 90.0), (150, 9000, 80.0), (300, 6000, 100.0), (50, 6000, 50.0)
    probed = [sampled("1x1", (120, 77, 99.0)), sampled("2x2", *of_nodes)]
    epochs = read_json(probed[1])["epochs"]
    steps, seconds = (sum(epoch[key] for epoch in epochs) for key in ("steps", "train_seconds"))
    layouts = ["1x1", "2x2"]
    frames = tabled(made, probe_files=probed, scaling=settings(layouts=layouts))
    rows = frames["scaling"].set_index("layout")
    assert rows["node_memory_bytes"].to_dict() == {"1x1": 120, "2x2": 350}
    assert rows["core_percent"].to_dict() == {"1x1": 99.0, "2x2": 80.0}
    assert not any("resources" in note for note in series_of(frames, layouts=layouts).notes)
    # One node sends nothing to others.
    assert np.isnan(rows.loc["1x1", "sent_bytes_per_step"])
    assert rows.loc["2x2", "sent_bytes_per_step"] == pytest.approx(9000 * seconds / steps)
    probed[0] = sampled("1x1", (None, None, None))
    frames = tabled(made, probe_files=probed, scaling=settings(layouts=layouts))
    [note] = [each for each in series_of(frames, layouts=layouts).notes if "resources" in each]
    assert note.startswith("An epoch of one process is too short") and "seconds: 0.05" in note


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[study.Study, dict[str, pd.DataFrame], Path]:
    folder = tmp_path_factory.mktemp("whole")
    found = experiment(folder)
    frames = tabled(found, scaling=settings())
    runs = [read_run(path) for path in found.runs]
    return study.study(frames, "Nodes | and <cores>", settings(), runs), frames, folder


def test_the_statement_has_the_numbers_of_the_table_and_what_a_reviewer_asks_for(whole):
    document, frames, _ = whole
    [series] = document.series
    rows = frames["scaling"].set_index("layout")
    wall = rows.loc["1x1", "wall_seconds"]
    for words in (
        "virus-cnn on demo-1000", "Horovod over MPI", "6 paired runs", "2026-01",
        "Example CPU @ 2.00GHz with 2 cores a node",
        f"{rows.loc['4x1', 'seconds_per_epoch']:.2f}",
        f"speed-up of {rows.loc['4x1', 'speedup']:.2f}",
        f"efficiency of {rows.loc['4x1', 'efficiency']:.3f}",
        "The rule of Site & Co asks for an efficiency of whole runs of 75%",
        "not decided, {:.3f} ({:.3f}–{:.3f})".format(
            *rows.loc["2x1", [f"rule_efficiency{end}" for end in ("", "_low", "_high")]]
        ),
        f"fails, {rows.loc['4x1', 'rule_efficiency']:.2f}", f"takes {wall:.1f} s",
        f"40 such runs with a margin of 50% are {wall / 3600 * 120:.3g} BU",
    ):  # fmt: skip
        assert words in series.statement, words
    # Compute time is asked for the baseline, as nothing beyond it is decided to pass.
    assert statement.largest_passing(frames["scaling"])["layout"] == "1x1"
    verdicts = list(series.tables["Time and efficiency"]["≥ 75%"])
    assert verdicts == ["baseline", "not decided", "fails"]
    about = dict(document.about)
    assert about["hosts"] == "n1, n2" and about["date"] == "2026-01-01"
    assert "openmpi 1.0" in about["software"] and "2067181" in about["case: virus-cnn"]
    assert about["jobs"].startswith("none") and "unavailable" in about["interconnect"]
    cost = series.tables["What a run takes"].set_index("layout")
    notes = " ".join(series.notes)
    assert "GPU-hours" not in cost
    # A column without any value is a note.
    assert "memory of a node" not in cost and "memory of a node" in notes
    assert "resources: {enabled: true}" in notes and "The data are simulated" in notes
    assert "There are no predictions" in notes


def test_the_interconnect_and_the_jobs_are_those_that_runs_record(whole, tmp_path):
    runs = [*map(read_run, experiment(tmp_path).runs)]
    for number, run in enumerate(runs):
        run["link"] = {"mbit_per_second": 940.0 + number % 3, "latency_ms": 0.05}
        run["ranks"]["transport"] = {"pml": "ob1", "btl": ["tcp"]}
        run["job"] = {"number": str(99 + number % 2), "slurm": "24.05", "exclusive": True}
    about = dict(study.study(whole[1], "T", settings(), runs).about)
    for words in ("interface lo", "ob1/tcp", "941 Mbit/s", "0.05 ms"):
        assert words in about["interconnect"]
    assert about["jobs"] == "99, 100, SLURM 24.05, exclusive nodes"


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

    ends = {"": [12.42, 9.0, 4.0], "_low": [12.0, 8.0, 3.0], "_high": [13.0, 10.0, 5.0]}
    columns = {f"predicted{end}_seconds_per_epoch": values for end, values in ends.items()}
    series = series_of(frames | {"scaling": frames["scaling"].assign(**columns)})
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
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == 4
    assert r"$\geq$ 75\%" in text and r"Site \& Co" not in text.split(r"\begin{table}", 1)[1]


def test_the_job_script_is_part_of_the_document(whole, tmp_path):
    found = whole[0]._replace(files={"Job script": "#SBATCH --nodes=4\nescala run <file>"})
    figure = drawn(whole[1], whole[2], ["scaling"])["scaling"]
    page = Parsed(study.html(found, figure))
    assert page.text_of("pre") == [found.files["Job script"]]
    assert "#SBATCH --nodes=4" in list(study.markdown(found))
    assert not any("Job script" in line for line in study.markdown(whole[0]))
    # No line of it ends its fence.
    script = "echo a\n```\n````sh\necho b"
    lines = list(study.markdown(whole[0]._replace(files={"Job script": script})))
    opened = next(place for place, line in enumerate(lines) if line.endswith("`bash"))
    fence = lines[opened].removesuffix("bash")
    assert lines[opened + 1 : lines.index(fence, opened)] == script.splitlines()
    # It names no folder of the one who measured.
    file = tmp_path / JOB_SCRIPT
    assert attached_text(file) is None
    file.write_text('#SBATCH --chdir=/home/ada/e\n#SBATCH "--chdir=/home/ada/an e"\nexec x\n')
    assert attached_text(file) == '#SBATCH --chdir=.\n#SBATCH "--chdir=."\nexec x\n'
    file.write_text("#PBS -V\ncd /home/ada/e\nexec x\n")
    assert attached_text(file) == "#PBS -V\ncd .\nexec x\n"
    # What the user attaches stays as it is.
    own = tmp_path / "production.sh"
    own.write_text("cd /scratch/run\n")
    assert attached_text(own) == "cd /scratch/run\n"


def test_the_files_of_a_split_are_counted(tmp_path):
    arrays = {"inputs": [{"file": "{side}.npy", "name": "x", "shape": [2], "dtype": "uint8"}]}
    arrays["targets"] = {"file": "{side}_labels.npy", "name": "y", "shape": [], "dtype": "int64"}
    write_json(tmp_path / "dataset.json", arrays | {"rows": {"train": 3, "test": 1}})
    sizes = {"train": 300, "test": 100, "train_labels": 24, "test_labels": 8}
    for name, length in sizes.items():
        (tmp_path / f"{name}.npy").write_bytes(bytes(length))
    assert data_files(tmp_path) == f"4 files, {size(432)}; the largest {size(300)}"
    # Those of the user are counted where they are, and may have gone.
    folder = tmp_path / "of user"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_bytes(bytes(7))
    (folder / "b").write_bytes(bytes(5))
    write_json(tmp_path / STATES, {"train": [str(folder), "state"]})
    assert data_files(tmp_path) == f"2 files, {size(12)}; the largest {size(7)}"
    shutil.rmtree(folder)
    assert data_files(tmp_path) == "unavailable"


def test_the_figure_shows_the_ideal_and_what_was_measured(whole, tmp_path):
    figure = figure_of_scaling.draw(whole[1])
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
    tables.write({"scaling": whole[1]["scaling"]}, tmp_path)
    with (tmp_path / "scaling.csv").open() as file:
        assert [row["layout"] for row in csv.DictReader(file)] == list(SECONDS)
    assert table_of("scaling", experiment(tmp_path / "none")).empty, "it is of a study"


def test_a_pdf_needs_chromium_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Chromium is not installed" in study.pdf(tmp_path / "a.html", tmp_path / "a.pdf")
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\necho no display >&2\nexit 1\n")
    browser.chmod(0o755)
    reason = study.pdf(tmp_path / "a.html", tmp_path / "a.pdf")
    assert "wrote no PDF: no display" in reason and not (tmp_path / "a.pdf").exists()
