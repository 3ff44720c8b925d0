"""What ranks use: tables summarised by plain loops, and real processes of known behaviour."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from escala.core import proc
from escala.core.hardware import Driver
from escala.probes import resources
from tests.programs import eventually
from tests.unit.nvml import Gpu, Nvml

INTERVAL_SECONDS = 0.05

# A rank announces itself, and goes on when it is told to; what it has found out it prints.
RANK = """
import json, pathlib, sys
from escala.probes._sampler import announce
announce(pathlib.Path({folder!r}), {rank}, {node}, starts={starts})
print("ready", flush=True)
sys.stdin.readline()
{body}
sys.stdin.readline()
"""

# Three threads of C code, a second and more at a time without the interpreter's lock, on one core.
BUSY = """
import hashlib, os, resource, threading, time
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
def spin():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000)
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
def used():
    mine = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), mine.ru_utime + mine.ru_stime
for _ in range(2):
    print(json.dumps(used()), flush=True)
    sys.stdin.readline()
"""

# A rank that starts a program, whose first process starts one that works and ends, and one that
# leaves its session.
STARTING = """
import os, subprocess
held = bytearray(400 << 20)
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
command = [sys.executable, {folder!r} + "/program.py"]
program = subprocess.Popen(command, env=os.environ | dict(ESCALA_STEPS="marks"), **pipes)
program.stdout.readline()
print("started", flush=True)
"""
STARTED = {
    "second.py": "held = bytearray(50 << 20); print(flush=True); input()",
    "third.py": "import time\nwhile time.process_time() < 0.5: pass",
    "program.py": """
import subprocess, sys, os
here, pipes = os.path.dirname(__file__), dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
held = bytearray(100 << 20)
second = subprocess.Popen([sys.executable, here + "/second.py"], start_new_session=True, **pipes)
second.stdout.readline()
subprocess.run([sys.executable, here + "/third.py"])
print(flush=True)
input()
""",
}


class Run:
    """A `ranks/` folder, the processes that stand for ranks, and samplers alongside them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: list[subprocess.Popen] = []

    def rank(self, body="", rank=0, node=0, within=(), starts=False) -> subprocess.Popen:
        names = {"rank": rank, "node": node, "starts": starts, "body": body}
        program = RANK.format(folder=str(self.folder), **names)
        process = self._start([*within, sys.executable, "-c", program])
        assert process.stdout.readline() == "ready\n"
        return process

    def sampler(
        self, node: int = 0, interface: str = "lo", within: tuple[str, ...] = ()
    ) -> subprocess.Popen:
        command = resources.command(
            "escala.probes.resources", self.folder, INTERVAL_SECONDS, interface
        )
        return self._start([*within, "env", f"SLURM_NODEID={node}", *command])

    def table(self) -> pd.DataFrame:
        """Return what was written so far; a sampler has just begun where there is nothing yet."""
        try:
            return pd.concat(
                resources.read_samples(self.folder, "resources").values(), ignore_index=True
            )
        except ValueError:
            return pd.DataFrame(columns=resources.COLUMNS)

    def samples(self, more: int, rank: int = 0) -> None:
        def number() -> int:
            return int((self.table()["rank"] == rank).sum())

        before = number()
        assert eventually(lambda: number() >= before + more)

    def _start(self, command: list[str]) -> subprocess.Popen:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.processes.append(process)
        return process


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    yield run
    for process in run.processes:
        process.kill()
        process.communicate()


def tell(process: subprocess.Popen) -> None:
    process.stdin.write("go on\n")
    process.stdin.flush()


def ask(process: subprocess.Popen) -> str:
    tell(process)
    return process.stdout.readline()


def test_busy_threads_fill_the_core_they_share(run):
    rank = run.rank(BUSY)
    run.sampler()
    run.samples(2)
    began, used_before = json.loads(ask(rank))
    run.samples(20)
    ended, used = json.loads(ask(rank))
    run.samples(1)
    rows = run.table()
    seconds = rows["seconds"].to_numpy()
    cpu_seconds = (rows["cpu_percent"] / 100 * rows["seconds"].diff()).fillna(0).cumsum().to_numpy()
    # What it used between two moments is at least what lies between the samples inside of them, and
    # at most what lies between those around them, however much of the core it was given.
    inside = np.flatnonzero((seconds >= began) & (seconds <= ended))
    first, last = inside[[0, -1]]
    least = cpu_seconds[last] - cpu_seconds[first]
    most = cpu_seconds[last + 1] - cpu_seconds[first - 1]
    assert 0 < 0.8 * least <= used - used_before <= 1.2 * most
    # Two of the three wait for the core at any time, and the first thread waits for its input.
    assert rows["threads_running"][inside].mean() == pytest.approx(3, abs=0.5)
    assert set(rows["threads"][inside]) == {4}


def test_the_processes_of_a_program_are_sampled_in_place_of_the_rank(run):
    for name, content in STARTED.items():
        (run.folder / name).write_text(content)
    rank = run.rank(STARTING.format(folder=str(run.folder)), starts=True)
    run.sampler()
    # The rank has announced itself, and there is no program yet.
    assert eventually(lambda: (run.folder / "node0.resources.csv").exists())
    assert run.table().empty
    assert ask(rank) == "started\n"
    run.samples(4)
    rows = run.table()
    used = (rows["cpu_percent"] / 100 * rows["seconds"].diff()).sum()
    # The largest sample may have counted a process twice, between its fork and its program's start.
    assert rows["rss_bytes"].iloc[-1] == pytest.approx((150 << 20) + 25e6, abs=25e6)
    # The third process has ended and is counted; no other one has worked.
    assert 0.4 < used < 1.5
    tell(rank)
    assert eventually(lambda: run.processes[-1].poll() == 0)


def test_switches_of_threads_that_have_ended_and_bytes_of_an_interface_count():
    """Others may send alongside, and switch this process off."""

    def sampled() -> tuple[dict, tuple[int, int]]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return rank.row("lo"), (used.ru_nvcsw, used.ru_nivcsw)

    def receive() -> None:
        connection, _ = server.accept()
        while connection.recv(1 << 20):
            time.sleep(0.001)

    rank = resources.Rank(0, os.getpid(), proc.start_time())
    sampled()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=receive)
        thread.start()
        before, began = sampled()
        with socket.create_connection(server.getsockname()) as connection:
            for _ in range(200):
                connection.sendall(bytes(50_000))
                time.sleep(0.001)
            sampled()
        thread.join()
    after, ended = sampled()
    for direction in ("sent_bytes", "received_bytes"):
        assert after[direction] - before[direction] > 10_000_000
    voluntary = after["voluntary_switches"] - before["voluntary_switches"]
    assert voluntary == pytest.approx(ended[0] - began[0], rel=0.2) and voluntary > 200


def test_bytes_of_storage_are_those_of_the_processes_and_of_children_that_have_ended(tmp_path):
    """Some file systems, such as those in memory, count nothing: then nothing is asserted."""
    write = "import os; f = open({!r}, 'wb'); f.write(bytes(4 << 20)); f.flush(); os.fsync(f)"
    rank = resources.Rank(0, os.getpid(), proc.start_time())
    before, counters = rank.row("lo"), psutil.Process().io_counters()
    subprocess.run([sys.executable, "-c", write.format(str(tmp_path / "file"))], check=True)
    after, ended = rank.row("lo"), psutil.Process().io_counters()
    written = ended.write_bytes - counters.write_bytes
    assert after["written_bytes"] - before["written_bytes"] == written
    assert after["read_bytes"] - before["read_bytes"] == ended.read_bytes - counters.read_bytes
    if written:
        assert written >= 4 << 20


def test_what_cannot_be_read_is_empty(run):
    """An interface that does not exist, and GPUs where there is no driver."""
    run.rank()
    run.sampler(interface="none0")
    run.samples(3)
    table = run.table()
    assert table[["sent_bytes", "received_bytes"]].isna().all(axis=None)
    assert table[["cpu_percent"]].isna().sum().item() == 1
    [found] = resources.summary(table, {0: None})
    assert found["sent_bytes"] is found["received_bytes_per_second"] is None
    if not resources.gpu_use(Driver()):
        assert found["gpu_percent_mean"] is found["gpu_memory_bytes_max"] is None


def test_a_rank_that_ends_is_no_error_and_the_last_to_end_ends_the_sampler(run):
    first, second = run.rank(rank=0), run.rank(rank=1)
    sampler = run.sampler()
    for rank in (0, 1):
        run.samples(2, rank)
    first.kill()  # Not reaped: it stays as a zombie.
    assert eventually(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE)
    run.samples(2, rank=1)
    rows = (run.table()["rank"] == 0).sum()
    run.samples(3, rank=1)
    assert (run.table()["rank"] == 0).sum() == rows
    assert sampler.poll() is None
    second.kill()
    assert sampler.wait(60) == 0
    assert sampler.stderr.read() == ""
    assert set(run.table()["rank"]) == {0, 1}


def test_ranks_may_come_later_and_those_of_other_nodes_are_left_alone(run):
    sampler = run.sampler(node=1)
    assert eventually((run.folder / "node1.resources.csv").exists)
    run.rank(rank=0, node=0)
    for rank in (2, 3):
        run.rank(rank=rank, node=1)
        run.samples(2, rank=rank)
    assert set(run.table()["rank"]) == {2, 3}
    assert sampler.poll() is None


def test_a_process_that_was_given_the_id_of_a_rank_is_not_the_rank(run):
    run.rank()
    file = run.folder / "rank0.pid"
    announced = json.loads(file.read_text())
    file.write_text(json.dumps(announced | {"started": announced["started"] - 60}))
    assert run.sampler().wait(60) == 0
    assert run.table().empty


def test_the_sampler_dies_with_its_parent(run):
    run.rank()
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    parent = run.sampler(within=(sys.executable, "-c", code))
    sampler = psutil.Process(int(parent.stdout.readline()))
    run.samples(2)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not sampler.is_running() or sampler.status() == "zombie")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (None, {}),
        ([(60, {7: 100, 8: 10}), (30, {7: 50})], {7: (90, 150), 8: (60, 10)}),
        ([(None, {7: 100}), (30, {7: None})], {7: (None, None)}),
    ],
)
def test_gpus_are_counted_for_the_processes_that_compute_on_them(monkeypatch, gpus, expected):
    made = None if gpus is None else [Gpu(used=used, memory=memory) for used, memory in gpus]
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(made))
    assert resources.gpu_use(Driver()) == expected


def test_a_gpu_is_written_beside_the_rank_that_computes_on_it(monkeypatch, run):
    ranks = [run.rank(rank=r) for r in (0, 1)]
    monkeypatch.setitem(sys.modules, "pynvml", Nvml([Gpu(used=55, memory={ranks[1].pid: 3_000})]))
    announced = {r: json.loads((run.folder / f"rank{r}.pid").read_text()) for r in (0, 1)}
    table = pd.DataFrame(resources.NodeRanks("lo").rows(announced), columns=resources.COLUMNS)
    found = resources.summary(table, dict.fromkeys((0, 1)))
    use = [(each["gpu_percent_mean"], each["gpu_memory_bytes_max"]) for each in found]
    assert use == [(None, None), (55, 3_000)]


def test_a_summary_takes_the_samples_between_two_moments():
    """Growth is from the first to the last sample that was read."""
    rows = [
        (1.0, 0, np.nan, 9, 9, 0, 0, 900, 0, 0, np.nan, np.nan, 0, 0),
        (3.0, 0, 80.0, 4, 2, 40, np.nan, 300, 5000, np.nan, 50.0, 7, 60, 9),
        (2.0, 0, 60.0, 3, 1, 20, np.nan, 200, 1000, 10, np.nan, np.nan, 40, np.nan),
        (9.0, 0, 99.0, 9, 9, 99, 99, 900, 9999, 9999, 99.0, 99, 80, 99),
        (1.0, 1, np.nan, 1, 0, 5, 0, 100, 0, 0, np.nan, np.nan, np.nan, np.nan),
    ]
    table = pd.DataFrame(rows, columns=resources.COLUMNS)
    first, second = resources.summary(table, {0: (2.0, 3.0), 1: None})
    assert first == {
        "rank": 0, "samples": 2, "cpu_percent_mean": 70, "threads_running_mean": 1.5,
        "threads_max": 4, "rss_bytes_max": 300, "gpu_percent_mean": 50, "gpu_memory_bytes_max": 7,
        "voluntary_switches_per_second": 20, "involuntary_switches_per_second": None,
        "sent_bytes": 4000, "sent_bytes_per_second": 4000,
        "received_bytes": None, "received_bytes_per_second": None,
        "read_bytes_max": 60, "written_bytes_max": 9,
    }  # fmt: skip
    assert (second["samples"], second["cpu_percent_mean"], second["sent_bytes"]) == (1, None, None)
    json.dumps([first, second], allow_nan=False)
