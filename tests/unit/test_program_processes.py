"""What the processes of a program did is counted, and held against the plan of its run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import pytest

from escala.core.proc import Usage
from escala.programs.child import Execution
from escala.programs.processes import ProcessReport, describe
from escala.programs.program import HOOK
from escala.record import invariants

#: Libraries by which processes join a group, as they stand in the modules that the hook waits for.
LIBRARIES = {
    "torch/distributed/distributed_c10d.py": (
        "def init_process_group(backend, store=None): pass\n"
        "def get_rank(): return 1\ndef get_world_size(): return 2\n",
        "import torch.distributed.distributed_c10d as d; d.init_process_group('gloo', store=1)",
    ),
    "horovod/common/basics.py": (
        "class HorovodBasics:\n    def init(self, comm=None): self.ranks = 1, 2\n"
        "    def rank(self): return self.ranks[0]\n    def size(self): return self.ranks[1]\n",
        "from horovod.common.basics import HorovodBasics as B; B().init()",
    ),
    "mpi4py/MPI.py": (
        "class COMM_WORLD:\n    Get_rank = staticmethod(lambda: 1)\n"
        "    Get_size = staticmethod(lambda: 2)\n"
        "def Is_initialized(): return True\ndef Is_finalized(): return False\n",
        "from mpi4py import MPI",
    ),
    "jax/_src/distributed.py": (
        "class global_state: process_id = num_processes = None\n"
        "def initialize(address=None, num_processes=None, process_id=None):\n"
        "    global_state.process_id, global_state.num_processes = process_id, num_processes\n",
        "from jax._src import distributed as d; d.initialize(num_processes=2, process_id=1)",
    ),
}


@pytest.fixture
def told(tmp_path):
    """Run a script with the hook, and return what is known of its processes, and its output."""

    def run(code: str, *words: str, **variables: str) -> tuple[dict, str]:
        marks, libraries = Path(mkdtemp(dir=tmp_path)), tmp_path / "libraries"
        for file, (text, _) in LIBRARIES.items():
            (libraries / file).parent.mkdir(parents=True, exist_ok=True)
            (libraries / file).write_text(text)
            for package in Path(file).parents[:-1]:
                (libraries / package / "__init__.py").touch()
        paths = os.pathsep.join([str(HOOK), str(libraries)])
        given = {k: v for k, v in os.environ.items() if k not in ("RANK", "TF_CONFIG")}
        given |= {"PYTHONPATH": paths, "ESCALA_STEPS": str(marks)} | variables
        execution = Execution(time.monotonic())
        with subprocess.Popen(
            [sys.executable, "-c", code, *words], env=given, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as started:  # fmt: skip
            while (code := started.poll()) is None:
                execution.observe(started.pid, given)
                time.sleep(0.02)
            execution.code, execution.at = code, time.monotonic()
            return describe(marks, execution), started.stdout.read() + started.stderr.read()

    return run


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_group_that_a_process_joins_is_known(library, told):
    assert told(LIBRARIES[library][1])[0]["places"] == [(1, 2)]


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.environ.get('RANK')",
        "import os; os.getenv('OMPI_COMM_WORLD_SIZE')",
        "import os; 'TF_CONFIG' in os.environ",
        "import os; os.environb.get(b'LOCAL_RANK')",
        # Which variables it reads of a copy is not known.
        "import os; dict(os.environ)",
        "import os; os.fork() or (os.environ.get('RANK'), os._exit(0)); os.wait()",
        "import os; os._exit(0)",
    ],
)
def test_a_process_that_may_know_its_rank_is_not_said_to_be_like_the_others(code, told):
    assert told(code, RANK="1")[0]["alike"] is None


@pytest.mark.parametrize("imported", [58.0, 5.0])
def test_what_a_program_that_was_ended_early_had_no_time_for_is_not_held_against_it(
    imported, tmp_path
):
    """A busy machine takes a minute for the imports of a launcher and of the first rank."""
    line = [1, 0.5, 0.0, imported, imported, 3.0, 2.0, 3.0, 0, -1, 0, 7, 4.0, 3.0]
    (tmp_path / "42.process").write_text(str(line))
    found = describe(tmp_path, Execution(0.0, at=60.0))
    has_begun = imported < 40
    assert (found["begun"], found["alike"]) == (has_begun, 7 if has_begun else None)
    assert describe(tmp_path, Execution(0.0, 0, 60.0))["begun"]


def test_processes_that_never_asked_are_alike_unless_their_words_differ(told):
    first, again, other = (told("import json", word)[0]["alike"] for word in ("a", "a", "b"))
    assert first == again != other and None not in (first, other)


def test_a_script_sees_nothing_of_the_hook(told, tmp_path):
    _, said = told("import os; os.environ['RANK']")
    assert "KeyError: 'RANK'" in said and "escala" not in said
    # The environment's own sitecustomize is imported too, and a folder that is gone harms nobody.
    (tmp_path / "libraries/sitecustomize.py").write_text("print('of the environment')")
    for folder in ({}, {"ESCALA_STEPS": str(tmp_path / "none")}):
        _, said = told("import json, sitecustomize; print('ran')", **folder)
        assert said == "of the environment\nran\n"
    (tmp_path / "libraries/sitecustomize.py").write_text("import no_such_module")
    _, said = told("print('ran')")
    assert said.startswith("ran\n") and "no_such_module" in said


@pytest.mark.parametrize(
    ("code", "idle"),
    [
        ("import json, decimal; print('needs 2 GPUs. Exiting.')", True),
        ("import json, time; time.sleep(0.6)", False),
        # What it imports at its end does not hide that it trained.
        ("import time; time.sleep(0.6); import json, decimal", False),
        # A library that takes long to import is no training.
        ("import slow", True),
    ],
)
def test_what_ends_right_after_its_imports_did_nothing(code, idle, told, tmp_path):
    (tmp_path / "slow.py").write_text("import json, time; time.sleep(0.7); import decimal")
    began = time.monotonic()
    found, _ = told(f"import sys; sys.path.append({str(tmp_path)!r}); {code}")
    assert found["idle"] == idle
    imported, worked = 0.7 * ("slow" in code), 0.6 * (not idle)
    assert imported < found["start_seconds"] < time.monotonic() - began - worked


#: Starts two processes that run some code, each with its rank, and waits for them.
LAUNCHES = """
import subprocess, sys
call = [sys.executable, "-c", sys.argv[1]]
for each in [subprocess.Popen([*call, rank]) for rank in "01"]:
    each.wait()
"""
WORKS = "import time; end = time.monotonic() + 1.2\nwhile time.monotonic() < end: pass"
#: Sleeps in place of training; then one of several takes long to free its memory.
SLEEPS = """
import sys, time
class Memory:
    def __del__(self, now=time.process_time):
        end = now() + 0.5
        while now() < end: pass
memory = Memory() if sys.argv[1] == "1" else None
time.sleep(0.8)
"""


@pytest.mark.alone
@pytest.mark.parametrize("code", [WORKS, SLEEPS], ids=["work", "sleep"])
def test_processes_at_work_are_counted_by_what_they_do_between_their_imports_and_their_ends(
    code, told
):
    assert told(LAUNCHES, code)[0]["processes"] == 2


@pytest.mark.parametrize(
    ("waits", "world", "processes"),
    # A rank that waits for its device, and starts what loads its rows, is no launcher.
    [(25.0, 0, 1), (60.0, 0, 2), (25.0, 2, 2)],
)
def test_on_a_busy_machine_a_launcher_waits_longer_than_what_it_starts_lasts(
    waits, world, processes, tmp_path
):
    launcher = ProcessReport(0, 0.0, 70.0, 5.0, 2.3, waits, 2.3, 0.4, 0, -1, world, 1, 2.0, 0.4)
    started = ProcessReport(1, 9.0, 29.0, 27.0, 2.5, 2.0, 2.5, 1.0, 0, -1, 0, 2, 2.0, 1.0)
    for number, each in enumerate((launcher, started), 1):
        (tmp_path / f"{number}.process").write_text(json.dumps(each))
    seen = {1: (2.7, 2.7), 2: (3.6, 3.6)}
    assert describe(tmp_path, Execution(0.0, 0, 70.0, by_process=seen))["processes"] == processes


def test_of_a_program_in_another_language_the_kernel_tells(tmp_path):
    used = [(at, Usage(0, 1.5 * at, 0.0)) for at in (1.0, 1.5, 2.5, 4.0)]
    seen = {1: (0.01, 0.01), 2: (3.0, 1.4), 3: (2.9, 2.9)}
    found = describe(tmp_path, Execution(0.0, at=4.0, used=used, by_process=seen, places={(0, 2)}))
    assert found["cores"] == pytest.approx(1.5) and found["core_seconds"] == 6.0
    assert (found["processes"], found["threads"], found["places"]) == (2, True, [(0, 2)])
    assert not found["python"] and not found["idle"] and found["alike"] is None


def ran(**told: object) -> dict:
    """Return what one started process measured, of which the program did what is told."""
    usual = {
        "processes": 1, "threads": False, "places": [], "cores": 1.0, "core_seconds": 5.0,
        "python": True, "ended": True, "begun": True, "idle": False, "alike": None,
        "silent_seconds": 1.0, "start_seconds": 0.5,
    }  # fmt: skip
    return {"known_by": "whole run", "ran": usual | told}


def plan(strategy: str, ranks: int, cores: int = 1, nodes: int = 1) -> dict:
    started = 1 if strategy == "own-launcher" else ranks
    each = {"cores": list(range(cores)), "nodes": nodes, "ranks": list(range(ranks // started))}
    places = [each] * started
    return {"strategy": strategy, "ranks": ranks, "places": places}


ALIKE, NESTED = ran(alike=7), ran(places=[(0, 2), (1, 2)], processes=2)


@pytest.mark.parametrize(
    ("planned", "everyone", "said"),
    [
        (plan("single", 1), [NESTED], "was to be one process, and starts 2 ranks itself"),
        (plan("single", 1), [ran(places=[(0, 4)])], "starts 4 ranks itself"),
        (plan("torch-ddp", 2), [NESTED, NESTED], "was started 2 times, and starts 2 ranks"),
        (plan("mpi", 2), [ran(places=[(0, 1)])] * 2, "each of the 2 processes found itself alone"),
        (plan("own-launcher", 2), [ran()], "asked for 2 ranks, and 1 of its processes worked"),
        (plan("own-launcher", 2), [ran(places=[(0, 1)])], "asked for 2 ranks, and 1 ran"),
        (plan("own-launcher", 1), [NESTED], "asked for 1 ranks, and 2 ran"),
        (plan("torch-ddp", 2), [ALIKE, ALIKE], "none of the 2 processes asked"),
        (plan("processes", 2), [ALIKE, ALIKE], "none of the 2 processes asked"),
        # As planned, or not known.
        (plan("single", 1), [ran(places=[(0, 1)])], None),
        (plan("single", 1), [ran(processes=8)], None),
        (plan("torch-ddp", 2), [ran(places=[(n, 2)]) for n in (0, 1)], None),
        (plan("torch-ddp", 2), [ran(), ran()], None),
        (plan("torch-ddp", 2), [ALIKE, ran(alike=8)], None),
        (plan("torch-ddp", 2, nodes=2), [ALIKE, ALIKE], None),
        (plan("mpi", 2), [ran(alike=7, ended=False)] * 2, None),
        (plan("own-launcher", 2), [NESTED], None),
        (plan("own-launcher", 2), [ran(processes=3)], None),
        # Two devices in one process; and a program that was too quick to be seen.
        (plan("own-launcher", 2), [ran(threads=True)], None),
        (plan("own-launcher", 2), [ran(begun=False)], None),
        (plan("own-launcher", 2), [ran(processes=None)], None),
    ],
)
def test_what_ran_is_held_against_the_plan(planned, everyone, said):
    found = invariants.mismatch(planned, ["epochs"], everyone)
    assert (found is None) if said is None else (said in found and "Remedy: " in found)
    # A command that names its rank needs not ask for it.
    by_name = invariants.mismatch(planned, ["rank"], everyone)
    assert by_name == (None if said and "none of" in said else found)


def test_what_is_no_fault_is_noted():
    def noted(planned: dict, each: dict) -> str:
        return "; ".join(invariants.notes_on_processes(planned, [each] * len(planned["places"])))

    assert "given 4 cores" in noted(plan("single", 1, cores=4), ran())
    assert not noted(plan("single", 1, cores=4), ran(threads=True))
    assert not noted(plan("single", 1), ran())
    assert "worked in 8 processes" in noted(plan("single", 1), ran(processes=8))
    assert not noted(plan("own-launcher", 2), ran(processes=2))
    assert "exchange nothing" in noted(plan("torch-ddp", 2), ran())
    assert not noted(plan("torch-ddp", 2), ran(places=[(0, 2)]))
    assert "nothing to time" in noted(plan("single", 1), ran(idle=True))


def test_the_result_has_what_all_processes_did():
    everyone = [ran(places=[(n, 2)], silent_seconds=n + 1.0) for n in (0, 1)]
    assert invariants.summarize_processes(everyone) == {
        "processes": 2, "ranks": 2, "world_size": 2, "cores": 2.0, "core_seconds": 10.0,
        "start_seconds": 0.5, "silent_seconds": 1.0, "idle": False,
    }  # fmt: skip
    assert invariants.summarize_processes([ran(cores=None), ran()])["cores"] is None
