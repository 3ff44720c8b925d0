"""Figures: everything asked for is in them, gaps are named, and equal data give equal bytes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import cache
from itertools import combinations, product
from pathlib import Path

import matplotlib as mpl
import numpy as np
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
    twice,
    with_classes,
    with_fits,
)
from matplotlib.backends.backend_agg import FigureCanvasAgg
from pages import tabled, three

from escala.analysis.comparable import CONFIGURATION
from escala.core.files import read_json, write_json
from escala.core.readable import number as significant
from escala.probes.resources import Resources
from escala.report import tables
from escala.report.figures import (
    ALWAYS_DRAWN,
    DECLARED,
    SOME_FIGURES,
    common,
    figure,
    seconds_per_epoch,
)
from escala.report.figures.common import MARKERS, in_order, looks, strategy_look
from escala.report.tables.views import MOST
from escala.strategies import STRATEGIES
from tests.calls import python
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("few_resamples")

HAS = ("classes", "comparisons")
DRAWN = (*ALWAYS_DRAWN, *(name for name in SOME_FIGURES if DECLARED[name].needs in HAS))
FAILED = "horovod-gloo 1x2 rep 3 (failed)"
BY_EPOCH = ("accuracy_per_epoch", "seconds_per_epoch", "speedup")
BY_CLASS = ("confusion_matrices", "classification_reports")
SVG = "{http://www.w3.org/2000/svg}"


def _drawn(name: str, *what) -> str:
    """Return the words of a figure, whose texts neither overlap nor are cut off."""
    with common.style():
        drawn = figure(name).draw(*what)
        boxes = text_boxes.drawn_texts(drawn)
    assert len(boxes) >= 2 and max(drawn.get_size_inches()) < 40
    assert not text_boxes.overlaps(boxes)
    assert not text_boxes.cut_off(drawn, boxes)
    assert not [box.text for box in boxes if "\\math" in box.text], "formulas are not typeset"
    return "\n".join(box.text for box in boxes)


def _nothing(root: Path) -> dict[str, pd.DataFrame]:
    failed = {1: ("failed", "ValueError: costs $5 and $6 <b>&amp;</b>")}
    experiment = FakeExperiment(root, leaky=True).add_dataset()
    experiment.add("single", "1x1", 5.0, 1, failed)
    experiment.add("horovod-mpi", "1x2", 5.0, 1, failed)
    return tabled(experiment)


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


def _two_datasets(root: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of ten configurations of two datasets, with long names."""
    first = three_configurations(root)
    second = FakeExperiment(
        root, dataset="published", provenance="files", leaky=True, runs=first.runs
    ).add_dataset()
    second.add("single", "1x1", 50.0).add("horovod-mpi", "1x2", 60.0, variant="as-published")
    return _hard(tabled(second))


def _many(root: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of two of each of 25 variants, the first the fastest."""
    experiment = FakeExperiment(root).add_dataset()
    for number in range(25):
        experiment.add("single", "1x1", 5.0 + number, 1, variant=f"v{number:02}")
        experiment.add("horovod-mpi", "1x2", 3.0 + number, 1, variant=f"v{number:02}")
    return tabled(experiment)


def _rare(root: Path) -> dict[str, pd.DataFrame]:
    frames = tabled(three_configurations(root))
    rows = frames["classes"]
    more = [rows.assign(**{"class": f"rare {n:02}", "train": 1, "test": 1}) for n in range(40)]
    return frames | {"classes": pd.concat([rows, *more])}


def _clocks(root: Path) -> dict[str, pd.DataFrame]:
    experiment, runs = clocked(root)
    return tabled(experiment, probe_files=runs)


def _ladder(root: Path) -> dict[str, pd.DataFrame]:
    _, files, rungs = laddered(root)
    change = "every rank trains on its own part of the rows and not on all of them"
    frames = tables.tables(series_files=files, rungs=rungs)
    return frames | {"ladder": frames["ladder"].replace({"from slower to fast": change})}


MADE = {
    "three": lambda root: tabled(three_configurations(root)),
    "nothing": _nothing,
    "long": _two_datasets,
    "fits": lambda root: tabled(with_fits(root)),
    "regression": lambda root: tabled(regression(root)),
    "untested": lambda root: tabled(
        FakeExperiment(root).add_dataset().add("single", "1x1", 5.0, untested="SARS")
    ),
    "60 classes": lambda root: tabled(with_classes(three_configurations(root), 60)),
    "101 classes": lambda root: tabled(with_classes(three_configurations(root), 101)),
    "rare": _rare,
    "many": _many,
    "sampled": lambda root: tables.tables(probe_files=sampled(root)),
    "clocks": _clocks,
    "ladder": _ladder,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes the tables of a name once."""
    return cache(lambda name: MADE[name](tmp_path_factory.mktemp("made")))


@pytest.fixture(scope="module")
def words(made):
    """Return a function that draws a figure of such tables once, and returns its words."""
    return cache(lambda name, of: _drawn(name, made(of)))


OF_CLOCKS = ["forward and backward", "5.0 ms overlapped", "No clocks: horovod-gloo",
             "Step divided by the step of timing runs: single 1x1"]  # fmt: skip
RANK_1 = "horovod-mpi 1x2, rank 1"
#: Tables, figures of them, and what these show and do not show.
SHOWN = [
    ("three", ["class_distribution"], [*CLASSES, "sequences (count)", "training, oversampled"], []),
    ("three", ["accuracy_per_epoch"], ["training accuracy", "test accuracy", FAILED], []),
    ("three", ["seconds_per_epoch"], ["time per epoch (s)", "two processes on one", FAILED], []),
    ("three", ["confusion_matrices"], [*CLASSES, "true class", "runs: 3", "runs: 2", FAILED], []),
    ("three", ["classification_reports"], ["COVID (270)", "macro average (705)", FAILED], []),
    ("three", ["mean_scores"], ["difference from single 1x1", "2 to 3 runs for each", FAILED], []),
    ("three", ["speedup"], ["2 ranks", "efficiency", "horovod-gloo", FAILED], []),
    ("three", ["splits"], ["Points: runs of single 1x1.", FAILED, "demo-1000 (simulated)"], []),
    ("three", ["scaling"], ["No layout of several nodes"], []),
    ("nothing", DRAWN, ["demo-1000 (simulated, leaky split)"], []),
    ("nothing", [name for name in DRAWN if name != "class_distribution"],
     ["no run ended ok", "$5 and $6 <b>&amp;</b>"], []),
    ("fits", BY_EPOCH, ["Not shown, as they are fitted at once: kmer-logreg, majority."], []),
    ("fits", BY_CLASS, ["virus-cnn, single 1x1", "kmer-logreg, single 1x1", "majority, single 1x1"],
     ["No test rows"]),
    ("regression", [name for name in ALWAYS_DRAWN if name != "seconds_per_epoch"], ["horovod-mpi"],
     ["ended ok"]),
    ("regression", ["seconds_per_epoch"], ["two processes"], ["ended ok"]),
    ("regression", [*BY_CLASS, "splits"], ["No run that ended ok has"], []),
    ("untested", BY_CLASS, ["No test rows, hence no scores: SARS (demo-1000)."], []),
    ("101 classes", BY_CLASS, ["at most 100"], []),
    ("60 classes", ["confusion_matrices"], ["60 classes are in the table confusion"], ["c59"]),
    ("rare", ["class_distribution"], ["the 30 of ", *CLASSES], ["rare 39"]),
    ("many", ["mean_scores", "speedup"],
     ["with their references: 40 of 50. All are in", "horovod-mpi 1x2 v19"], ["v20"]),
    ("long", [name for name in DRAWN if name != BY_CLASS[1]],
     [f"{LONG['published']}(files,leakysplit)", "demo-1000(simulated)"], []),
    ("long", ["accuracy_per_epoch"], [f"horovod-mpi1x2{LONG['as-published']}"], []),
    ("long", ["seconds_per_epoch"], [f"onenode(HorovodoverMPI,{LONG['as-published']})"], []),
    ("long", ["speedup"], ["nosingle1x1as-publishedalongsideit"], []),
    ("sampled", ["resources"],
     ["processor (%)", "horovod-mpi 1x2", "unavailable", "No samples: horovod-gloo"], []),
    ("clocks", ["attribution"], [*OF_CLOCKS, RANK_1], []),
    ("clocks", ["step_of_ranks"],
     ["waiting for the slowest rank", "No step: horovod-gloo", RANK_1], []),
    ("ladder", ["ladder"], ["from slow to slower", "0.40 (-3.60 s)", "all changes multiplied",
     "every rank trains on its own part of the rows and not on all of them"], []),
]  # fmt: skip


#: Figures that take seconds to draw, of which others show the same.
SWEPT = {
    "long": ("class_distribution", "mean_scores", "splits", "scaling", *BY_CLASS),
    "many": ("mean_scores",),
    "fits": BY_CLASS[1:],
}


@pytest.mark.parametrize(
    ("tables_of", "name", "shown", "hidden"),
    [
        pytest.param(
            of, name, *more, marks=[pytest.mark.sweep] if name in SWEPT.get(of, ()) else []
        )
        for of, names, *more in SHOWN
        for name in names
    ],
)
def test_what_is_shown_is_named_and_so_are_gaps(words, tables_of, name, shown, hidden):
    def plain(text: str) -> str:
        return "".join(text.split()).lower()

    text = plain(words(name, tables_of))
    for each in shown:
        assert plain(each) in text
    assert not any(plain(each) in text for each in hidden)


@pytest.mark.parametrize(
    ("tables_of", "name"),
    [("sampled", "resources"), ("clocks", "attribution"), ("clocks", "step_of_ranks")],
)
def test_long_names_fit_also_where_there_are_twice_as_many(made, tables_of, name):
    _drawn(name, _hard(made(tables_of)))


def test_what_is_not_shown_is_counted(made, words):
    for name in BY_EPOCH:
        assert words(name, "fits").count("kmer-logreg") == 1, "where it is said"
    text = words("mean_scores", "fits")
    assert text.count("difference of the score") == 1 and text.count("accuracy") == 3
    failed = made("nothing")["runs"].iloc[:1]
    many = pd.concat([failed.assign(variant=f"v{number}") for number in range(MOST + 3)])
    [text] = common.gaps(many)
    assert text.count("(failed)") == MOST
    assert text.endswith("; and 3 more. Reasons are in runs.csv.")
    too_many = made("101 classes")
    assert too_many["confusion"].empty and too_many["pooled"].empty
    assert set(too_many["reports"]["level"]) == {"macro", "weighted", "accuracy"}


@pytest.mark.parametrize(
    ("lowest", "darkest", "extend"),
    [(0.73, 0.7, "neither"), (0.2, 0.5, "min"), (0.99, 0.95, "neither")],
)
def test_the_darkest_score_is_near_the_lowest_one_that_is_not_useless(
    made, lowest, darkest, extend
):
    frames = made("three")
    pooled = frames["pooled"].assign(precision=1.0, recall=0.995, f1=lowest)
    fewer = pooled[pooled["class"] != CLASSES[0]]
    with common.style():
        drawn, lower = (
            figure("classification_reports").draw(frames | {"pooled": rows})
            for rows in (pooled, fewer)
        )
    assert lower.get_figheight() < drawn.get_figheight(), "a class less is a row less"
    [colours] = [axes._colorbar for axes in drawn.axes if hasattr(axes, "_colorbar")]
    assert colours.extend == extend
    panels = [axes.collections[0] for axes in drawn.axes if not hasattr(axes, "_colorbar")]
    assert len(panels) == 3
    for panel in (*panels, colours.mappable):
        assert panel.get_clim() == pytest.approx((darkest, 1))
    # A row for each class and for both averages, of three scores.
    [*_, macro, weighted] = panels[0].get_array().reshape(-1, 3)
    assert list(macro) == pytest.approx([1.0, 0.995, lowest])
    assert list(weighted) == pytest.approx(list(macro)), "of classes with equal scores"


def test_each_reference_has_a_row_of_panels(tmp_path):
    experiment = fair(tmp_path, 6.0, 5.0, 3.0, repeats=2)
    words = _drawn("speedup", tabled(experiment, references=REFERENCES)).replace("\n", " ")
    first, second = "against single 1x1 tuned", "against single 1x1 threads"
    assert words.count(first) == words.count(second) == 2, "of the speed-up and the efficiency"
    assert words.index(first) < words.index(second)
    # One process with threads, which is a reference too, is compared with the first one only.
    assert words.count("single 1x1 threads 1 rank") == 1
    assert words.count("horovod-mpi 1x2 tuned 2 ranks") == 2
    # A reference without runs is named.
    del experiment.runs[:2]
    words = _drawn("mean_scores", tabled(experiment, references=REFERENCES)).replace("\n", " ")
    for label in ("single 1x1 threads", "horovod-mpi 1x2 tuned"):
        assert f"{label} (no paired run with single 1x1 tuned)" in words


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


def test_words_stay_words_in_svg_and_equal_data_give_equal_bytes(tmp_path, made):
    for path in (paths := [tmp_path / f"{n}.svg" for n in range(2)]):
        with common.style():
            common.save(figure("speedup").draw(made("nothing")), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second and b"<dc:date>" not in first
    words = " ".join("".join(each.itertext()) for each in ET.parse(paths[0]).iter(f"{SVG}text"))
    assert "costs $5 and $6 <b>&amp;</b>" in words


def test_time_by_nodes_names_the_networks_and_the_rates_measured(tmp_path):
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


def test_means_of_resources_are_drawn_by_nodes_and_network(tmp_path):
    experiment = (
        FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 4.0, 1, variant="native")
    )
    for layout, network in product(("2x1", "3x1"), ("native", "slow")):
        experiment.add("horovod-mpi", layout, 4.0, repeats=1, variant=network)
    unread = dict.fromkeys(Resources.result["items"]["properties"]) | {"samples": 4}
    link = {"rate": "10mbit", "mbit_per_second": 9.7, "latency_ms": 0.1, "interface": None}
    for number, path in enumerate(experiment.runs):
        run = read_json(path)
        cpu = [90.0 - 10 * number + rank for rank in range(int(run["layout"][0]))]
        processes = [unread | {"rank": n, "cpu_percent_mean": each} for n, each in enumerate(cpu)]
        network = {"network": run["variant"], "variant": "tuned"}
        network["link"] = link if run["variant"] == "slow" else None
        changed([path], repeat=None, instrument="resources", resources=processes, **network)
    frames = tables.tables(probe_files=experiment.runs)
    with common.style():
        axes, *_ = figure("resources").draw(frames).axes
    lines = {tuple(map(tuple, line.get_xydata())) for line in axes.lines}
    means = frames["resources"].groupby(["network", "layout"])["cpu_percent_mean"].mean()
    for network in ("native", "slow"):
        assert tuple((nodes, means[network, f"{nodes}x1"]) for nodes in (2, 3)) in lines
    words = _drawn("resources", _hard(frames))
    for label in ("memory (MiB)", "unavailable", "native", "single", "nodes"):
        assert label in words


def test_passes_are_drawn_in_place_of_their_sum(made):
    table = made("clocks")["attribution"]
    whole = table[table["part"] == "compute"].assign(seconds=lambda rows: rows["seconds"] / 2)
    halves = [whole.assign(part=part) for part in ("forward", "backward")]
    words = _drawn("attribution", made("clocks") | {"attribution": pd.concat([table, *halves])})
    assert {"forward", "backward"} <= {*words.split("\n")}
    assert "forward and backward" not in words


def test_a_step_is_drawn_as_long_as_it_took(made):
    with common.style():
        [axes] = figure("step_of_ranks").draw(made("clocks")).axes
    bars = [path.get_extents() for each in axes.collections for path in each.get_paths()]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["single 1x1, rank\u00a00", *(f"horovod-mpi 1x2, rank\u00a0{r}" for r in (0, 1))]
    for row in range(len(rows)):
        own = [box for box in bars if box.y0 < row < box.y1]
        assert sum(box.width for box in own) == pytest.approx(109, abs=1e-3)
        assert min(box.x0 for box in own) == pytest.approx(0, abs=1e-3)


# Machado, Oliveira and Fernandes (2009), IEEE TVCG 15(6): severity 1.0, on linear RGB.
BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
}  # fmt: skip
# sRGB to XYZ under D65 (IEC 61966-2-1), and D65's white point.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
#: CIE76: about 2.3 is just noticeable side by side.
NOTICEABLE = 5.0


def _lab(colour: tuple, blindness: str) -> np.ndarray:
    """Return CIELAB of an sRGB colour as a colour-blind eye sees it."""
    rgb = np.array(colour)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt((XYZ @ np.clip(BLIND[blindness] @ linear, 0, 1)) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLIND)
@pytest.mark.parametrize("what", ["engine", "programs"])
def test_strategies_differ_for_colour_blind_readers(blindness, what):
    names = [name for name, each in STRATEGIES.items() if getattr(each, what)]
    seen = {name: _lab(strategy_look(name).colour, blindness) for name in names}
    close = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in combinations(seen, 2)}
    assert min(close.values()) > NOTICEABLE, min(close, key=close.get)
    # Matplotlib has no more filled markers: a further strategy shares one, in another colour.
    markers = {strategy_look(name).marker for name in names}
    assert len(markers) == min(len(names), len(MARKERS))


def test_colours_stand_out_from_paper_and_texts_from_cells():
    names = [str(number) for number in range(12)]
    colours = [
        *(strategy_look(name).colour for name in STRATEGIES),
        *(common.shade(strategy_look(name).colour, n) for name in STRATEGIES for n in range(3)),
        *common.palette(names[:9]).values(), *common.palette(names).values(),
        *common.palette_in_order(names).values(),
    ]  # fmt: skip
    # White is 21 times as light as black, and grey of 18 % is as far from both.
    assert common.contrast("black") == pytest.approx(21)
    assert common.contrast("#757575") == pytest.approx(4.6, abs=0.05)
    assert min(map(common.contrast, colours)) > 2.99
    axes = common.new(4, 4).subplots()
    values = pd.DataFrame(np.linspace(0, 1, 100).reshape(10, 10))
    common.heat_map(axes, values, annot=True, vmin=0, vmax=1, cmap="cividis")
    cells = axes.collections[0].get_facecolors()
    pairs = zip(axes.texts, cells, strict=True)
    assert min(common.contrast(text.get_color(), cell[:3]) for text, cell in pairs) >= 4.5


def test_a_phone_shows_a_whole_legend():
    figure = common.new(9.5, 3)
    figure.subplots()
    names = [f"a long name of a part, {'wide ' * n}" for n in range(7)]
    common.legend(figure, {name: mpl.lines.Line2D([], []) for name in names}, "parts")
    common.finish(figure, ["A title", "data"], ["A note."])
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    [legend], [axes] = figure.legends, figure.axes
    box = legend.get_window_extent(renderer)
    assert box.x0 >= 0 and box.x1 <= common.NARROW * figure.dpi
    assert figure._supxlabel.get_window_extent(renderer).y1 <= box.y0 + 2
    assert box.y1 <= axes.get_tightbbox(renderer).y0 + 2


def _frame(*rows: tuple[str, str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["strategy", "label"])
    return frame.assign(dataset="demo", workload="virus-cnn", layout="1x1")


def test_a_strategy_has_one_colour_and_marker_in_every_figure_and_nothing_else_has_it(tmp_path):
    frames = three(tmp_path)
    resources = tables.tables(probe_files=sampled(tmp_path / "sampled"))
    look, label = strategy_look("horovod-mpi"), "horovod-mpi 1x2"
    with common.style():
        accuracy, speedup, seconds, processes = (
            figure(name).draw(resources if name == "resources" else frames).axes[0]
            for name in ("accuracy_per_epoch", "speedup", "seconds_per_epoch", "resources")
        )
    [line] = [line for line in accuracy.lines if line.get_label() == label]
    [bars] = [bars for bars in speedup.containers if bars.get_label() == label]
    for part in (line, bars.lines[0], processes.lines[0]):
        assert mpl.colors.to_rgb(part.get_color()) == look.colour
        assert part.get_marker() == look.marker
    colours = {tuple(c[:3]) for part in seconds.collections for c in part.get_edgecolor()}
    assert look.colour in colours
    strategies = {strategy_look(name).colour for name in STRATEGIES}
    others = set(common.palette([str(n) for n in range(len(common.MUTED))]).values())
    assert len(others) == len(common.MUTED) and not others & strategies
    assert strategy_look("of an old measurement").colour == (0.0, 0.0, 0.0)
    # Variants share its marker, and differ in shade and line.
    rows = ("horovod-mpi", "tuned"), ("single", "one"), ("horovod-mpi", "as-published")
    found = looks(_frame(*rows))
    assert list(found) == ["one", "tuned", "as-published"], "in the order of the strategies"
    tuned, published = found["tuned"], found["as-published"]
    assert tuned == look and tuned.marker == published.marker
    assert tuned.colour != published.colour and tuned.line != published.line


def test_a_figure_keeps_data_sets_and_orders_strategies_and_layouts_by_their_ranks():
    other = _frame(("single", "c")).assign(dataset="another")
    frame = pd.concat([_frame(("horovod-mpi", "a"), ("single", "b")), other])
    assert list(in_order(frame)["label"]) == ["b", "a", "c"]
    names = [("mirrored", "four"), ("mirrored", "one"), ("single", "alone"), ("mirrored", "two")]
    frame = _frame(*names).assign(layout=["1x4", "1x1", "1x1", "2x1"])
    for rows in (frame, frame[::-1]):
        assert list(in_order(rows)["label"]) == ["alone", "one", "two", "four"]
    rows = [(name, name) for name in ("horovod-gloo", "single", "parameter-server")]
    assert looks(_frame(*rows)) == looks(_frame(*reversed(rows)))


ONE_PROCESS, THREADS = "one process", "one process with two threads"
TWO = "two processes on one node"


def _shown(frames: dict[str, pd.DataFrame], folder: Path) -> tuple[list[dict[str, str]], str]:
    """Return what each row tells, its name first, and all words of the figure."""
    path = folder / "figure.svg"
    with common.style():
        common.save(seconds_per_epoch.draw(frames), path)
    root = ET.parse(path).getroot()
    assert float(root.get("width").removesuffix("pt")) < 360, "it fits a phone"
    titles = [part.find(f"{SVG}title").text for part in root.iter(f"{SVG}g") if part.get("class")]
    rows = []
    for name, *values in (title.split("\n") for title in titles):
        rows.append({"name": name} | dict(value.split(": ", 1) for value in values))
    return rows, " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def _by_name(rows: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in reversed(rows)}


@pytest.fixture(scope="module")
def fair_tables(few_resamples, tmp_path_factory):
    return tabled(fair(tmp_path_factory.mktemp("fair"), 5.6, 4.6, 3.9), references=REFERENCES)


def _with_other_batches(folder: Path, reaching: bool = True) -> dict[str, pd.DataFrame]:
    """Return the tables of `fair` where the batch of two differs, which reach the target or not."""
    experiment = fair(folder, 5.6, 4.6, 3.9)
    for path in experiment.runs:
        if "horovod-mpi" in path.parts:
            low = {} if reaching else {"validation_accuracy": 0.2}
            epochs = [epoch | low for epoch in read_json(path)["epochs"]]
            changed([path], training={"global_batch": 128}, epochs=epochs)
    return tabled(experiment, references=REFERENCES)


def test_times_intervals_and_runs_are_those_of_the_tables(fair_tables, tmp_path):
    frames = fair_tables
    rows, words = _shown(frames, tmp_path)
    assert [row["name"] for row in rows[:3]] == [ONE_PROCESS, THREADS, TWO]
    known = frames["configurations"].set_index(["strategy", "variant"])
    runs = frames["runs"].set_index(["strategy", "variant"])["train_seconds_per_epoch"]
    for row, key in zip(rows, (("single", "tuned"), ("single", "threads")), strict=False):
        columns = [f"train{end}_seconds_per_epoch" for end in ("", "_low", "_high")]
        middle, low, high = map(significant, known.loc[key, columns])
        assert row["training time"] == f"{middle} s ({low}–{high})" and f"{middle} s" in words
        told = row["single runs"].removesuffix(" s").split(", ")
        assert told == list(map(significant, runs.sort_index(kind="stable").loc[key]))
    assert rows[0]["ratio"] == "1 (the main reference)" and "ideal" not in rows[0]
    one = known.loc[("single", "tuned"), "train_seconds_per_epoch"]
    assert rows[1]["ideal"] == rows[2]["ideal"] == f"{significant(one / 2)} s"
    assert rows[2]["verdict"] == "faster" and rows[2]["runs ok"] == "7 of 7"
    assert "the ideal" in words.replace("\n", " ")
    assert "Grey bands" not in words and "Yellow" not in words


def test_where_batches_differ_the_times_to_the_accuracy_come_first(fair_tables, tmp_path):
    target, epoch = "training time to accuracy 0.95 (s)", "training time per epoch (s)"
    _, words = _shown(fair_tables, tmp_path)
    assert words.index(epoch) < words.index(target)
    measured = _with_other_batches(tmp_path)
    rows, words = _shown(measured, tmp_path)
    assert words.index(target) < words.index(epoch)
    expected = measured["configurations"].set_index("strategy").loc["horovod-mpi"]
    row = _by_name(rows)[TWO]
    seconds = significant(expected["time_to_target_seconds"])
    assert row["training time"].startswith(f"{seconds} s") and "ideal" not in row
    assert row["ratio to the main reference"] != "–"
    # A time that did not reach the accuracy is a bound.
    rows, words = _shown(_with_other_batches(tmp_path / "low", reaching=False), tmp_path)
    bounds = {name: row["training time"][:2] == "> " for name, row in _by_name(rows).items()}
    assert bounds[TWO] and not bounds[ONE_PROCESS] and "After >, some runs did not reach" in words


def test_the_noise_floor_is_a_band_around_the_time_of_the_reference(tmp_path):
    experiment, again = twice(tmp_path)
    for path in again:
        seconds = read_json(path)["seconds"]
        changed([path], seconds=seconds | {"train": 1.03 * seconds["train"]})
    measured = tabled(experiment, series_files=again)
    rows, words = _shown(measured, tmp_path)
    floor, number = measured["noise"]["floor"].iloc[0], len(measured["configurations"])
    assert floor > 0.01 and "Yellow bands: the noise floor" in words
    told = {row["noise floor of the main reference"] for row in rows[:number]}
    assert told == {f"{100 * floor:.1f} %"}
    assert _by_name(rows)[f"{TWO} (Horovod over Gloo)"]["verdict"] == "not distinguishable"
    with common.style():
        axes = seconds_per_epoch.draw(measured).axes[0]
    known = measured["configurations"].set_index("strategy")["train_seconds_per_epoch"]
    bands = [bar.get_bbox() for bar in axes.patches]
    bands = [box for box in bands if 0 < box.x0 < known["single"] < box.x1]
    assert len(bands) == number
    for box in bands:
        expected = known["single"] / (1 + floor), known["single"] * (1 + floor)
        assert (box.x0, box.x1) == pytest.approx(expected)
        assert box.x0 < known["horovod-gloo"] < box.x1


def test_estimated_times_and_extrapolated_predictions_are_marked(fair_tables, tmp_path):
    frames = fair_tables
    two = frames["configurations"]["strategy"] == "horovod-mpi"
    kinds = frames["configurations"]["kind"].mask(two, "estimated")
    configurations = frames["configurations"].assign(kind=kinds)
    columns = [f"predicted{end}_seconds_per_epoch" for end in ("", "_low", "_high")]
    predicted = configurations[list(CONFIGURATION)].assign(
        **dict(zip(columns, (4.0, 3.0, 5.0), strict=True)),
        basis=["extrapolated" if each else "predicted" for each in two],
    )
    several = frames | {"configurations": configurations, "predictions": predicted}
    rows, words = _shown(several, tmp_path)
    for row in rows[:3]:
        assert row["training time"].startswith("≈ ") == (row["name"] == TWO)
        assert row["predicted"] == "4.00 s (3.00–5.00)"
    for expected in ("≈: estimated", "Hatched bands", "90 % interval"):
        assert expected in words
