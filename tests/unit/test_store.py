"""What was made once is served while all that determined it is the same, and only then."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala import cli, command
from escala.cache import entries as inside
from escala.cache import store
from escala.cache.code import Code
from escala.core import variables
from escala.core.errors import InputError

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
        {"code": Code(CODE.paths, {"numpy": "2"})},
        {"inputs": {}},
        {"outputs": ["file.txt"]},
    ],
)
def test_every_part_of_the_key_counts(step, change, capsys, monkeypatch):
    step()
    if "outputs" in change:
        change = {"outputs": {name: step.results / name for name in change["outputs"]}}
    assert step(**change) == MAKE
    assert (step(**change), step()) == (SERVE, SERVE)
    assert "damaged" not in capsys.readouterr().err
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

    for error, wrong in ((ZeroDivisionError, lambda: 1 / 0), (FileNotFoundError, lambda: None)):
        with pytest.raises(error):
            step(make=wrong)
    assert step(parameters=parameters, outputs=outputs, make=make) == MAKE
    assert not entries(folder)
    assert "changed while it ran: not stored" in capsys.readouterr().err


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


def says(file: str, blob: object) -> Callable[[Path], None]:
    """Let an entry name another blob for a file of the folder."""
    return lambda path: rewrite(
        path, lambda said: said["outputs"]["folder"].update({file: [blob, 1]})
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.chmod(0o600) or path.write_bytes(b""),
        lambda path: path.chmod(0o600) or path.write_bytes(path.read_bytes()[:-9]),
        lambda path: rewrite(path, lambda said: said["determined"].update(step="other")),
        lambda path: rewrite(path, lambda said: said.pop("outputs")),
        says("../out", "0" * 64),
        # A path would be read, without an end.
        says("-1", "../../../../../dev/zero"),
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
    files = [path for path in step.results.rglob("*") if path.is_file()]
    writable = [path.name for path in files if path.stat().st_mode & stat.S_IWUSR]
    assert writable == ["file.txt"], "Snakemake never makes a protected output again"
    assert not any(path.stat().st_mode & 0o222 for path in [*blobs(folder), *entries(folder)])
    for path in files:
        assert not path.is_symlink() and path.stat().st_nlink == 1
        path.chmod(0o600)
        path.write_text("altered")
    assert bytes_of(folder) == stored
    assert step() == SERVE
    assert bytes_of(step.results) == first


def used(days_ago: float, path: Path) -> None:
    then = time.time() - days_ago * 24 * 3600
    os.utime(path, (then, then))


def test_what_was_long_not_used_is_pruned_and_the_least_recently_used_first(step, folder):
    for times in (1, 2, 3):
        step(times=times)
    for path, days in zip(entries(folder), (10, 10, 3), strict=True):
        used(days, path)
    step(times=1)
    assert store.prune(folder, older_than_days=5).entries == 1
    assert [step(times=times) for times in (1, 3, 2)] == [SERVE, SERVE, MAKE]
    for path, days in zip(entries(folder), (3, 9, 6), strict=True):
        used(days, path)
    step(times=1, parameters={"other": 1})
    used(20, entries(folder)[-1])
    gone = store.prune(folder, older_than_days=15)
    assert (gone.entries, gone.files) == (1, 1), "its blobs are those of another entry"
    limit = store.size(folder).bytes - 1
    planned = store.prune(folder, larger_than_bytes=limit, dry_run=True)
    assert len(entries(folder)) == 3, "a dry run removes nothing"
    assert store.prune(folder, larger_than_bytes=limit) == planned
    assert store.size(folder).bytes <= limit
    assert [step(times=times) for times in (1, 2, 3)] == [SERVE, SERVE, MAKE]
    store.prune(folder, larger_than_bytes=0)
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
    found = store.size(folder)
    assert found.unneeded_bytes == 8
    assert store.prune(folder) == store.Pruned(0, 2, 8)
    assert not left.exists() and not orphan.exists()
    assert all(path.exists() for path in foreign)
    assert step(make=pytest.fail) == SERVE


def test_pruning_waits_for_who_stores_and_not_for_who_makes(step, folder):
    step()
    pruned = threading.Thread(target=store.prune, args=[folder])
    with inside.hold_lock(folder), inside.temporary_file(folder) as unfinished:
        unfinished.write_text("half")
        pruned.start()
        pruned.join(0.2)
        assert pruned.is_alive() and unfinished.exists()
    pruned.join(60)
    assert not pruned.is_alive()

    def make() -> None:
        store.prune(folder, larger_than_bytes=0)
        assert not entries(folder)
        (step.results / "file.txt").write_text("made")

    outputs = {"file.txt": step.results / "file.txt"}
    assert step(make=make, outputs=outputs, name="prune") == MAKE, "making holds no lock"


def test_verifying_finds_what_is_damaged_and_removes_it_if_asked(step, folder):
    step()
    step(times=2)
    assert store.verify(folder) == {}
    flipped, lost, *_ = [path for path in blobs(folder) if b"ACGT\n>A" in path.read_bytes()]
    flipped.chmod(0o600)
    flipped.write_bytes(flipped.read_bytes().lower())
    lost.unlink()
    whole, holed = entries(folder)
    assert set(store.verify(folder)) == {flipped, holed}
    assert flipped.exists() and holed.exists()
    assert set(store.verify(folder, remove=True)) == {flipped, holed}
    assert entries(folder) == [whole]
    assert store.verify(folder) == {}
    assert (step(), step(times=2), step(times=2)) == (SERVE, MAKE, SERVE)


def test_the_command_shows_what_there_is(step, folder, monkeypatch, capsys):
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("signal.signal", lambda *_: None)
        capsys.readouterr()
        module, given = command.parse(["store", *arguments])
        code = cli.main(lambda: module.run(given))
        said = capsys.readouterr()
        return code, said.out + said.err

    step()
    step(times=2, name="whisper")
    rows = run("list")[1].splitlines()
    assert [row.split()[1] for row in rows] == ["shout", "whisper"]
    shown = json.loads(run("show", rows[1].split()[0])[1])
    assert shown["determined"]["parameters"] == {"times": 2}
    assert shown["determined"]["inputs"]["genomes"][""][0] == inside.sha256_file(step.source)
    assert run("show", "nothing")[0] == 2
    assert run("verify") == (0, f"{folder}: nothing is damaged\n")
    blob = blobs(folder)[0]
    blob.chmod(0o600)
    blob.write_bytes(b"")
    code, said = run("verify", "--remove")
    assert code == 1 and str(blob) in said
    code, said = run("prune", "--larger-than", "0", "--dry-run")
    assert code == 0 and said.startswith("1 entry") and entries(folder)
    assert run("prune", "--larger-than", "0")[0] == 0 and not entries(folder)
    for where in ("off", "."):
        monkeypatch.setenv("ESCALA_STORE", where)
        code, said = run("prune", "--larger-than", "0")
        assert code == 2 and "ESCALA_STORE" in said and "is not a store" in said


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


FILES = {"a.py": "A", "deep/b.cc": "B", "text.txt": ""}
LEFT_OUT = {".hidden": "x", ".git/c": "x", "__pycache__/a.pyc": "x", "deep/__pycache__/b.pyc": "x"}


def test_files_are_named_by_what_they_are_and_known_by_their_bytes(tmp_path):
    folder = tree(tmp_path / "one", FILES | LEFT_OUT)
    single = tree(tmp_path, {"probe.py": "P"}) / "probe.py"
    found = Code({"trainer": folder, "probe": single}).files()
    contents = {f"trainer/{name}": text for name, text in FILES.items()} | {"probe": "P"}
    assert found == {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items()
    }
    moved = folder.rename(tmp_path / "two")
    assert Code({"trainer": moved, "probe": single}).files() == found
    digests = {Code({"trainer": moved}).digest(), Code({"other": moved}).digest()}
    for change in ({"a.py": "other"}, {"new": ""}, {"deep/b.cc": "B "}):
        digests.add(Code({"trainer": tree(moved, change)}).digest())
    assert len(digests) == 5, "every byte and every name counts"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Code({"part": tmp_path / "nowhere"}).files()


RECORDED = """TF_ENABLE_ONEDNN_OPTS XLA_FLAGS ONEDNN_MAX_CPU_ISA DNNL_VERBOSE KMP_AFFINITY MKL_CBWR
NCCL_ALGO OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES NVIDIA_TF32_OVERRIDE TORCH_DISTRIBUTED_DEBUG
UCX_TLS PYTORCH_CUDA_ALLOC_CONF FI_PROVIDER MALLOC_ARENA_MAX GLIBC_TUNABLES LD_PRELOAD
LD_LIBRARY_PATH PYTHONHASHSEED PYTHONPATH"""
UNRECORDED = "HOME PATH LC_ALL TMPDIR CUDA_VISIBLE_DEVICES TF_CPP_MIN_LOG_LEVEL TORCH_HOME"


def test_what_can_change_a_result_reaches_the_ranks_and_is_recorded_unless_it_is_secret(tmp_path):
    given = dict.fromkeys(f"{RECORDED} {UNRECORDED}".split(), "/set")
    assert variables.for_ranks(given) == given
    assert variables.decisive(given) == dict.fromkeys(RECORDED.split(), "/set")
    # Configurations set the numbers of threads, so those of a shell decide nothing.
    threads = {"MKL_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3", "TF_NUM_INTRAOP_THREADS": "3"}
    assert variables.describe(given | threads) == variables.describe(given)
    assert variables.decisive_for_programs(threads) == {}
    assert variables.for_ranks(threads | {"ESCALA_PASS": "MKL_NUM_THREADS"}).keys() == {
        "MKL_NUM_THREADS", "ESCALA_PASS",
    }  # fmt: skip
    secret = dict.fromkeys(["MY_DATA", "MY_TOKEN", "OTHER", "TF_TOKEN", "CUDA_API_KEY"], "s")
    assert variables.for_ranks(secret) == {}
    named = secret | {"ESCALA_PASS": "MY_DATA,MY_TOKEN"}
    assert set(variables.for_ranks(named)) == {"MY_DATA", "MY_TOKEN", "ESCALA_PASS"}
    assert variables.decisive(named) == {"MY_DATA": "s"}
    # The project's own folder is no part of the search path that is recorded.
    found = variables.decisive({"PYTHONPATH": f"{variables._PROJECT}:{tmp_path}:"})
    assert found == {"PYTHONPATH": str(tmp_path)}


def test_files_that_libraries_read_by_themselves_are_recorded(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name, text in {
        "home/.openmpi/mca-params.conf": "# ours\n\nbtl_tcp_if_exclude = eth1 # slow\n",
        "home/.keras/keras.json": '{"floatx": "float16", "epsilon": 1e-07}',
        "env/etc/openmpi-mca-params.conf": "# no line that counts\n",
        "env/etc/pmix-mca-params.conf": "gds = hash\n" * 1000,
        "home/libmine.so": "library",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    # As the places of packages under Windows' short names.
    (tmp_path / "env").rename(tmp_path / "env~1")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env~1"))
    found = variables.describe({"HOME": str(home), "LD_PRELOAD": f"{home}/libmine.so"})["files"]
    assert found.pop("~/.openmpi/mca-params.conf") == "btl_tcp_if_exclude = eth1"
    assert found.pop("~/.keras/keras.json") == '{"floatx": "float16"}'
    assert found.pop("$PREFIX/etc/pmix-mca-params.conf").startswith("sha256 ")
    assert found.pop(f"{home}/libmine.so").startswith("sha256 ")
    assert not found


def test_the_store_serves_nothing_that_was_made_with_another_environment(
    step, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [step(), step()] == [MAKE, SERVE]
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert [step(), step()] == [MAKE, SERVE]
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi" / "mca-params.conf").write_text("coll_tuned_use_dynamic_rules = 1\n")
    assert [step(), step()] == [MAKE, SERVE]
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    (tmp_path / ".openmpi" / "mca-params.conf").unlink()
    monkeypatch.setenv("SOME_OTHER", "x")
    assert step() == SERVE


ROOM = inside.LEAST_BYTES


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read to the end, in their order."""
    found: list[Path] = []
    real = inside.sha256_file
    monkeypatch.setattr(inside, "sha256_file", lambda path: found.append(path) or real(path))
    return found


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file that is older than a tick."""
    file = tmp_path / "large.npy"
    file.write_bytes(b"a" * ROOM)
    monkeypatch.setattr(inside, "TICK_SECONDS", 0.05)
    time.sleep(0.1)
    return file


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_is_read_once_by_whatever_path_and_whoever_asks(large, tmp_path, reads, monkeypatch):
    (tmp_path / "linked").symlink_to(large)
    held = tmp_path / "store"
    for path in (large, large, tmp_path / "linked"):
        assert inside.digest_file(path, held) == sha256(large)
    assert inside.content(large, held) == {"": (sha256(large), ROOM)}
    assert reads == [large]
    # Other bytes of equal size and time are noticed.
    status, before = large.stat(), sha256(large)
    with open(large, "r+b") as handle:
        handle.write(b"b")
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert inside.digest_file(large, held) == sha256(large) != before
    time.sleep(0.1)
    inside.digest_file(large, held)
    reads.clear()
    store.prune(held, dry_run=True)
    inside.digest_file(large, held)
    assert not reads
    assert store.prune(held).files == 0
    inside.digest_file(large, held)
    assert len(reads) == 1
    # One that is damaged is computed again, and one within a tick or without a place each time.
    for kept in (path for path in held.rglob("*") if path.is_file()):
        kept.write_text("1f")
    assert inside.digest_file(large, held) == sha256(large)
    assert inside.digest_file(large, kept / "in a file") == sha256(large)
    monkeypatch.setattr(inside, "TICK_SECONDS", 60.0)
    reads.clear()
    for _ in range(2):
        assert inside.digest_file(large, tmp_path / "other") == sha256(large)
    assert reads == [large, large]


@pytest.mark.parametrize("links", [{"again": "."}, {"other/to": "inner", "inner/fro": "other"}])
def test_a_link_to_a_folder_that_holds_it_is_named(tmp_path, links):
    tree(tmp_path, {"inner/file": "a"})
    for name, target in links.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tmp_path / target)
    with pytest.raises(InputError, match=r"is a link to .*, which holds it\. Remedy: remove"):
        inside.content(tmp_path)
