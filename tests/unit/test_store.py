"""What was made once is served while all that determined it is the same, and only then."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala import cli, command
from escala.cache import entries as inside
from escala.cache import store, upkeep
from escala.cache.code import Code

MAKE, SERVE = "made", "served"
VERSIONS = {"numpy": "1"}
CODE = Code({"shout": Path(__file__)}, VERSIONS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("ESCALA_MEASURE_AGAIN", raising=False)
    return tmp_path / "store"


@pytest.fixture
def step(tmp_path: Path) -> Callable[..., str]:
    """A step that upper-cases a file, once into a file and once into a folder."""
    source, results = tmp_path / "genomes.fasta", tmp_path / "results"
    source.write_text(">a\nacgt\n")

    def run(times: int = 1, **changes: object) -> str:
        def make() -> None:
            text = source.read_text().upper() * times
            (results / "folder" / "inner").mkdir(parents=True, exist_ok=True)
            (results / "empty").mkdir(exist_ok=True)
            for path in ("file.txt", "folder/-1", "folder/.a", "folder/inner/b"):
                (results / path).write_text(text + path)

        arguments = {
            "code": CODE,
            "inputs": {"genomes": source},
            "parameters": {"times": times},
            "outputs": {name: results / name for name in ("file.txt", "folder", "empty")},
            "make": make,
        }
        return store.get_or_compute(changes.pop("name", "shout"), **arguments | changes)

    run.source, run.results = source, results
    return run


def bytes_of(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def blobs(folder: Path) -> list[Path]:
    return [path for path in folder.glob("blobs/*/*") if path.is_file()]


def entries(folder: Path) -> list[Path]:
    """In the order they were stored."""
    return sorted(folder.glob("entries/*/*/*.json"), key=lambda path: path.name)


def test_what_was_removed_is_served_as_it_was_made(step, capsys):
    assert step() == MAKE
    first = bytes_of(step.results)
    assert len(first) == 7
    shutil.rmtree(step.results)
    assert step(make=pytest.fail) == SERVE
    assert bytes_of(step.results) == first
    assert capsys.readouterr().err == ""


def test_content_counts_and_where_it_stands_does_not(tmp_path, step):
    step()
    moved = tmp_path / "elsewhere" / "renamed.fasta"
    moved.parent.mkdir()
    shutil.copy(step.source, moved)
    outputs = {name: tmp_path / "x" / name for name in ("file.txt", "folder", "empty")}
    assert step(inputs={"genomes": moved}, outputs=outputs, make=pytest.fail) == SERVE
    moved.write_text("other")
    assert step(inputs={"genomes": moved}) == MAKE


@pytest.mark.parametrize(
    "change",
    [
        {"name": "whisper"},
        {"parameters": {"times": 1, "more": None}},
        {"code": Code({"renamed": Path(__file__)}, VERSIONS)},
        {"code": Code({"shout": Path(store.__file__)}, VERSIONS)},
        {"code": Code(CODE.paths, {"numpy": "2"})},
        {"code": Code(CODE.paths, {"scipy": "1"})},
        {"inputs": {}},
        {"outputs": ["file.txt"]},
    ],
)
def test_every_part_of_the_key_counts(step, change, capsys):
    step()
    if "outputs" in change:
        change = {"outputs": {name: step.results / name for name in change["outputs"]}}
    assert step(**change) == MAKE
    assert (step(**change), step()) == (SERVE, SERVE)
    assert "damaged" not in capsys.readouterr().err


def test_the_format_counts(step, monkeypatch):
    step()
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    assert (step(), step()) == (MAKE, SERVE)


TREES = st.dictionaries(
    st.sampled_from(["a", "b", "c/a", "c/-", "d/e/f", "g/", "c/h/"]), st.sampled_from([b"", b"x"])
)


@settings(max_examples=60)
@given(TREES, TREES)
def test_the_content_of_folders_is_equal_where_names_and_bytes_are(tmp_path_factory, one, other):
    found, written = [], []
    for tree in (one, other):
        folder = tmp_path_factory.mktemp("tree")
        for name, text in tree.items():
            path = folder / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_bytes(text)
        found.append(inside.content(folder))
        written.append(bytes_of(folder))
    assert (found[0] == found[1]) == (written[0] == written[1])


def test_what_raises_or_makes_too_little_is_not_stored(step, folder):
    with pytest.raises(ZeroDivisionError):
        step(make=lambda: 1 / 0)
    with pytest.raises(FileNotFoundError, match=r"shout did not make it.*file\.txt"):
        step(make=lambda: None)
    assert not entries(folder)


@pytest.mark.parametrize("changed", ["input", "parameters"])
def test_what_an_input_or_a_parameter_became_meanwhile_is_not_stored(step, folder, capsys, changed):
    """It would be served for ever in place of what the first gives."""
    parameters, outputs = {"knobs": {"threads": 1}}, {"file": step.results / "file.txt"}

    def make() -> None:
        if changed == "input":
            step.source.write_text("changed")
        else:
            parameters["knobs"]["threads"] = 2
        step.results.mkdir()
        outputs["file"].write_text("of the changed input")

    assert step(parameters=parameters, outputs=outputs, make=make) == MAKE
    assert not entries(folder)
    assert "changed while it ran: not stored" in capsys.readouterr().err


def test_an_optional_output_that_was_not_made_is_removed_when_served(tmp_path, step):
    model = step.results / "model.npz"
    outputs = {"file.txt": step.results / "file.txt", "model": model}
    assert step(outputs=outputs, optional=["model"]) == MAKE
    model.write_text("of another run")
    assert step(outputs=outputs, optional=["model"]) == SERVE
    assert not model.exists()
    assert (step.results / "file.txt").exists()


def test_a_measurement_is_served_until_it_is_asked_for_again(step, folder, monkeypatch):
    measured = []

    def measure() -> None:
        measured.append(len(measured))
        step.results.mkdir(exist_ok=True)
        (step.results / "run.json").write_text(str(measured[-1]))

    outputs = {"run": step.results / "run.json"}

    def shelf(machine: str = "a") -> store.Shelf:
        return store.Shelf("shout", CODE, {"genomes": step.source}, {}, {"cpu": machine})

    for _ in range(2):
        measure()
        shelf().keep(outputs)
    assert [text for _, text in shelf().measurements("run")] == [b"0", b"1"]
    assert shelf("b").measurements("run") == []
    monkeypatch.setenv("ESCALA_MEASURE_AGAIN", "1")
    assert shelf().measurements("run") == []
    step()
    assert step() == SERVE, "what is no measurement is not made again"
    monkeypatch.delenv("ESCALA_MEASURE_AGAIN")
    (oldest, _), (newest, _) = shelf().measurements("run")
    assert shelf().serve(outputs, oldest.path.name)
    assert outputs["run"].read_text() == "0"
    assert shelf().serve(outputs)
    assert outputs["run"].read_text() == "1", "the newest is served"
    newest.path.chmod(0o600)
    newest.path.write_text("{}")
    assert shelf().serve(outputs)
    assert outputs["run"].read_text() == "0", "the newest is damaged"
    assert not newest.path.exists()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("file.txt", lambda blob, was: blob.write_bytes(bytes([was[0] ^ 1]) + was[1:])),
        ("folder/inner/b", lambda blob, was: blob.write_bytes(was[:-1])),
        ("folder/inner/b", lambda blob, was: blob.unlink()),
    ],
)
def test_a_damaged_file_is_named_made_again_and_mended(step, folder, capsys, name, damage):
    step()
    first = bytes_of(step.results)
    [blob] = [path for path in blobs(folder) if path.read_bytes() == first[name]]
    blob.chmod(0o600)
    damage(blob, first[name])
    shutil.rmtree(step.results)
    assert step() == MAKE
    assert str(blob) in capsys.readouterr().err
    assert bytes_of(step.results) == first
    assert step() == SERVE
    assert bytes_of(step.results) == first
    assert capsys.readouterr().err == ""


def rewrite(path: Path, change: Callable[[dict], None]) -> None:
    """Change an entry as someone would who knows how it is protected against accidents."""
    said = json.loads(path.read_text())
    change(said)
    written = json.dumps(said).encode()
    path.unlink()
    digest = hashlib.sha256(written).hexdigest()
    path.with_name(f"{path.name.split('.')[0]}.{digest}.json").write_bytes(written)


def overwritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.chmod(0o600) or path.write_bytes(change(path.read_bytes()))


def says(file: str, blob: object) -> Callable[[Path], None]:
    """Let an entry name another blob for a file of the folder."""
    return lambda path: rewrite(
        path, lambda said: said["outputs"]["folder"].update({file: [blob, 1]})
    )


@pytest.mark.parametrize(
    "damage",
    [
        overwritten(lambda was: b""),
        overwritten(lambda was: was[:-9]),
        overwritten(lambda was: b"\xff" + was),
        overwritten(lambda was: was.replace(b"-1", b"-2")),
        lambda path: rewrite(path, lambda said: said["determined"].update(step="other")),
        lambda path: rewrite(path, lambda said: said.pop("outputs")),
        says("../out", "0" * 64),
        says("/tmp/out", "0" * 64),
        # A path would be read, without an end.
        says("-1", "../../../../../dev/zero"),
        says("-1", "/dev/zero"),
        says("-1", "0" * 63),
        says("-1", None),
    ],
)
def test_a_damaged_entry_is_named_and_made_again(step, folder, capsys, damage):
    step()
    first = bytes_of(step.results)
    [entry] = entries(folder)
    damage(entry)
    assert step() == MAKE
    assert f"damaged, not served: {entry.parent}" in capsys.readouterr().err
    assert bytes_of(step.results) == first
    assert step() == SERVE


def test_nothing_done_to_what_is_served_reaches_the_store(step, folder):
    step()
    first, stored = bytes_of(step.results), bytes_of(folder)
    shutil.rmtree(step.results)
    step()
    for path in (p for p in step.results.rglob("*") if p.is_file()):
        assert not path.is_symlink() and path.stat().st_nlink == 1
        path.chmod(0o600)
        path.write_text("altered")
    assert bytes_of(folder) == stored
    assert step() == SERVE
    assert bytes_of(step.results) == first


def test_where_a_result_cannot_be_written_nothing_is_made(step, tmp_path, capsys):
    """The store is not at fault: what is made could not be written there either."""
    step()
    (tmp_path / "blocked").write_text("a file in place of the folder")
    outputs = {name: tmp_path / "blocked" / name for name in ("file.txt", "folder", "empty")}
    with pytest.raises(OSError, match="blocked"):
        step(outputs=outputs, make=pytest.fail)
    assert capsys.readouterr().err == ""


def test_files_in_folders_are_protected_and_folders_can_be_removed(step, folder):
    step()
    shutil.rmtree(step.results)
    step()
    files = [path for path in step.results.rglob("*") if path.is_file()]
    writable = [path.name for path in files if path.stat().st_mode & stat.S_IWUSR]
    assert writable == ["file.txt"], "Snakemake never makes a protected output again"
    assert not any(path.stat().st_mode & 0o222 for path in [*blobs(folder), *entries(folder)])


@pytest.mark.parametrize("where", ["genomes.fasta/store", "/proc/store"])
def test_where_there_can_be_no_store_a_line_says_so(step, tmp_path, monkeypatch, capsys, where):
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / where))
    assert step() == MAKE
    assert bytes_of(step.results)["file.txt"]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "the work goes on without it" in said


def used(days_ago: float, path: Path) -> None:
    then = time.time() - days_ago * 24 * 3600
    os.utime(path, (then, then))


def test_what_was_long_not_used_is_pruned_and_the_least_recently_used_first(step, folder):
    for times in (1, 2, 3):
        step(times=times)
    for path, days in zip(entries(folder), (10, 10, 3), strict=True):
        used(days, path)
    step(times=1)
    assert upkeep.prune(folder, older_than_days=5).entries == 1
    assert [step(times=times) for times in (1, 3, 2)] == [SERVE, SERVE, MAKE]
    for path, days in zip(entries(folder), (3, 9, 6), strict=True):
        used(days, path)
    step(times=1, parameters={"other": 1})
    used(20, entries(folder)[-1])
    gone = upkeep.prune(folder, older_than_days=15)
    assert (gone.entries, gone.files) == (1, 1), "its blobs are those of another entry"
    limit = upkeep.size(folder).bytes - 1
    planned = upkeep.prune(folder, larger_than_bytes=limit, dry_run=True)
    assert len(entries(folder)) == 3, "a dry run removes nothing"
    assert upkeep.prune(folder, larger_than_bytes=limit) == planned
    assert upkeep.size(folder).bytes <= limit
    assert [step(times=times) for times in (1, 2, 3)] == [SERVE, SERVE, MAKE]
    upkeep.prune(folder, larger_than_bytes=0)
    assert not blobs(folder) and not entries(folder)


def test_what_killed_processes_left_is_swept_and_nothing_else(step, folder):
    step()
    left = folder / "incoming" / ("a" * 32)
    orphan = folder / "blobs" / "bb" / ("b" * 64)
    orphan.parent.mkdir()
    for path in (left, orphan):
        path.write_text("half")
    foreign = [folder / "README", folder / "blobs" / "mine", folder / "incoming" / "mine"]
    for path in foreign:
        path.write_text("mine")
    found = upkeep.size(folder)
    assert found.unneeded_bytes == 8
    assert upkeep.prune(folder) == upkeep.Pruned(0, 2, 8)
    assert not left.exists() and not orphan.exists()
    assert all(path.exists() for path in foreign)
    assert step(make=pytest.fail) == SERVE


def test_pruning_waits_for_who_stores_and_not_for_who_makes(step, folder):
    step()
    pruned = threading.Thread(target=upkeep.prune, args=[folder])
    with inside.hold_lock(folder), inside.temporary_file(folder) as unfinished:
        unfinished.write_text("half")
        pruned.start()
        pruned.join(0.2)
        assert pruned.is_alive() and unfinished.exists()
    pruned.join(60)
    assert not pruned.is_alive()

    def make() -> None:
        upkeep.prune(folder, larger_than_bytes=0)
        assert not entries(folder)
        (step.results / "file.txt").write_text("made")

    outputs = {"file.txt": step.results / "file.txt"}
    assert step(make=make, outputs=outputs, name="prune") == MAKE, "making holds no lock"


def test_verifying_finds_what_is_damaged_and_removes_it_if_asked(step, folder):
    step()
    step(times=2)
    assert upkeep.verify(folder) == {}
    flipped, lost, *_ = [path for path in blobs(folder) if b"ACGT\n>A" in path.read_bytes()]
    flipped.chmod(0o600)
    flipped.write_bytes(flipped.read_bytes().lower())
    lost.unlink()
    whole, holed = entries(folder)
    assert set(upkeep.verify(folder)) == {flipped, holed}
    assert flipped.exists() and holed.exists()
    assert set(upkeep.verify(folder, remove=True)) == {flipped, holed}
    assert entries(folder) == [whole]
    assert upkeep.verify(folder) == {}
    assert (step(), step(times=2), step(times=2)) == (SERVE, MAKE, SERVE)


@pytest.fixture
def run_command(monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("signal.signal", lambda *_: None)
        capsys.readouterr()
        module, given = command.parse(["store", *arguments])
        code = cli.main(lambda: module.run(given))
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_the_command_shows_what_there_is(step, folder, run_command):
    step()
    step(times=2, name="whisper")
    code, said = run_command("size")
    assert code == 0 and "shout" in said and "10 files" in said
    rows = run_command("list")[1].splitlines()
    assert [row.split()[1] for row in rows] == ["shout", "whisper"]
    shown = json.loads(run_command("show", rows[1].split()[0])[1])
    assert shown["determined"]["parameters"] == {"times": 2}
    assert shown["determined"]["inputs"]["genomes"][""][0] == inside.sha256_file(step.source)
    code, said = run_command("show", "nothing")
    assert code == 2 and "no entry has it" in said


def test_the_command_verifies_and_prunes(step, folder, run_command):
    step()
    assert run_command("verify") == (0, f"{folder}: nothing is damaged\n")
    blob = blobs(folder)[0]
    blob.chmod(0o600)
    blob.write_bytes(b"")
    for arguments in ((), ["--remove"]):
        code, said = run_command("verify", *arguments)
        assert code == 1 and str(blob) in said
    assert run_command("verify")[0] == 0
    step()
    code, said = run_command("prune", "--larger-than", "0", "--dry-run")
    assert code == 0 and said.startswith("1 entry, 5 files") and entries(folder)
    assert run_command("prune", "--older-than", "1")[1].startswith("0 entries")
    assert entries(folder)
    assert run_command("prune", "--larger-than", "0")[0] == 0
    assert not entries(folder)


@pytest.mark.parametrize("where", ["off", "."])
def test_the_command_touches_no_folder_that_is_no_store(tmp_path, run_command, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESCALA_STORE", where)
    code, said = run_command("prune", "--larger-than", "0")
    assert code == 2 and "ESCALA_STORE" in said and "is not a store" in said
    assert not [*tmp_path.iterdir()]
