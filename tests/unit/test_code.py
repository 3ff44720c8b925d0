"""The code that a step declares changes its digest, and nothing else does."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import pytest

from escala.cache import code
from escala.cache.code import Code
from escala.core import packages


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
