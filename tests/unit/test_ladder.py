"""What the changes on the way from one configuration to another come to."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures_runs import changed, laddered
from pages import tabled

from escala.core.files import read_json, write_json
from escala.report import tables
from escala.report.figures import common, ladder
from escala.report.summary import summary

pytestmark = pytest.mark.usefixtures("few_resamples")


def _tables(folder: Path, change=lambda paths: None, match="way-", rungs=slice(None)):
    experiment, paths, listed = laddered(folder)
    change(paths)
    series = [path for path in paths if path.parent.name.startswith(match)]
    return tabled(experiment, series_files=series, rungs=listed[rungs])


def _slower_ends(factors: tuple[float, float]):
    """Multiply the times of the fast configuration, where the ends are measured directly."""

    def change(paths: list[Path]) -> None:
        for path in _of(paths, "way-ends"):
            run = read_json(path)
            for epoch in run["epochs"] if run["variant"] == "fast" else []:
                epoch["epoch_wall_seconds"] *= factors[run["repeat"] - 1]
            write_json(path, run)

    return change


def _of(paths: list[Path], match: str) -> list[Path]:
    return [path for path in paths if path.parent.name.startswith(f"{match}.")]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return _tables(tmp_path_factory.mktemp("ladder"))


def test_rungs_come_first_then_their_product_and_what_was_measured_directly(three, tmp_path):
    table = three["ladder"]
    assert list(table["part"]) == ["rung", "rung", "product", "direct"]
    assert list(table["rung"].dropna()) == [1, 2]
    assert list(table["change"].dropna()) == ["from slow to slower", "from slower to fast"]
    assert list(table["ratio"]) == pytest.approx([1.25, 0.4, 0.5, 0.5])
    assert list(table["matches"]) == [2, 2, 2, 2]
    assert table.set_index("part").loc["direct", ["before", "after"]].tolist() == [
        "horovod-mpi 1x2 slow",
        "horovod-mpi 1x2 fast",
    ]
    tables.write(three, tmp_path)


def test_what_a_change_costs_is_the_median_difference_of_its_matches(three):
    table = three["ladder"]
    # 8 and 4 seconds before; 10 and 5, and 3.2 and 1.6, after.
    assert list(table["cost_seconds"]) == pytest.approx([-1.5, 3.6, 2.1, 3.0])
    assert table.loc[1, ["cost_low_seconds", "cost_high_seconds"]].tolist() == pytest.approx(
        [2.4, 4.8]
    )


@pytest.mark.parametrize(
    ("factors", "product_to_ends", "interval", "verdict"),
    [
        ((1.0, 1.0), 1.0, (1, 1), "the changes explain it"),
        ((1.25, 1.25), 0.8, (0.8, 0.8), "the changes do not explain it"),
        # The rungs' matches give 0.5. Those of the ends 0.3 and 1.05, and 0.25 and 1: scattered.
        ((0.6, 2.1), 1.26**-0.5, (10 / 21, 1 / 0.6), "this may be chance, and more matches"),
        ((0.5, 2.0), 1.0, (0.5, 2.0), "it agrees, and more matches"),
        # Apart for sure, and perhaps by less than a tenth.
        ((0.85, 0.95), 0.8075**-0.5, (1 / 0.95, 1 / 0.85), "this may be chance, and more matches"),
    ],
)
def test_a_product_far_from_the_ends_is_said_unless_it_may_be_chance(
    tmp_path, factors, product_to_ends, interval, verdict
):
    frames = _tables(tmp_path, _slower_ends(factors))
    product = frames["ladder"].set_index("part").loc["product"]
    assert product["product_to_ends"] == pytest.approx(product_to_ends)
    assert (product["product_to_ends_low"], product["product_to_ends_high"]) == pytest.approx(
        interval
    )
    low, high = interval
    off = f"{abs(product_to_ends - 1):.0%} ".replace("%", " %") + (
        "above" if product_to_ends >= 1 else "below"
    )
    assert (
        f"is {off} the ratio of the ends (quotient {low:.2f}–{high:.2f}): {verdict}"
    ) in summary(frames, "demo", "A title")


def test_runs_of_different_sessions_are_no_match(tmp_path):
    table = _tables(
        tmp_path, lambda paths: changed(_of(paths, "way-1")[::2], session="20250101T000000Z-1")
    )["ladder"]
    assert list(table["kind"]) == ["unavailable", "measured", "unavailable", "measured"]
    assert "share session and repeat" in table["reason"][0]
    assert table["reason"][2] == "no ratio of rung 1"
    assert table["product_to_ends"].isna().all()


def test_a_failed_run_leaves_a_gap_that_is_named(tmp_path):
    failed = {"status": "failed", "reason": "rank 1 was ended by signal 9"}

    def fail(paths: list[Path]) -> None:
        changed([_of(paths, "way-2")[1], _of(paths, "way-2")[2]], **failed)

    frames = _tables(tmp_path, fail)
    assert frames["ladder"]["reason"][1] == "fast rep 1: failed: rank 1 was ended by signal 9"
    assert "no ratio of rung 2" in summary(frames, "demo", "A title")
    with common.style():
        common.save(ladder.draw(frames), tmp_path / "ladder.svg")
    assert "from slower to fast: fast rep 1: failed" in (tmp_path / "ladder.svg").read_text()


def test_a_ladder_of_two_rungs_is_one_ratio(tmp_path):
    frames = _tables(tmp_path, match="way-2.", rungs=slice(1, 2))
    assert frames["ladder"][["part", "ratio"]].to_numpy().tolist() == [["rung", pytest.approx(0.4)]]
    ends = "takes 0.40 (range 0.40–0.40) of the time per epoch of `horovod-mpi 1x2 slower`."
    assert ends in summary(frames, "demo", "A title")
