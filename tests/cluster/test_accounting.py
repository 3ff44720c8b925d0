"""Records of real jobs: `sacct` lists them, and advice reads the waits of the queue in them."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from escala.analysis import queue_waits
from escala.analysis.advice import queue
from escala.core.errors import InputError
from escala.core.files import write_json
from escala.experiment import load
from escala.experiment.calibration import Calibration
from escala.experiment.plans import plans
from escala.lab import accounting, cluster, daemons
from escala.lab.state import Lab, require
from tests.cluster.conftest import eventually, machine, output, run_lab
from tests.conftest import ROOT

pytestmark = pytest.mark.cluster

NODES = 3
JOBS = 6
JOB_SECONDS = 1


@pytest.fixture
def recorded(no_lab) -> Iterator[Lab]:
    """A lab that keeps records of its jobs, which wait for one another: nodes have one core."""
    done = run_lab("up", "--nodes", str(NODES), "--cores-per-node", "1", "--accounting")
    assert done.returncode == 0, done.stderr
    yield require()
    cluster.down()


def submit(seconds: float = JOB_SECONDS, name: str = "mine") -> str:
    """Submit a job that sleeps, and return its number."""
    options = ["--parsable", "--output=/dev/null", "--time=1", f"--wrap=sleep {seconds}"]
    options.append(f"--job-name={name}")
    return output("sbatch", *options).strip()


def states() -> dict[str, str]:
    """Return the state of each job by its number, as it is recorded."""
    lines = output("sacct", "-X", "-P", "--noheader", "--format=JobID,State").splitlines()
    return dict(line.split("|") for line in lines)


def scheduled(number: str) -> float:
    """Return the wait of a job in seconds, as the scheduler itself remembers it."""
    shown = output("scontrol", "show", "job", number)
    eligible, start = (
        datetime.fromisoformat(re.search(rf"\b{name}Time=(\S+)", shown)[1])
        for name in ("Eligible", "Start")
    )
    return (start - eligible).total_seconds()


def waits(known: queue.Queue) -> queue_waits.Waits:
    return queue_waits.waits(known.jobs, cluster.PARTITION, 1, 1, known.now)


def advised(folder: Path) -> str:
    """Return the advice on the default experiment for the least time with the wait."""
    experiment = load(ROOT / "config.yaml")
    rows = {name: {"train": 6000, "test": 1000} for name in experiment.settings["datasets"]}
    write_json(folder / "plans.json", plans(Calibration(experiment)) | {"rows": rows})
    calibration = ROOT / "benchmarks" / "calibrations" / "demo.json"
    (folder / "calibration.json").write_bytes(calibration.read_bytes())
    goal = ["--goal", "time-with-wait", "--draws", "5"]
    return output(sys.executable, "-m", "scripts.advise", str(folder), *goal)


def listening() -> dict[str, set[str]]:
    """Return the addresses at which the daemons of accounting listen."""
    return {
        process.name(): {each.laddr.ip for each in process.net_connections() if not each.raddr}
        for process in daemons.processes()
        if process.name() in ("mariadbd", "slurmdbd")
    }


@pytest.mark.accounting
def test_advice_reads_the_waits_of_real_jobs(recorded, bare_machine, tmp_path, monkeypatch):
    assert listening() == {"mariadbd": set(), "slurmdbd": {recorded.scheduler}}
    assert stat.filemode(accounting.DATABASE.stat().st_mode) == "drwx------"

    numbers = [submit() for _ in range(JOBS)]
    never = submit()
    output("scancel", never)
    assert eventually(lambda: {states().get(each) for each in numbers} == {"COMPLETED"})

    own = submit(name="escala_of-a-study")
    assert eventually(lambda: states().get(own) == "COMPLETED")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%Y-%m-%d")
    monkeypatch.setenv("SACCT_FORMAT", "JobID")
    known = queue.ask(days=1)
    assert (known.own, known.named) == (1, True)
    monkeypatch.delenv("SLURM_TIME_FORMAT")
    assert queue_waits.partitions(known.jobs) == [cluster.PARTITION]
    # The cancelled job never started, and has no wait.
    assert len(known.jobs) == JOBS + 1
    found = waits(known)
    assert list(found.seconds) == sorted(map(scheduled, numbers))
    assert (found.pending, found.bound) == (0, None)
    # No more jobs ran at a time than there are nodes.
    starts = sorted(job.start for job in known.jobs if job.start)
    after = zip(starts, starts[NODES:], strict=False)
    assert all((later - earlier).total_seconds() >= JOB_SECONDS for earlier, later in after)
    answer = advised(tmp_path)
    assert f"too few jobs for a bound ({JOBS} of {queue_waits.jobs_needed()})" in answer
    assert "Left out: 1 job of Escala's own runs" in answer
    assert f"In the partition {cluster.PARTITION}, your {JOBS} jobs of this size waited" in answer

    # A job that waits counts, and SLURM has an estimate of its own.
    for _ in range(NODES + 1):
        submit(seconds=60)
    assert eventually(lambda: waits(queue.ask(days=1)).pending)
    printed = known.test_only(["--nodes=1", "--ntasks-per-node=1", "--time=1"])
    assert queue_waits.test_only_wait(printed, known.now) is not None, printed

    assert run_lab("down").returncode == 0
    assert machine() == bare_machine


@pytest.mark.accounting
def test_a_lab_that_is_up_without_records_is_not_changed(lab):
    with pytest.raises(InputError, match=r"keeps no records of jobs.*lab down"):
        cluster.up(2, 1, record=True)
    assert require() == lab


def test_without_the_programs_their_packages_are_named(no_lab, monkeypatch, bare_machine):
    monkeypatch.setitem(accounting.PROGRAMS, "no-such-program", "no-such-package")
    with pytest.raises(InputError, match=r"no-such-program.*apt-get install.*no-such-package"):
        cluster.up(2, 1, record=True)
    assert machine() == bare_machine
