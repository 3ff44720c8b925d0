"""A history holds what was measured, once, whoever writes to it and whatever happens to a file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
import text_boxes
from fixtures_runs import MACHINE, FakeExperiment, changed

from escala import cli
from escala.analysis import history
from escala.core.errors import InputError
from escala.core.files import read_json, sha256_file
from escala.report.figures import common
from escala.report.history import figure, rows, series
from scripts import history as command
from tests import documented
from tests.conftest import ROOT

START = datetime(2026, 1, 1, tzinfo=UTC)


def experiment(root: Path, session: int = 0, name: str = "demo", seconds: float = 5.0):
    """Return an experiment with two configurations, measured in one session."""
    made = FakeExperiment(root, name=name)
    started = START + timedelta(days=session)
    label = f"{started:%Y%m%dT%H%M%SZ}-{session}"
    made.add("single", "1x1", seconds, 2, session=label)
    made.add("horovod-mpi", "1x2", 0.6 * seconds, 2, session=label)
    changed(made.runs, started=started.isoformat(timespec="seconds"))
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(history.LOCATION, str(tmp_path / "history"))
    return tmp_path / "history"


def filled(folder: Path, sessions: int = 3) -> list[FakeExperiment]:
    made = [experiment(folder.parent / str(number), number) for number in range(sessions)]
    rows.add(folder, [each.folder for each in made])
    return made


def measured(folder: Path, warn=pytest.fail) -> list[str]:
    """Return the digests of the measurements in a history, sorted."""
    with history.read(folder, warn=warn) as database:
        found = history.query(database, "SELECT run_sha256 FROM runs ORDER BY 1").rows
    return [digest for (digest,) in found]


def frame(database: duckdb.DuckDBPyConnection, sql: str) -> pd.DataFrame:
    table = history.query(database, sql)
    return pd.DataFrame(table.rows, columns=table.columns)


@pytest.fixture
def run_command(monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess]:
    """Run the command in this process; `started` starts it as a user does."""

    def run(*arguments: object) -> subprocess.CompletedProcess:
        monkeypatch.setattr("sys.argv", ["history", *map(str, arguments)])
        monkeypatch.setattr("signal.signal", lambda *_: None)
        capsys.readouterr()
        code = cli.main(command.main)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


def started(*arguments: object) -> subprocess.Popen:
    """Start the command as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.history", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_history_holds_every_measurement_once(folder):
    made = experiment(folder.parent, session=1)
    made.add("single", "1x1", 5.0, 2, session="later", older={"earlier": 6.0})
    made.add_timeline("horovod-mpi", "1x2")
    runs = [read_json(path) for path in rows.run_files(made.folder)]
    distinct = {json.dumps(run, sort_keys=True): run for run in runs}.values()
    sessions = sorted(run["session"] for run in distinct)
    added = rows.add(folder, [made.folder])
    assert (added.measurements, added.known) == (len(distinct), 0)
    assert {path.name.rsplit(".", 3)[0] for path in added.files} == {*sessions}
    assert rows.add(folder, [made.folder])[:3] == ([], 0, len(distinct))
    with history.read(folder) as database:
        found = frame(database, "SELECT * FROM runs")
        documents = history.query(database, "SELECT run FROM documents").rows
    assert sorted(found["session"]) == sessions
    assert list(found["instrument"].dropna()) == ["timeline"]
    assert sorted(documents) == sorted((history.document(run),) for run in distinct)


def test_queries_agree_with_the_files(folder):
    seconds: dict[str, dict] = {}
    for run in (read_json(path) for each in filled(folder) for path in each.runs):
        epochs = [epoch["train_seconds"] for epoch in run["epochs"]]
        seconds.setdefault(run["session"], {})[run["strategy"], run["repeat"]] = np.mean(epochs)
    with history.read(folder) as database:
        times, ratios, sessions = (
            frame(database, history.named_query(name)) for name in ("times", "ratios", "sessions")
        )
    assert len(times) == 6 and list(ratios["strategy"]) == ["horovod-mpi"] * 3
    for row in times.itertuples():
        own = seconds[row.session]
        assert row.value == pytest.approx(np.median([own[row.strategy, n] for n in (1, 2)]))
    for row in ratios.itertuples():
        own = seconds[row.session]
        quotients = [own["horovod-mpi", n] / own["single", n] for n in (1, 2)]
        assert row.value == pytest.approx(np.median(quotients))
    assert [f"{day:%d}" for day in sessions["started"]] == ["01", "02", "03"]
    assert set(sessions["measurements"]) == {4}


def test_every_named_query_has_a_description_and_runs(folder):
    filled(folder, 1)
    with history.read(folder.parent / "nothing") as empty, history.read(folder) as database:
        for name in history.QUERIES:
            sql = history.named_query(name)
            assert history.describe_query(name).endswith(".")
            assert history.query(empty, sql).rows == [] and history.query(database, sql).columns


def test_machines_hosts_and_versions_are_told_apart(folder):
    made = [experiment(folder.parent / str(number), number) for number in range(4)]
    ranks = read_json(made[0].runs[0])["ranks"]
    changed(made[1].runs, ranks=ranks | {"machines": [MACHINE | {"cpu": "Faster CPU"}]})
    changed(made[2].runs, ranks=ranks | {"hosts": ["n7"]})
    changed(made[3].runs, source_sha256="1" * 64)
    rows.add(folder, [each.folder for each in made])
    with history.read(folder, "strategy = 'single'") as database:
        machines, hosts, versions = (
            frame(database, history.named_query(name)) for name in ("machines", "hosts", "versions")
        )
    assert sorted(machines["sessions"]) == [1, 3] and machines["times_the_fastest"].min() == 1.0
    assert set(hosts["hosts"]) == {"example", "n7"}
    assert set(versions["source_sha256"]) == {"0" * 64, "1" * 64}
    assert "python 1.0" in versions["versions"][0]


def test_failed_runs_are_listed_and_not_measured(folder):
    made = FakeExperiment(folder.parent)
    made.add("single", "1x1", 5.0, 3, failed={2: ("failed", "rank 0 died\nTraceback")})
    rows.add(folder, [made.folder])
    with history.read(folder) as database:
        failures = frame(database, history.named_query("failures"))
        [(count,)] = history.query(database, "SELECT count(*) FROM measurements").rows
    [failed] = failures[["failed", "runs", "last_reason"]].itertuples(index=False, name=None)
    assert failed == (1, 3, "rank 0 died")
    assert count == 2


def test_a_measurement_gets_its_ratio_when_its_reference_is_added(folder):
    made = experiment(folder.parent)
    single = made.folder / "runs" / made.dataset / "virus-cnn" / "single"
    shutil.move(single, folder.parent / "single")
    for ratios in (0, 1):
        added = rows.add(folder, [made.folder])
        assert added.measurements == (4 if ratios else 2)
        with history.read(folder) as database:
            assert len(history.query(database, history.named_query("ratios")).rows) == ratios
        if not ratios:
            shutil.move(folder.parent / "single", single)
    assert rows.add(folder, [made.folder]).measurements == 0 and len(measured(folder)) == 4


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_added(folder):
    made = experiment(folder.parent)
    for path in (made.runs[0], *made.runs[0].parent.glob("sessions/*")):
        path.write_text('{"status": "o')
    added = rows.add(folder, [made.folder])
    assert added.measurements == 3 and made.runs[0] in added.unreadable
    done = started("add", made.folder)
    assert "is empty, cut off, or not a run.json" in done.communicate()[1] and done.returncode == 1
    with pytest.raises(InputError, match="holds no runs"):
        rows.add(folder, [folder.parent])


def _flip(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 1
    path.write_bytes(content)


FAULTS = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "a value": lambda path: _flip(path, 0.4),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=[*FAULTS])
def test_a_damaged_file_is_named_in_one_warning_and_skipped(folder, fault):
    made, warned = filled(folder), []
    everything = measured(folder)
    first, second, _ = history.files(folder).intact
    for path in (first, second):
        fault(path)
    assert len(measured(folder, warned.append)) == len(everything) // 3
    [warning] = warned
    assert str(first) in warning and str(second) in warning and "Remedy" in warning
    with pytest.warns(UserWarning, match="is not as it was written"):
        history.read(folder).close()
    rows.add(folder, [each.folder for each in made], warn=warned.append)
    assert measured(folder) == everything


def test_a_file_that_is_none_of_a_history_is_skipped(folder):
    filled(folder, 1)
    everything, warned = measured(folder), []
    for name in ("other.parquet", "notes.parquet", "README"):
        (folder / name).write_bytes(b"not Parquet, but it may have the name of its digest")
    other = folder / "other.parquet"
    other.rename(folder / history.name_of("other", {}, sha256_file(other)))
    assert measured(folder, warned.append) == everything
    [warning] = warned
    assert history.UNREADABLE in warning and "notes.parquet" in warning
    assert "README" not in warning


def test_files_of_other_versions_are_read(folder):
    filled(folder, 2)
    everything = measured(folder)
    old, new = history.files(folder).intact
    for path, columns in ((old, "* EXCLUDE (launcher, machines)"), (new, "*, 7 AS added_later")):
        other = folder / "other.new"
        duckdb.execute(f"COPY (SELECT {columns} FROM '{path}') TO '{other}' (FORMAT parquet)")
        path.unlink()
        [session] = duckdb.execute(
            f"SELECT DISTINCT session FROM read_parquet('{other}')"
        ).fetchone()
        described = duckdb.execute(f"DESCRIBE FROM read_parquet('{other}')").fetchall()
        types = {name: sql for name, sql, *_ in described}
        other.rename(folder / history.name_of(session, types, sha256_file(other)))
    assert measured(folder) == everything
    with history.read(folder) as database:
        found = history.query(database, "SELECT DISTINCT launcher FROM runs ORDER BY 1").rows
    assert found == [("mpirun",), (None,)]


def test_any_name_of_a_folder_will_do(tmp_path):
    folder = tmp_path / "a [b]*? 'c' \" d"
    rows.add(folder, [experiment(tmp_path).folder])
    assert len(measured(folder)) == 4


def test_several_writers_and_readers_at_once(folder):
    folders = [experiment(folder.parent / str(n), n).folder for n in range(3)]
    parts = (folders, folders[:0:-1])
    writers = [started("add", *selected) for selected in parts]
    while any(writer.poll() is None for writer in writers):
        counted = len(measured(folder))
        assert counted % 4 == 0, "a session is there as a whole or not at all"
    for writer in writers:
        _, error = writer.communicate()
        assert (writer.returncode, error) == (0, "")
    assert len(measured(folder)) == 12


def _documented() -> list[tuple[str, ...]]:
    """Return the arguments of each command that reads a history in its how-to."""
    page = ROOT / "docs" / "how-to" / "history.md"
    words = [each.words for each in documented.commands(page)]
    calls = [each[2:] for each in words if each[:2] == ("escala", "history")]
    return [each for each in calls if each[0] in ("query", "changes", "plot")]


@pytest.mark.parametrize("arguments", _documented(), ids=" ".join)
def test_the_commands_of_the_how_to_read_a_history(folder, run_command, tmp_path, arguments):
    filled(folder)
    given = [str(tmp_path / "history.svg") if each == "history.svg" else each for each in arguments]
    done = run_command(*given)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "where",
    [
        "nothing = 1",
        "-- true",
        "true; SELECT 1",
        "true); COPY (SELECT 1) TO '{written}'; --",
        "true) UNION ALL (SELECT * FROM held WHERE true",
        "layout = $layout",
    ],
)
def test_what_is_no_condition_on_measurements_is_refused(folder, tmp_path, where):
    filled(folder, 1)
    written = tmp_path / "written.csv"
    with pytest.raises(InputError, match="--where"):
        history.read(folder, where.format(written=written))
    assert not written.exists()


def test_a_condition_selects_measurements_in_every_view(folder):
    filled(folder)
    where = "started < now() AND (strategy = 'single' OR layout = '1x9') -- one process"
    others = "documents WHERE run->>'strategy' <> 'single'"
    with history.read(folder, where) as database:
        numbers = [
            history.query(database, f"SELECT count(*) FROM {view}").rows[0][0]
            for view in ("runs", "documents", "measurements", others)
        ]
    assert numbers == [6, 6, 6, 0]


def drawn_sessions(
    folder: Path,
    seconds: list[float],
    source: int = 99,
    rates: Sequence[float | None] = (),
    speeds: Sequence[float | None] = (),
) -> None:
    """Write a session a day of one process, `source` being the first with other code."""
    made = experiment(folder.parent / "base")
    [(_, base)] = rows.rows(made.runs[:1]).sessions.items()
    for number, value in enumerate(seconds):
        started = START + timedelta(days=number)
        new = base[0] | {
            "run_sha256": f"{number:064x}",
            "session": f"s{number:03}",
            "started": started.isoformat(),
            "train_seconds_per_epoch": value,
            "source_sha256": ("1" if number >= source else "0") * 64,
            "mbit_per_second": rates[number] if rates else None,
            "speed_seconds": speeds[number] if speeds else None,
        }
        history.write(folder, new["session"], [new])


def test_changes_are_listed_with_what_else_changed(folder, run_command):
    drawn_sessions(folder, [5.0 + 0.01 * (n % 3) for n in range(12)] + [6.0] * 6, source=12)
    said = run_command("changes").stdout
    for expected in (
        "single 1x1 tuned; Example CPU @ 2.00GHz",
        "2026-01-13 00:00 session s012: 5.01 s to 6 s (+19.8%), 5 sessions in a row",
        "other code than the session before",
        "1 series: 0 without a change, 0 too short",
        "A steady series of 18 sessions has a mark with a probability of at most 0.0",
    ):
        assert expected in said
    said = run_command("changes", "--where", "session < 's014'").stdout
    assert "not confirmed: 2026-01-13 00:00 session s012" in said
    assert "1 without a change" in said


def test_links_of_unlike_rates_are_series_of_their_own(folder):
    drawn_sessions(folder, [5.0] * 4, rates=(950.0, 100.0, 940.0, None))
    with history.read(folder) as database:
        found = series.series(database)
    names = [[each.session for each in each_rate.sessions] for each_rate in found]
    assert names == [["s000", "s002", "s003"], ["s001"]]


def test_machines_of_unlike_speeds_are_series_of_their_own(folder):
    drawn_sessions(folder, [5.0] * 4, speeds=(0.0024, 0.0048, None, 0.0026))
    with history.read(folder) as database:
        found = series.series(database)
    names = [[each.session for each in each_speed.sessions] for each_speed in found]
    assert names == [["s000", "s002", "s003"], ["s001"]]


def drawn(found, quantity: str = "time") -> str:
    """Return the words of the figure, whose texts neither overlap nor are cut off."""
    with common.style():
        made = figure.draw(found, quantity)
        boxes = text_boxes.drawn_texts(made)
    assert not text_boxes.overlaps(boxes)
    assert not text_boxes.cut_off(made, boxes)
    return "\n".join(box.text for box in boxes)


def test_the_figure_shows_configurations_machines_and_changes(folder, tmp_path):
    drawn_sessions(folder, [5.0 + 0.01 * (n % 3) for n in range(12)] + [6.0] * 6)
    made = experiment(tmp_path / "again", 40)
    ranks = read_json(made.runs[0])["ranks"]
    changed(made.runs, ranks=ranks | {"machines": [MACHINE | {"cpu": "Other CPU"}]})
    rows.add(folder, [made.folder])
    with history.read(folder) as database:
        times = series.series(database)
        ratios = series.series(database, "ratio")
    said = " ".join(drawn(times).split())
    for words in ("single 1x1 tuned", "horovod-mpi 1x2 tuned", "+20%", "Other CPU", "Example CPU"):
        assert words in said
    assert "Ratio to one process" in drawn(ratios, "ratio")
    assert "no such measurement" in drawn([])
    many = [times[0]._replace(digest=str(number)) for number in range(13)]
    with pytest.raises(InputError, match="13 configurations"):
        figure.draw(many)


def test_a_command_that_skips_a_damaged_file_shows_the_rest_and_ends_with_1(
    folder, tmp_path, run_command
):
    filled(folder, 2)
    FAULTS["cut off"](history.files(folder).intact[0])
    done = started("query", "sessions", "--csv")
    out, error = done.communicate()
    assert done.returncode == 1 and len(out.splitlines()) == 2 and "not read: " in error
    drawing = tmp_path / "history.svg"
    assert run_command("plot", drawing).returncode == 1 and drawing.exists()


def test_the_command_adds_queries_and_draws(folder, tmp_path, run_command):
    made = experiment(tmp_path)
    missing = run_command("query", "sessions")
    assert missing.returncode == 2 and "is not a folder of a history" in missing.stderr
    added, _ = started("add", made.folder).communicate()
    assert "4 measurements of 1 session added, 0 already there" in added
    listed = run_command("query").stdout
    assert all(f"{name}: " in listed for name in history.QUERIES)
    table = run_command("query", "sessions", "--csv").stdout.splitlines()
    assert table[0].startswith("session,started,experiments") and len(table) == 2
    own = run_command("query", "--sql", "SELECT max(ranks) AS r FROM runs", "--csv")
    assert own.stdout.split() == ["r", "2"]
    formula = run_command("query", "--sql", "SELECT '=1+1' AS a, -2 AS b", "--csv")
    assert formula.stdout.split() == ["a,b", "'=1+1,-2"]
    drawing = tmp_path / "history.svg"
    done = run_command("plot", drawing, "--where", "strategy = 'single'")
    assert done.returncode == 0, done.stderr
    assert "single 1x1 tuned" in drawing.read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        ["query", "--sql", "SELECT nothing FROM runs"],
        ["query", "--sql", "SELECT session::INT FROM runs"],
        ["query", "--sql", " "],
        ["query", "sessions", "--sql", "SELECT 1"],
        ["query", "sessions", "--where", "layout = 5"],
        ["plot", "history.xyz"],
        ["plot", "none/history.svg"],
    ],
    ids=" ".join,
)
def test_what_a_command_cannot_do_is_refused_by_its_option(folder, run_command, wrong):
    filled(folder, 1)
    done = run_command(*wrong)
    assert done.returncode == 2
    assert done.stderr.startswith(("escala: --", "escala: FILE")), done.stderr
