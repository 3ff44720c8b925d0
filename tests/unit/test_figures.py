"""Figures: everything asked for is in them, gaps are named, and equal data give equal bytes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import text_boxes
from fixtures_runs import (
    CLASSES,
    REFERENCES,
    FakeExperiment,
    changed,
    clocked,
    fair,
    laddered,
    regression,
    sampled,
    three_configurations,
    with_classes,
    with_fits,
)
from pages import tabled

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core import readable
from escala.core.files import read_json, write_json
from escala.core.readable import in_words
from escala.probes.resources import Resources
from escala.report import tables
from escala.report.figures import DECLARED, FIGURES, SOME_FIGURES, common, figure
from escala.report.tables.views import MOST
from tests.calls import python
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("few_resamples")

HAS = ("classes", "comparisons")
DRAWN = (*FIGURES, *(name for name in SOME_FIGURES if DECLARED[name].needs in HAS))
FAILED = "horovod-gloo 1x2 rep 3 (failed)"
BY_EPOCH = ("accuracy_per_epoch", "seconds_per_epoch", "speedup")
BY_CLASS = ("confusion_matrices", "classification_reports")
SVG = "{http://www.w3.org/2000/svg}"


def _drawn(name: str, *what) -> str:
    """Return the words of a figure, whose texts neither overlap nor are cut off."""
    with common.style():
        drawn = figure(name).draw(*what)
        boxes = text_boxes.drawn_texts(drawn)
    assert len(boxes) >= 2
    assert not text_boxes.overlaps(boxes)
    assert not text_boxes.cut_off(drawn, boxes)
    assert not [box.text for box in boxes if "\\math" in box.text], "formulas are not typeset"
    return "\n".join(box.text for box in boxes)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The tables of three configurations, one run of which failed."""
    return tabled(three_configurations(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def drawn(base):
    """The words of every figure of `base`."""
    return {name: _drawn(name, base) for name in DRAWN}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("class_distribution", [*CLASSES, "sequences (count)", "training, oversampled", "900"]),
        ("accuracy_per_epoch", ["training accuracy", "test accuracy", "single 1x1", FAILED]),
        ("seconds_per_epoch", ["time per epoch (s)", "two processes on one node", FAILED]),
        ("confusion_matrices", [*CLASSES, "true class", "runs: 3", "runs: 2", FAILED]),
        ("classification_reports", ["COVID (270)", "f1", "macro average (705)", FAILED]),
        ("mean_scores", ["difference from single 1x1", "2 to 3 runs for each", FAILED]),
        ("speedup", ["2 ranks", "efficiency", "horovod-mpi", "horovod-gloo", FAILED]),
        ("splits", ["Points: runs of single 1x1.", FAILED]),
    ],
)
def test_what_is_shown_is_named_and_so_are_gaps(drawn, name, labels):
    for label in (*labels, "demo-1000 (simulated)"):
        assert label in drawn[name]


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    failed = {1: ("failed", "ValueError: costs $5 and $6 <b>&amp;</b>")}
    experiment = FakeExperiment(tmp_path_factory.mktemp("nothing"), leaky=True).add_dataset()
    experiment.add("single", "1x1", 5.0, 1, failed).add("horovod-mpi", "1x2", 5.0, 1, failed)
    return tabled(experiment)


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_without_data_says_why(nothing, name):
    words = _drawn(name, nothing).replace("\n", " ").lower()
    assert "demo-1000 (simulated, leaky split)" in words
    if name != "class_distribution":
        assert "no run ended ok" in words and "$5 and $6 <b>&amp;</b>" in words


def test_many_runs_without_result_are_counted(tmp_path):
    failed = dict.fromkeys([1], ("failed", "no memory"))
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0, 1)
    for number in range(MOST + 3):
        experiment.add("horovod-mpi", "1x2", 5.0, 1, failed, variant=f"v{number:02}")
    [text] = common.gaps(tabled(experiment)["runs"])
    assert text.count("(failed)") == MOST
    assert text.endswith("; and 3 more. Reasons are in runs.csv.")


#: Names as long as an experiment may have them.
LONG = {
    "published": "outbreak-clones-of-2014-to-2021-with-all-lineages-of-the-archive",
    "as-published": "everything-as-it-was-published-in-2022-with-threads-of-the-node",
    "COVID": "Severe_acute_respiratory_syndrome_coronavirus_2_Wuhan_Hu_1_2019",
    "slow": "ethernet0100mbit0shared0by0nodes",
    "rank 1 was ended by signal 9": "rank 1 was ended by signal 9; its last words were many " * 5,
}
MORE = {
    "single": "wrapped-single",
    "horovod-mpi": "parameter-server",
    "horovod-gloo": "multiworker-mirrored",
}


def _hard(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables with long names and twice as many configurations."""
    long = {name: frame.replace(LONG) for name, frame in frames.items()}
    return {
        name: pd.concat([frame, frame.replace(MORE)]) if "strategy" in frame else frame
        for name, frame in long.items()
    }


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    """The tables of ten configurations of two datasets, with long names."""
    first = three_configurations(tmp_path_factory.mktemp("hard"))
    second = FakeExperiment(
        first.root, dataset="published", provenance="files", leaky=True, runs=first.runs
    ).add_dataset()
    second.add("single", "1x1", 50.0).add("horovod-mpi", "1x2", 60.0, variant="as-published")
    return _hard(tabled(second))


@pytest.mark.parametrize(
    "name",
    # The panels of both figures of classes are arranged alike.
    [pytest.param(n, marks=[pytest.mark.sweep] * (n == BY_CLASS[1])) for n in DRAWN],
)
def test_long_names_stand_whole_in_figures_of_many_configurations(hard, name):
    words = "".join(_drawn(name, hard).split())
    assert f"{LONG['published']}(files,leakysplit)" in words
    assert "demo-1000(simulated)" in words
    if name == "accuracy_per_epoch":
        assert f"horovod-mpi1x2{LONG['as-published']}" in words
    if name == "seconds_per_epoch":
        assert f"twoprocessesononenode(HorovodoverMPI,{LONG['as-published']})" in words
    if name == "speedup":
        assert "nosingle1x1as-publishedalongsideit" in words


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """The words of figures where two workloads are fitted at once."""
    frames = tabled(with_fits(tmp_path_factory.mktemp("fits")))
    return {name: _drawn(name, frames) for name in (*BY_EPOCH, *BY_CLASS, "mean_scores")}


@pytest.mark.parametrize("name", BY_EPOCH)
def test_epochs_and_fits_are_not_set_side_by_side(fits, name):
    words = fits[name].replace("\n", " ")
    assert "Not shown, as they are fitted at once: kmer-logreg, majority." in words
    assert words.count("kmer-logreg") == 1 and re.search("horovod-mpi|two processes", words)


@pytest.mark.parametrize("name", BY_CLASS)
def test_scores_of_fits_stand_beside_the_others(fits, name):
    for workload in ("virus-cnn", "kmer-logreg", "majority"):
        assert f"{workload}, single 1x1" in fits[name]


def test_scores_without_any_difference_have_no_panel_of_differences(fits):
    words = fits["mean_scores"]
    assert words.count("difference of the score") == 1 and words.count("accuracy") == 3


def test_each_reference_has_a_row_of_panels(tmp_path):
    experiment = fair(tmp_path, 6.0, 5.0, 3.0, repeats=2)
    words = _drawn("speedup", tabled(experiment, references=REFERENCES)).replace("\n", " ")
    first, second = "against single 1x1 tuned", "against single 1x1 threads"
    assert words.count(first) == words.count(second) == 2, "of the speed-up and the efficiency"
    assert words.index(first) < words.index(second)
    # One process with threads, which is a reference too, is compared with the first one only.
    assert words.count("single 1x1 threads 1 rank") == 1
    assert words.count("horovod-mpi 1x2 tuned 2 ranks") == 2


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The tables of 50 configurations: two of each of 25 variants, the first the fastest."""
    experiment = FakeExperiment(tmp_path_factory.mktemp("many")).add_dataset()
    for number in range(25):
        experiment.add("single", "1x1", 5.0 + number, 1, variant=f"v{number:02}")
        experiment.add("horovod-mpi", "1x2", 3.0 + number, 1, variant=f"v{number:02}")
    return tabled(experiment)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        pytest.param("confusion_matrices", 12, marks=pytest.mark.sweep),
        ("mean_scores", 40),
        pytest.param("seconds_per_epoch", 20, marks=pytest.mark.sweep),
        ("speedup", 40),
    ],
)
def test_a_figure_shows_the_fastest_of_many_configurations_with_their_references(many, name, most):
    words = _drawn(name, many).replace("\n", " ")
    assert f"the fastest configurations, with their references: {most} of 50. All are in" in words
    last = most // 2 - 1
    variant, further = f"v{last:02}", f"v{last + 1:02}"
    assert re.search(rf"(horovod-mpi 1x2 |two processes on one node \(){variant}", words)
    assert further not in words


def test_configurations_whose_reference_has_no_runs_are_named(tmp_path):
    experiment = fair(tmp_path, 5.0, 4.0, 3.0, repeats=2)
    del experiment.runs[:2]
    words = _drawn("mean_scores", tabled(experiment, references=REFERENCES)).replace("\n", " ")
    without = "no match with single 1x1 tuned"
    assert f"Without difference: single 1x1 threads ({without}); " in words
    assert f"; horovod-mpi 1x2 tuned ({without})." in words
    assert "difference of the score" not in words


@pytest.mark.parametrize("name", BY_CLASS)
def test_a_class_without_test_rows_is_named(tmp_path, fits, name):
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 5.0, untested="SARS")
    words = _drawn(name, tabled(experiment)).replace("\n", " ")
    assert "No test rows, hence no scores: SARS (demo-1000)." in words
    assert "No test rows" not in fits[name]


@pytest.mark.parametrize("name", BY_CLASS)
def test_of_too_many_classes_no_scores_by_class_are_kept_and_the_figure_says_so(tmp_path, name):
    frames = tabled(with_classes(three_configurations(tmp_path), 101), references=REFERENCES)
    assert frames["confusion"].empty and frames["pooled"].empty
    assert set(frames["reports"]["level"]) == {"macro", "weighted", "accuracy"}
    assert "at most 100" in _drawn(name, frames)


def test_a_matrix_of_many_classes_is_no_larger_than_a_page(tmp_path):
    frames = tabled(with_classes(three_configurations(tmp_path), 60))
    with common.style():
        drawn = figure("confusion_matrices").draw(frames)
    assert max(drawn.get_size_inches()) < 40
    words = _drawn("confusion_matrices", frames)
    assert "60 classes are in the table confusion" in words and "c59" not in words


def test_of_many_classes_those_of_most_rows_are_shown(base):
    classes = base["classes"]
    more = [classes.assign(**{"class": f"rare {n:02}", "train": 1, "test": 1}) for n in range(40)]
    words = _drawn("class_distribution", base | {"classes": pd.concat([classes, *more])})
    assert "the 30 of " in words and all(name in words for name in CLASSES)
    assert "rare 39" not in words


@pytest.fixture(scope="module")
def without_classes(tmp_path_factory):
    """The tables of a workload that brings a score of its own."""
    return tabled(regression(tmp_path_factory.mktemp("regression")))


@pytest.mark.parametrize("name", [*FIGURES, *BY_CLASS, "splits"])
def test_figures_of_data_without_classes_do_not_call_their_runs_failed(without_classes, name):
    words = _drawn(name, without_classes).replace("\n", " ")
    if name in FIGURES:
        assert re.search("horovod-mpi|two processes", words) and "ended ok" not in words
    else:
        assert "No run that ended ok has" in words


DRAW = """
from pathlib import Path
from escala.report.figures import common
with common.style():
    figure = common.new(3, 2)
    figure.subplots().plot([1, 2], label="a")
    figure.suptitle("Title")
    common.save(figure, Path({path!r}))
"""


def test_settings_of_a_notebook_or_of_a_user_draw_nothing(tmp_path):
    exec(DRAW.format(path=str(tmp_path / "here.svg")))
    (tmp_path / "matplotlibrc").write_text(
        "font.size: 30\ntext.usetex: True\naxes.facecolor: red\nlines.linewidth: 9\n"
    )
    backend = "module://matplotlib_inline.backend_inline"
    variables = {"PYTHONPATH": str(ROOT), "MPLBACKEND": backend}
    code = DRAW.format(path=str(tmp_path / "there.svg"))
    done = python("-c", code, cwd=tmp_path, variables=variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there.svg").read_bytes() == (tmp_path / "here.svg").read_bytes()


def test_words_stay_words_in_svg_and_equal_data_give_equal_bytes(tmp_path, nothing):
    for path in (paths := [tmp_path / f"{n}.svg" for n in range(2)]):
        with common.style():
            common.save(figure("speedup").draw(nothing), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second and b"<dc:date>" not in first
    words = " ".join("".join(each.itertext()) for each in ET.parse(paths[0]).iter(f"{SVG}text"))
    assert "costs $5 and $6 <b>&amp;</b>" in words


def test_captions_give_the_number_of_values_that_an_interval_needs():
    said = {
        number
        for each in DECLARED.values()
        for number in re.findall(r"range for fewer than (\w+)", each.caption)
    }
    assert said == {in_words(VALUES_FOR_INTERVAL)}


def test_seconds_keep_three_digits():
    assert list(map(readable.number, (2.2, 0.05123, 1234.5))) == ["2.20", "0.0512", "1234"]


def test_time_by_nodes_names_the_networks_and_the_rates_measured(tmp_path, base):
    experiment = three_configurations(tmp_path).add("horovod-mpi", "2x1", 4.0)
    experiment.add("horovod-mpi", "2x2", 3.9).add("horovod-mpi", "3x1", 3.8)
    rates = {"2x1": ("slow", 95.5), "2x2": ("slow", 95.5), "3x1": ("fast", 950.0)}
    for path in experiment.runs:
        run = read_json(path)
        if run["layout"] in rates:
            name, rate = rates[run["layout"]]
            link = {"rate": name, "mbit_per_second": rate, "latency_ms": 0.06, "interface": None}
            write_json(path, run | {"network": name, "link": link})
    frames = tabled(experiment)
    words = _drawn("scaling", frames)
    for expected in ("slow: 95.5 Mbit/s 1 a", "2x1 2x2", "nodes", "demo-1000 (simulated)"):
        assert expected in words
    assert words.index("slow: 95.5") < words.index("fast: 950"), "in the order of their rates"
    with common.style():
        [axes] = figure("scaling").draw(frames).axes
    times = frames["configurations"].set_index("layout")["train_seconds_per_epoch"]
    points = {tuple(point) for line in axes.lines for point in line.get_xydata()}
    assert {(2, times["2x1"]), (2, times["2x2"]), (3, times["3x1"])} <= points
    [one] = {line.get_ydata()[0] for line in axes.lines if line.get_color() == "0.4"}
    single = frames["configurations"].set_index("strategy").loc["single"]
    assert one == single["train_seconds_per_epoch"]
    assert LONG["slow"] in "".join(_drawn("scaling", _hard(frames)).split())
    assert "No layout of several nodes" in _drawn("scaling", base)


@pytest.mark.parametrize("change", [dict, _hard])
def test_resources_are_drawn_for_each_process_and_gaps_are_named(tmp_path, change):
    frames = change(tables.tables(probe_files=sampled(tmp_path)))
    words = _drawn("resources", frames)
    for expected in ("processor (%)", "horovod-mpi 1x2", "unavailable", "No samples: horovod-gloo"):
        assert expected in words


def _on_nodes(root: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of processes sampled on one, two and three nodes, on two networks."""
    experiment = FakeExperiment(root).add_dataset().add("single", "1x1", 4.0, 1, variant="native")
    for layout, network in product(("2x1", "3x1"), ("native", "slow")):
        experiment.add("horovod-mpi", layout, 4.0, repeats=1, variant=network)
    unread = dict.fromkeys(Resources.result["items"]["properties"]) | {"samples": 4}
    for number, path in enumerate(experiment.runs):
        run = read_json(path)
        cpu = [90.0 - 10 * number + rank for rank in range(int(run["layout"][0]))]
        processes = [unread | {"rank": n, "cpu_percent_mean": each} for n, each in enumerate(cpu)]
        link = {"rate": "10mbit", "mbit_per_second": 9.7, "latency_ms": 0.1, "interface": None}
        network = {"network": run["variant"], "variant": "tuned"}
        network["link"] = link if run["variant"] == "slow" else None
        changed([path], repeat=None, instrument="resources", resources=processes, **network)
    return tables.tables(probe_files=experiment.runs)


def test_means_of_resources_are_drawn_by_nodes_and_network(tmp_path):
    frames = _on_nodes(tmp_path)
    with common.style():
        axes, *_ = figure("resources").draw(frames).axes
    assert axes.get_ylabel() == "processor (%)"
    lines = {tuple(map(tuple, line.get_xydata())) for line in axes.lines}
    means = frames["resources"].groupby(["network", "layout"])["cpu_percent_mean"].mean()
    for network in ("native", "slow"):
        assert tuple((nodes, means[network, f"{nodes}x1"]) for nodes in (2, 3)) in lines
    words = _drawn("resources", _hard(frames))
    for expected in ("memory (MiB)", "unavailable", "native", "single", "nodes"):
        assert expected in words


@pytest.fixture(scope="module")
def clocks(tmp_path_factory):
    """The tables of ranks that noted the moments of their steps; one configuration failed."""
    experiment, runs = clocked(tmp_path_factory.mktemp("clocks"))
    return tabled(experiment, probe_files=runs)


@pytest.mark.parametrize("change", [dict, _hard])
def test_parts_of_a_step_are_drawn_for_each_rank_and_gaps_are_named(clocks, change):
    for name, expected in {
        "attribution": ["forward and backward", "5.0 ms overlapped", "No clocks: horovod-gloo",
                        "Step against that of the timing runs: single 1x1"],
        "step_of_ranks": ["waiting for the slowest rank", "No step: horovod-gloo"],
    }.items():  # fmt: skip
        words = _drawn(name, change(clocks)).replace("\n", " ")
        for each in (*expected, "horovod-mpi 1x2, rank\u00a01"):
            assert each in words


def test_passes_are_drawn_in_place_of_their_sum(clocks):
    table = clocks["attribution"]
    whole = table[table["part"] == "compute"]
    halves = [
        whole.assign(part=part, seconds=whole["seconds"] / 2) for part in ("forward", "backward")
    ]
    words = _drawn("attribution", clocks | {"attribution": pd.concat([table, *halves])})
    assert {"forward", "backward"} <= {*words.split("\n")}
    assert "forward and backward" not in words


def test_a_step_is_drawn_as_long_as_it_took(clocks):
    with common.style():
        [axes] = figure("step_of_ranks").draw(clocks).axes
    bars = [path.get_extents() for each in axes.collections for path in each.get_paths()]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["single 1x1, rank\u00a00", *(f"horovod-mpi 1x2, rank\u00a0{r}" for r in (0, 1))]
    for row in range(len(rows)):
        own = [box for box in bars if box.y0 < row < box.y1]
        assert sum(box.width for box in own) == pytest.approx(109, abs=1e-3)
        assert min(box.x0 for box in own) == pytest.approx(0, abs=1e-3)


def test_rungs_of_a_ladder_are_drawn_with_what_they_are_worth(tmp_path):
    _, files, rungs = laddered(tmp_path)
    frames = tables.tables(series_files=files, rungs=rungs)
    words = _drawn("ladder", frames)
    for expected in ("from slow to slower", "0.40 (-3.60 s)", "all changes multiplied"):
        assert expected in words
    change = "every rank trains on its own part of the rows and not on all of them"
    long = frames | {"ladder": frames["ladder"].replace({"from slow to slower": change})}
    assert change.replace(" ", "") in "".join(_drawn("ladder", long).split())
