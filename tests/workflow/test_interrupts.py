"""A workflow that is asked to end stops, leaves nothing running, and goes on at the next call."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import ROOT
from tests.programs import eventually
from tests.workflow.conftest import SIMULATED, command, experiment_of, run_snakemake

pytestmark = pytest.mark.cold

PATIENCE_SECONDS = 120
RUN = Path("results/cut/runs/small/virus-cnn/horovod-mpi/1x2/tuned/native/rep1")
# Python reads it as it starts. A rank that imports TensorFlow says that it is there, and waits.
SITECUSTOMIZE = """
import sys
if sys.orig_argv[1:3] == ["-m", "escala.training.rank"]:
    class Waiting:
        def find_spec(self, name, *_):
            if name == "tensorflow":
                import os, pathlib, time
                pathlib.Path(os.environ["TEST_RANKS"], str(os.getpid())).touch()
                time.sleep(600)
    sys.meta_path.insert(0, Waiting())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prepared_once: dict, warm: Path) -> Path:
    """Return a folder whose data are prepared; the tests interrupt the same run in it by turns."""
    folder = tmp_path_factory.mktemp("cut")
    experiment = experiment_of("cut", SIMULATED)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    target = "results/cut/data/small/split4/dataset.json"
    done = run_snakemake(folder, target, **prepared_once, PYTHONPATH=str(warm))
    done.check_returncode()
    return folder


def processes_in(folder: Path) -> list[str]:
    """Return the commands of the processes that work in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if folder in [Path(process.cwd()), *Path(process.cwd()).parents]:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def start(folder: Path, ranks: Path, **options: object) -> subprocess.Popen:
    """Ask for the run in a process group of its own, and wait until its ranks are there."""
    ranks.mkdir()
    path = os.pathsep.join([str(folder), str(ROOT)])
    process = subprocess.Popen(
        command(folder, str(RUN / "run.json")),
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": path, "TEST_RANKS": str(ranks), "ESCALA_PASS": "TEST_RANKS"},
        start_new_session=True,
        text=True,
        **options,
    )
    assert eventually(
        lambda: len([*ranks.iterdir()]) == 2 or process.poll() is not None, PATIENCE_SECONDS
    )
    assert process.poll() is None, "the run that was interrupted before is not made again"
    return process


def test_an_interrupted_run_has_not_failed(folder, tmp_path):
    """That the next call makes it is shown by the test after it, which waits for its ranks."""
    process = start(folder, tmp_path / "ranks", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + signal.SIGINT
    assert not (folder / RUN / "run.json").exists()
    assert not processes_in(folder)
    assert "escala: interrupted" in said
    assert "0 of 2 runs measured; the same call goes on." in said
    assert not any(word in said for word in ("Error in rule", "RuleException"))


def test_nothing_goes_on_where_snakemake_is_killed(folder, tmp_path):
    process = start(folder, tmp_path / "ranks")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert eventually(lambda: not processes_in(folder), PATIENCE_SECONDS)
    assert not (folder / RUN / "run.json").exists()
