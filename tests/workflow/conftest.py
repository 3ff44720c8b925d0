"""A real Snakemake, run in a folder of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from escala.engines import environments
from escala.record.run import measure
from escala.workloads import WORKLOADS
from tests.calls import lacking
from tests.conftest import CLASSES, ROOT, shared_folder
from tests.warm import put

ADD_WORKLOAD = """
from dataclasses import replace
from pathlib import Path
from escala.workloads import DECLARATION, WORKLOADS, read_declaration
added = replace(read_declaration(Path({file!r}, DECLARATION)), package="tests.workloads.{name}")
"""

Snakemake = Callable[..., subprocess.CompletedProcess]


def experiment_of(name: str, source: dict, **changes: object) -> dict:
    """A small experiment over the given source: three configurations, one repeat, one epoch."""
    dataset = {
        "source": source,
        "classes": CLASSES,
        "length": 300,
        "split": {"seeds": [4]},
        "oversample": {"neighbours": 2},
    } | changes.pop("dataset", {})
    return {
        "experiment": name,
        # It is a text, although it begins as an option does.
        "title": f"--experiment {name}: $5 & 'more'",
        "repeats": 1,
        "datasets": {"small": dataset},
        "workloads": {"virus-cnn": {"epochs": 1, "save_model": False}},
        "variants": {"tuned": {}},
        "configurations": [
            {"strategy": "single", "layouts": ["1x1"]},
            {"strategy": "horovod-mpi", "layouts": ["1x2"]},
            {"strategy": "horovod-gloo", "layouts": ["1x2"]},
        ],
        "timeline": {"enabled": False},
        "clocks": {"enabled": False},
        # The tests of a worker have one core.
        "oversubscribe": True,
    } | changes


SIMULATED = {"type": "simulated", "seed": 1, "records": dict.fromkeys(CLASSES, 20)}


def arguments_of(folder: Path, *arguments: str) -> list[str]:
    """Targets first: Snakemake's --configfile takes every word after it."""
    return [
        *arguments,
        "--snakefile", str(ROOT / "Snakefile"),
        "--directory", str(folder),
        "--cores", "2",
        "--configfile", str(folder / "experiment.yaml"),
    ]  # fmt: skip


def command(folder: Path, *arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "snakemake"), *arguments_of(folder, *arguments)]


@pytest.fixture(scope="session")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which workflows share what they prepare, and each measures anew.

    The workers of pytest-xdist have folders alongside each other, and so one store.
    """
    store = shared_folder(tmp_path_factory) / "prepared"
    return {"ESCALA_STORE": str(store), "ESCALA_MEASURE_AGAIN": "1"}


def write_experiment(folder: Path, experiment: dict | None) -> None:
    if experiment is not None:
        (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False))


def run_snakemake(
    folder: Path, *arguments: str, experiment: dict | None = None, **environment: str
) -> subprocess.CompletedProcess:
    """Write `experiment`, if given, as the experiment of `folder` and run Snakemake there."""
    write_experiment(folder, experiment)
    return subprocess.run(
        command(folder, *arguments),
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.fixture
def snakemake(tmp_path: Path, prepared_once: dict[str, str]) -> Snakemake:
    """Write an experiment, if given, into the test's folder, and call Snakemake there.

    A call must end well, unless it `fails`.
    """

    def call(
        *arguments: str, experiment: dict | None = None, fails: bool = False, **environment: str
    ) -> subprocess.CompletedProcess:
        environment = prepared_once | environment
        done = run_snakemake(tmp_path, *arguments, experiment=experiment, **environment)
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done

    return call


@pytest.fixture
def dry_run(tmp_path: Path, prepared_once: dict[str, str]) -> Callable[..., tuple[int, str]]:
    """Make a dry run where `snakemake` runs; return its exit code and output."""

    def make(*arguments: str, experiment: dict | None = None) -> tuple[int, str]:
        write_experiment(tmp_path, experiment)
        return dry_run_in(ROOT, *arguments_of(tmp_path, *arguments), **prepared_once)

    return make


def dry_run_in(folder: Path, *arguments: str | Path, **environment: str) -> tuple[int, str]:
    """Make a dry run in a folder, with the arguments given; return its exit code and output."""
    done = subprocess.run(
        [Path(sys.executable).parent / "snakemake", "--dry-run", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.returncode, done.stdout + done.stderr


def measured(
    request: dict, data: Path, folder: Path, status: str = "ok", limit: float = 300
) -> dict:
    """Measure a run that ends with the given status, and return its run.json in `folder`."""
    outcome = measure(request, data, folder / "run.json", limit)
    run = read_json(folder / "run.json")
    assert (outcome.status, outcome.reason) == (status, run["reason"])
    assert run["status"] == status
    return run


def mean_losses(steps: pd.DataFrame) -> pd.Series:
    """Return the mean loss over the global batch of every step, from the steps of all ranks."""
    totals = steps.groupby(["epoch", "step"])[["rows", "loss_sum"]].sum()
    return (totals["loss_sum"] / totals["rows"]).reset_index(drop=True)


def begin_with(code: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make every Python process begin with some code, which is kept in `folder`."""
    patch.setenv("PYTHONPATH", put(code, folder))
    variables = environments.variables

    # An interpreter of another environment is given the project's folder alone.
    def with_code(python: str, given: Mapping[str, str]) -> dict[str, str]:
        found = variables(python, given)
        paths = f"{found['PYTHONPATH']}{os.pathsep}{given['PYTHONPATH']}".split(os.pathsep)
        return found | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}

    patch.setattr(environments, "variables", with_code)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    (disk := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        lacking(f"cannot mount a small disk ({done.stderr.strip()})")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def add_workload(name: str, folder: Path, patch: pytest.MonkeyPatch, code: str = "") -> None:
    """Add one of `tests/workloads` to those of the project.

    Every Python process that begins afterwards has it too, and begins with the `code` given.
    """
    names: dict = {}
    program = ADD_WORKLOAD.format(name=name, file=str(ROOT / f"tests/workloads/{name}"))
    exec(program, names)
    patch.setitem(WORKLOADS, name, names["added"])
    begin_with(f"{program}WORKLOADS[{name!r}] = added\n{code}", folder, patch)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes every Python process begin with some code."""
    return partial(begin_with, folder=tmp_path / "site", patch=monkeypatch)
