"""A history holds what was measured, once, whoever writes to it and whatever happens to a file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from fixtures_runs import FakeExperiment, changed

from escala import cli, command
from escala.analysis import history
from escala.core.errors import InputError
from escala.core.files import read_json, sha256_file
from escala.report import history as rows
from tests import documented
from tests.conftest import ROOT

START = datetime(2026, 1, 1, tzinfo=UTC)
HAS_RATIO = (
    "SELECT strategy, repeat, ratio FROM measurements WHERE ratio IS NOT NULL ORDER BY repeat"
)


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


@pytest.fixture
def run_command(monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess]:
    """Run the command in this process; `started` starts it as a user does."""

    def run(*arguments: object) -> subprocess.CompletedProcess:
        monkeypatch.setattr("signal.signal", lambda *_: None)
        capsys.readouterr()
        module, given = command.parse(["history", *map(str, arguments)])
        code = cli.main(lambda: module.run(given))
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


def started(*arguments: object) -> subprocess.Popen:
    """Start the command as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", "escala.command", "history", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_history_holds_every_measurement_once(folder):
    made = experiment(folder.parent, session=1)
    made.add("single", "1x1", 5.0, 2, session="later", older={"earlier": 6.0})
    # Another instrument, and a run that failed.
    made.add_timeline("horovod-mpi", "1x2")
    made.add("mirrored", "1x2", 5.0, 1, failed={1: ("failed", "rank 0 died\nTraceback")})
    runs = [read_json(path) for path in rows.run_files(made.folder)]
    distinct = {json.dumps(run, sort_keys=True): run for run in runs}.values()
    sessions = sorted(run["session"] for run in distinct)
    added = rows.add(folder, [made.folder])
    assert (added.runs, added.known) == (len(distinct), 0)
    assert {path.name.rsplit(".", 3)[0] for path in added.files} == {*sessions}
    assert rows.add(folder, [made.folder])[:4] == ([], 0, 0, len(distinct))
    with history.read(folder) as database:
        table = history.query(database, "SELECT * FROM runs")
        found = pd.DataFrame(table.rows, columns=table.columns)
        [(measured_runs,)] = history.query(database, "SELECT count(*) FROM measurements").rows
        documents = history.query(database, "SELECT run FROM documents").rows
    assert sorted(found["session"]) == sessions
    assert list(found["instrument"].dropna()) == ["timeline"]
    assert found["reason"].dropna().tolist() == ["rank 0 died\nTraceback"]
    assert measured_runs == len(distinct) - 2, "neither a probe nor a run that failed"
    assert (len(found), measured_runs) == (added.runs, added.measurements)
    assert sorted(documents) == sorted((history.document(run),) for run in distinct)


def test_a_ratio_is_that_to_one_process_of_its_session_and_repeat(folder):
    [made] = filled(folder, 1)
    seconds = {}
    for run in map(read_json, made.runs):
        epochs = [epoch["train_seconds"] for epoch in run["epochs"]]
        seconds[run["strategy"], run["repeat"]] = np.mean(epochs)
    with history.read(folder) as database:
        ratios = history.query(database, HAS_RATIO).rows
    assert [row[:2] for row in ratios] == [("horovod-mpi", 1), ("horovod-mpi", 2)]
    for strategy, repeat, ratio in ratios:
        assert ratio == pytest.approx(seconds[strategy, repeat] / seconds["single", repeat])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[int(0.4 * len(content))] ^= 1
    path.write_bytes(content)


FAULTS = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "a value": _flip,
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


def test_a_measurement_gets_its_ratio_when_its_reference_is_added(folder):
    made = experiment(folder.parent)
    single = made.folder / "runs" / made.dataset / "virus-cnn" / "single"
    shutil.move(single, folder.parent / "single")
    for ratios in (0, 1):
        added = rows.add(folder, [made.folder])
        assert (added.runs, added.known) == (2, 2 * ratios)
        with history.read(folder) as database:
            assert len(history.query(database, HAS_RATIO).rows) == 2 * ratios
        if not ratios:
            shutil.move(folder.parent / "single", single)
    assert rows.add(folder, [made.folder])[:2] == ([], 0) and len(measured(folder)) == 4


def test_files_that_are_none_of_a_history_are_skipped_whatever_its_name(tmp_path):
    folder = tmp_path / "a [b]*? 'c' \" d"
    rows.add(folder, [experiment(tmp_path).folder])
    everything, warned = measured(folder), []
    assert len(everything) == 4
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


def test_the_command_adds_and_queries_and_names_what_it_cannot_do(folder, tmp_path, run_command):
    made = experiment(tmp_path)
    missing = run_command("query", "--sql", "FROM runs")
    assert missing.returncode == 2 and "is not a folder of a history" in missing.stderr
    added, _ = started("add", made.folder).communicate()
    assert "4 runs of 1 session added, 4 of these runs as measurements; 0 already there" in added
    for sql, printed in (
        ("SELECT max(ranks) AS r FROM runs", "r\n2\n"),
        ("SELECT '=1+1' AS a, -2 AS b", "a,b\n'=1+1,-2\n"),
    ):
        done = run_command("query", "--sql", sql, "--csv")
        assert done.stdout.replace("\r", "") == printed
    page = ROOT / "docs" / "how-to" / "history.md"
    for words in (each.words for each in documented.commands(page)):
        if words[:3] == ("escala", "history", "query"):
            done = run_command(*words[2:])
            assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip()
    for sql in ("SELECT nothing FROM runs", "SELECT session::INT FROM runs", " "):
        done = run_command("query", "--sql", sql)
        assert done.returncode == 2 and done.stderr.startswith("escala: --sql"), done.stderr
    # Files that cannot be read are named, and the others count.
    FAULTS["cut off"](history.files(folder).intact[0])
    done = run_command("query", "--sql", "SELECT count(*) FROM runs", "--csv")
    assert done.returncode == 1 and done.stdout.split()[1] == "0" and "not read: " in done.stderr
    for path in (made.runs[0], *made.runs[0].parent.glob("sessions/*")):
        path.write_text('{"status": "o')
    done = run_command("add", made.folder)
    assert done.returncode == 1 and "is empty, cut off, or not a run.json" in done.stderr
    assert len(measured(folder, list)) == 3
    with pytest.raises(InputError, match="holds no runs"):
        rows.add(folder, [folder.parent / "history"])
