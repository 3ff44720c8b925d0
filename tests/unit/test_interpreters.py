"""Which Python runs the ranks of an engine, and what of Escala's own environment reaches it."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from escala import engines
from escala.core import packages
from escala.core.errors import Unavailable
from escala.engines import environments


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is a clone of the project, without an environment of PyTorch."""
    (tmp_path / "uv.lock").touch()
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.delenv("ESCALA_TORCH", raising=False)
    return tmp_path


def executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(sys.executable)
    return str(path)


def test_each_engine_has_its_interpreter(clone, monkeypatch):
    with pytest.raises(Unavailable, match=r"not installed.*escala install torch"):
        environments.python("torch")
    with monkeypatch.context() as patch:  # By an extra, or in a conda environment of a rule.
        held = {"torch": "2.13", "numpy": "2"}
        patch.setattr(packages, "_version", lambda name: held.get(name, packages.ABSENT))
        patch.setattr(environments.metadata, "requires", lambda name: [])
        environments._is_own.cache_clear()
        assert environments.python("torch") == sys.executable
    with monkeypatch.context() as patch:  # TensorFlow without Horovod is not enough.
        held = {"keras": "2", "tensorflow-cpu": "2.15"}
        patch.setattr(packages, "_version", lambda name: held.get(name, packages.ABSENT))
        needs = {"tensorflow-cpu": ["numpy<2,>=1.23", 'sphinx; extra == "docs"']}
        patch.setattr(environments.metadata, "requires", needs.get)
        for horovod, numpy in ((packages.ABSENT, "1.26"), ("0.28", "2.4")):
            held |= {"horovod": horovod, "numpy": numpy}
            environments._is_own.cache_clear()
            with pytest.raises(Unavailable, match="TensorFlow is not installed"):
                environments.python("tensorflow")
        held["numpy"] = "1.26"
        environments._is_own.cache_clear()
        assert environments.python("tensorflow") == sys.executable
    environments._is_own.cache_clear()
    made = executable(clone / ".venv-torch" / "bin" / "python")
    assert environments.python("torch") == made
    named = executable(clone / "mine" / "python")
    monkeypatch.setenv("ESCALA_TORCH", named)
    assert environments.python("torch") == named
    monkeypatch.setenv("ESCALA_TORCH", str(clone / "nowhere" / "python"))
    with pytest.raises(Unavailable, match=r"ESCALA_TORCH: .* is not a program"):
        environments.python("torch")


def test_a_program_that_is_no_python_or_lacks_pytorch_has_a_remedy(clone, monkeypatch):
    python = clone / "python"
    for prints, reason in (
        ("", "it is not Python"),
        ('escala {"python": "3", "packages": {}}', "no to"),
        (
            'escala {"python": "3", "packages": {"torch": "2.8.1+cpu", "numpy": "2"}}',
            r"has PyTorch 2\.8\.1\+cpu, and 2\.9 or a later one is needed",
        ),
    ):
        python.write_text(f"#!/bin/sh\necho '{prints}'\n")
        python.chmod(0o755)
        environments._list_packages.cache_clear()
        monkeypatch.setenv("ESCALA_TORCH", str(python))
        with pytest.raises(Unavailable, match=f"{reason}.*Remedy: let ESCALA_TORCH name.*unset"):
            engines.interpreter("torch")
        assert set(engines.versions("torch").values()) == {"not installed"}
        monkeypatch.delenv("ESCALA_TORCH")
    assert engines.interpreter(None) == sys.executable


def test_an_old_pytorch_is_refused_before_it_trains_and_a_new_one_is_not(clone):
    python = clone / "python"
    for version, ok in {"2.8.1": False, "2.9.0": True, "2.14.0a0+git01": True, "3.0": True}.items():
        python.write_text(f"#!/bin/sh\necho torch {version} for processors, numpy 2, Python 3\n")
        python.chmod(0o755)
        with nullcontext() if ok else pytest.raises(Unavailable, match=r"2\.8\.1, and 2\.9 or"):
            assert environments.describe("torch", str(python)).startswith(f"torch {version}")


def test_an_installation_has_it_alongside_the_store(clone, monkeypatch):
    (clone / "uv.lock").unlink()
    monkeypatch.setenv("ESCALA_STORE", str(clone / "shared" / "store"))
    assert environments.folder("torch") == clone / "shared" / ".venv-torch"
    monkeypatch.setenv("ESCALA_STORE", "off")
    monkeypatch.chdir(clone)
    assert environments.folder("torch") == clone / ".escala" / ".venv-torch"


def test_nothing_of_this_environment_reaches_another_interpreter():
    own = str(Path(sys.executable).parent)
    given = {"PATH": f"{own}:/usr/bin", "PYTHONPATH": "/elsewhere", "PYTHONHOME": "/h", "A": "b"}
    assert environments.variables(sys.executable, given) == given
    found = environments.variables("/torch/bin/python", given)
    assert found == {
        "PATH": os.pathsep.join(["/torch/bin", "/usr/bin"]),
        "PYTHONPATH": str(environments.ROOT),
        "A": "b",
    }
