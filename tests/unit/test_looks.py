"""Looks of strategies: the same in every figure, and told apart by colour-blind readers."""

from __future__ import annotations

from itertools import combinations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from fixtures_runs import sampled
from pages import three

from escala.report import tables
from escala.report.figures import common, figure
from escala.report.figures.common import MARKERS, in_order, looks, strategy_look
from escala.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("few_resamples")

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


def test_a_strategy_has_one_colour_and_marker_in_every_figure(tmp_path):
    frames = three(tmp_path)
    resources = tables.tables(probe_files=sampled(tmp_path / "sampled"))
    look, label = strategy_look("horovod-mpi"), "horovod-mpi 1x2"
    with common.style():
        accuracy, speedup, seconds, processes = (
            figure(name).draw(shown).axes[0]
            for name, shown in (
                ("accuracy_per_epoch", frames), ("speedup", frames),
                ("seconds_per_epoch", frames), ("resources", resources),
            )
        )  # fmt: skip
    [line] = [line for line in accuracy.lines if line.get_label() == label]
    [bars] = [bars for bars in speedup.containers if bars.get_label() == label]
    for drawn in (line, bars.lines[0], processes.lines[0]):
        assert mpl.colors.to_rgb(drawn.get_color()) == look.colour
        assert drawn.get_marker() == look.marker
    drawn_colours = {tuple(c[:3]) for part in seconds.collections for c in part.get_edgecolor()}
    assert look.colour in drawn_colours


def _frame(*rows: tuple[str, str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["strategy", "label"])
    return frame.assign(dataset="demo", workload="virus-cnn", layout="1x1")


def test_variants_of_one_strategy_share_its_marker_and_differ_in_shade_and_line():
    rows = ("horovod-mpi", "tuned"), ("single", "one"), ("horovod-mpi", "as-published")
    found = looks(_frame(*rows))
    assert list(found) == ["one", "tuned", "as-published"], "in the order of the strategies"
    tuned, published = found["tuned"], found["as-published"]
    assert tuned == strategy_look("horovod-mpi") and tuned.marker == published.marker
    assert tuned.colour != published.colour and tuned.line != published.line


def test_colours_of_other_things_are_none_of_the_strategies():
    strategies = {strategy_look(name).colour for name in STRATEGIES}
    others = set(common.palette([str(n) for n in range(len(common.MUTED))]).values())
    assert len(others) == len(common.MUTED) and not others & strategies
    assert strategy_look("of an old measurement").colour == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("two words", "two words"),
        ("a_long-name_without_spaces", None),
        ("WWWWWWWWWWWWWWWW", None),
        ("kept\nline", "kept"),
        ("horovod-mpi 1x2 tuned, rank\u00a01", "horovod-mpi"),
    ],
)
def test_names_break_where_they_can(text, first):
    lines = common.wrap(text, 1.1, 10).split("\n")
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(common.text_width(line, 10) <= 1.1 for line in lines)
    assert first in (None, lines[0])
    assert ("\u00a0" in text) == (lines[-1] == "rank\u00a01"), "such a space does not break"


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
