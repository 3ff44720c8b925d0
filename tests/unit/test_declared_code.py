"""What determines a result: code, packages, variables and the environment."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from escala.cache import code, entries, store, upkeep
from escala.cache.code import Code
from escala.core import packages, variables
from escala.core.errors import InputError
from escala.record.plan import split_description


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


@pytest.mark.parametrize("change", [{"a.py": "other"}, {"new": ""}, {"deep/b.cc": "B "}])
def test_every_byte_and_every_name_counts(tmp_path, change):
    before = Code({"part": tree(tmp_path / "part", FILES)}).digest()
    assert Code({"part": tree(tmp_path / "part", change)}).digest() != before
    assert Code({"part": tree(tmp_path / "again", FILES)}).digest() == before
    assert Code({"other": tmp_path / "again"}).digest() != before


def test_what_is_declared_and_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Code({"part": tmp_path / "nowhere"}).files()


def test_versions_are_those_that_are_installed():
    found = packages.versions(["numpy", "no-such-package"])
    assert found["numpy"] == metadata.version("numpy")
    assert found["no-such-package"] == "not installed" and found["python"].startswith("3.")


def test_the_project_is_all_of_its_code_and_its_schemas():
    files = code.project().files()
    assert {"escala/record/run.py", "escala/engines/torch/engine.yaml"} <= files.keys()
    assert "schemas/run.schema.yaml" in files and "matplotlib" in code.project().versions


@pytest.mark.parametrize(
    "name",
    [
        "TF_ENABLE_ONEDNN_OPTS",
        "XLA_FLAGS",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_VERBOSE",
        "KMP_AFFINITY",
        "MKL_CBWR",
        "OPENBLAS_CORETYPE",
        "NPY_DISABLE_CPU_FEATURES",
        "NVIDIA_TF32_OVERRIDE",
        "NCCL_ALGO",
        "TORCH_DISTRIBUTED_DEBUG",
        "PYTORCH_CUDA_ALLOC_CONF",
        "UCX_TLS",
        "FI_PROVIDER",
        "MALLOC_ARENA_MAX",
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONHASHSEED",
        "PYTHONPATH",
    ],
)
def test_what_can_change_a_result_reaches_the_ranks_and_is_recorded(name):
    given = {name: "/set", "HOME": "/nonexistent"}
    assert variables.passed(given) == given
    assert variables.describe(given) == {"variables": {name: "/set"}, "files": {}}


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "PATH",
        "LC_ALL",
        "TMPDIR",
        "CUDA_VISIBLE_DEVICES",
        "TF_CPP_MIN_LOG_LEVEL",
        "TORCH_HOME",
    ],
)
def test_what_changes_nothing_reaches_the_ranks_and_is_not_recorded(name):
    assert variables.passed({name: "x"}) == {name: "x"}
    assert variables.deciding({name: "x"}) == {}


def test_no_other_variable_reaches_them_unless_the_user_names_it_and_no_secret_is_recorded():
    given = {
        "MY_DATA": "/data",
        "MY_TOKEN": "s",
        "OTHER": "x",
        "TF_TOKEN": "s",
        "TORCHELASTIC_RUN_ID": "x",
        "CUDA_API_KEY": "s",
    }
    assert variables.passed(given) == {}
    named = given | {"ESCALA_PASS": "MY_DATA,MY_TOKEN"}
    assert set(variables.passed(named)) == {"MY_DATA", "MY_TOKEN", "ESCALA_PASS"}
    assert variables.deciding(named) == {"MY_DATA": "/data"}


def test_the_projects_own_folder_is_no_part_of_the_search_path_that_is_recorded(tmp_path):
    project = str(variables._PROJECT)
    assert variables.deciding({"PYTHONPATH": project}) == {}
    found = variables.deciding({"PYTHONPATH": f"{project}:{tmp_path}:"})
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


def test_the_store_serves_nothing_that_was_made_with_another_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("HOME", str(tmp_path))
    output = tmp_path / "output"

    def step() -> str:
        return store.get_or_compute(
            "step",
            code=Code({}),
            inputs={},
            parameters={},
            outputs={"output": output},
            make=lambda: output.write_text("made") and None,
        )

    assert [step(), step()] == ["made", "served"]
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert [step(), step()] == ["made", "served"]
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi" / "mca-params.conf").write_text("coll_tuned_use_dynamic_rules = 1\n")
    assert [step(), step()] == ["made", "served"]
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    (tmp_path / ".openmpi" / "mca-params.conf").unlink()
    monkeypatch.setenv("SOME_OTHER", "x")
    assert step() == "served"


ROOM = entries.LEAST_BYTES


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read to the end, in their order."""
    found: list[Path] = []
    real = entries.sha256_file
    monkeypatch.setattr(entries, "sha256_file", lambda path: found.append(path) or real(path))
    return found


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large file that is older than a tick."""
    file = tmp_path / "large.npy"
    file.write_bytes(b"a" * ROOM)
    monkeypatch.setattr(entries, "TICK_SECONDS", 0.05)
    time.sleep(0.1)
    return file


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_is_read_once_by_whatever_path_and_whoever_asks(large, tmp_path, reads):
    (tmp_path / "linked").symlink_to(large)
    held = tmp_path / "store"
    for path in (large, large, tmp_path / "linked"):
        assert entries.digest_file(path, held) == sha256(large)
    assert entries.content(large, held) == {"": (sha256(large), ROOM)}
    assert reads == [large]


def set_back(file: Path) -> None:
    """Replace a byte in place, and set the times back that a program can set."""
    status = file.stat()
    with open(file, "r+b") as handle:
        handle.write(b"b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def replace(file: Path) -> None:
    """Rename another file of equal size and time onto it."""
    status, other = file.stat(), file.with_name("other")
    other.write_bytes(b"c" * ROOM)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(file)


@pytest.mark.parametrize("change", [set_back, replace])
def test_other_bytes_of_equal_size_and_time_are_noticed(large, tmp_path, change):
    held = tmp_path / "store"
    before = entries.digest_file(large, held)
    change(large)
    assert entries.digest_file(large, held) == sha256(large) != before


def test_a_file_changed_within_a_tick_is_not_remembered(large, tmp_path, reads, monkeypatch):
    monkeypatch.setattr(entries, "TICK_SECONDS", 60.0)
    for _ in range(2):
        assert entries.digest_file(large, tmp_path / "store") == sha256(large)
    assert reads == [large, large]


def test_a_damaged_digest_is_computed_again_and_one_that_cannot_be_kept_each_time(large, tmp_path):
    held = tmp_path / "store"
    entries.digest_file(large, held)
    [kept] = (path for path in held.rglob("*") if path.is_file())
    kept.write_text("1f")
    assert entries.digest_file(large, held) == sha256(large)
    assert entries.digest_file(large, kept / "in a file") == sha256(large)


def test_a_run_reads_the_arrays_of_a_split_once(large, tmp_path, reads, monkeypatch):
    """The key of the store takes their content before and after, and the plan checks it."""
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    arrays = '{"name": "a", "shape": [1], "dtype": "uint8", "file": "large.npy"}'
    (tmp_path / "dataset.json").write_text(
        f'{{"inputs": [{arrays}], "targets": {arrays}, "rows": {{"train": 1, "test": 1}}, '
        f'"sha256": {{"large.npy": "{sha256(large)}"}}}}'
    )

    def make() -> None:
        split_description(tmp_path)
        (tmp_path / "result").write_text("done")

    for repeat in range(3):
        how = store.get_or_compute(
            "train",
            code=Code({}),
            inputs={"large": large},
            parameters={"repeat": repeat},
            outputs={"result": tmp_path / "result"},
            make=make,
        )
        assert how == "made"
    assert reads.count(large) == 1
    set_back(large)
    with pytest.raises(InputError, match="is damaged"):
        split_description(tmp_path)


def test_pruning_forgets_them_and_a_dry_run_does_not(large, tmp_path, reads):
    held = tmp_path / "store"
    entries.digest_file(large, held)
    upkeep.prune(held, dry_run=True)
    entries.digest_file(large, held)
    assert len(reads) == 1
    assert upkeep.prune(held).files == 0
    entries.digest_file(large, held)
    assert len(reads) == 2


LINKS: dict[str, Callable[[Path], None]] = {
    "itself": lambda folder: (folder / "again").symlink_to(folder),
    "a way round": lambda folder: (
        (folder / "other").mkdir(),
        (folder / "other" / "to").symlink_to(folder / "inner"),
        (folder / "inner" / "fro").symlink_to(folder / "other"),
    ),
}


@pytest.mark.parametrize("link", LINKS)
def test_a_link_to_a_folder_that_holds_it_is_named(tmp_path, link):
    (folder := tmp_path / "mine").mkdir()
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text("a")
    LINKS[link](folder)
    with pytest.raises(InputError, match=r"is a link to .*, which holds it\. Remedy: remove"):
        entries.content(folder)
