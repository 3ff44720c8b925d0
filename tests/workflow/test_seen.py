"""The steps that are seen of real scripts, which import nothing of Escala."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest

from escala.analysis.traces import spans
from escala.engines import interpreter
from escala.hook.escala_seen import Rule, end_window
from escala.programs import child, lines, seen
from escala.programs.marks import OutputSearch
from escala.programs.program import HOOK, Program
from escala.report.findings.why import INPUT_FRACTION, clears_memory
from escala.report.tables.runs import core_use

#: The beginning of a script: the times at which its steps end, as it sees them, go to a file.
SCRIPT = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.arange(20.0))
parameter, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
parameter.grad = other.grad = torch.ones(1)
optimizer, second = (torch.optim.SGD([p], lr=0.1) for p in (parameter, other))
loader, test = DataLoader(rows, batch_size=4), DataLoader(rows, batch_size=10)
begins, ends = [], []

def evaluate():
    for batch in test:
        time.sleep(0.05)

def step(optimizer=optimizer):
    time.sleep(0.01)
    optimizer.step()
    ends.append(time.monotonic())
"""
END = """
json.dump([begins, ends], open(sys.argv[1], "w"))
"""
#: Parts of a script, with the batches, rows and samples of the loops that make its steps.
PARTS = {
    "no loader, and an update that fails before": (
        "try:\n    optimizer.step(lambda: 1 / 0)\nexcept ZeroDivisionError:\n    pass\n"
        "for number in range(3):\n    step()\n",
        [(None, None, None)],
    ),
    "an evaluation after each epoch": (
        "for epoch in range(2):\n"
        "    begins.append(time.monotonic())\n"
        "    for batch in loader:\n"
        "        step()\n"
        "    evaluate()\n",
        [(5, 4, 20), (5, 4, 20)],
    ),
    "an evaluation within an epoch": (
        "begins.append(time.monotonic())\n"
        "for number, batch in enumerate(loader):\n"
        "    step()\n"
        "    if number == 2:\n"
        "        evaluate()\n"
        "        begins.append(time.monotonic())\n",
        [(5, 4, 20), (5, 4, 20)],
    ),
    "two optimizers that take turns": (
        "begins.append(time.monotonic())\nfor batch in loader:\n    step()\n    second.step()\n",
        [(5, 4, 20)],
    ),
    "two loaders side by side": (
        "begins.append(time.monotonic())\n"
        "for batch, another in zip(loader, DataLoader(rows, batch_size=4)):\n"
        "    step()\n",
        [(5, 4, 20)],
    ),
    "updates of several batches": (
        "begins.append(time.monotonic())\n"
        "for number, batch in enumerate(DataLoader(rows, batch_size=3), 1):\n"
        "    if number % 2 == 0:\n"
        "        step()\n",
        [(7, 3, 20)],
    ),
}


def start(code: str, folder: Path, engine: str = "torch", *words: str, **added: str):
    """Run a script with the hook before it; return its end and what was seen."""
    marks = folder / "marks0"
    marks.mkdir(exist_ok=True)
    (folder / "script.py").write_text(code, encoding="utf-8")
    given = os.environ | {"ESCALA_STEPS": str(marks), "PYTHONPATH": str(HOOK)} | added
    call = [interpreter(engine), str(folder / "script.py"), *words]
    done = subprocess.run(call, env=given, capture_output=True, text=True, timeout=120)
    return done, seen.read(marks)


@pytest.mark.torch
def test_steps_of_pytorch_are_those_that_the_script_makes(tmp_path):
    code = SCRIPT + "".join(part for part, _ in PARTS.values()) + END
    done, processes = start(code, tmp_path, "torch", str(tmp_path / "times.json"))
    assert done.returncode == 0, done.stderr
    [process] = processes
    begins, ends = json.loads((tmp_path / "times.json").read_text())
    assert process.made == len(ends)
    expected = [loop for _, loops in PARTS.values() for loop in loops]
    assert [(loop.batches, loop.rows, loop.samples) for loop in process.loops] == expected
    steps = list(process.steps_between(0, process.made))
    # A first step of which nothing tells the beginning is left out.
    moments = sorted([*begins, *ends])
    pairs = [(before, end) for before, end in pairwise(moments) if end in set(ends)]
    assert len(steps) == len(pairs)
    differences = [
        abs(step.seconds - (ended - began))
        for (began, ended), step in zip(pairs, steps, strict=True)
    ]
    # A busy machine disturbs single steps. An evaluation takes 0.1 s.
    assert median(differences) < 0.002 and max(differences) < 0.05
    known = [loop.rows_of_steps() for loop in process.loops]
    assert known[1:5] == [[4] * 5, [4] * 5, [4] * 3, [4] * 2]
    assert known[-1] == [6, 6, 6]
    assert process.loops[-1].steps_in_all == 7 * 3 / 6


SLOW = """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, number):
        time.sleep(0.005)
        return torch.ones(1)
for batch in DataLoader(Slow(), batch_size=4):
    step()
"""


@pytest.mark.torch
def test_waiting_for_batches_is_a_part_of_the_time_of_steps(tmp_path):
    """A batch takes 20 ms, and the rest of a step 10 ms."""
    done, processes = start(SCRIPT + SLOW, tmp_path, ESCALA_WINDOW="0.8")
    assert done.returncode == 0, done.stderr
    window = seen.window_of(processes)
    [[epoch]] = window.epochs
    [step] = window.mean_steps
    assert step["input_seconds"] / step["step_seconds"] == pytest.approx(2 / 3, abs=0.05)
    assert epoch.train_seconds / epoch.count > 0.03
    # It sleeps.
    assert 0 <= step["kernel_seconds"] <= step["core_seconds"] < 0.5 * step["step_seconds"]
    processes[0].loops[-1].used = []
    assert seen.window_of(processes).mean_steps is None


TRUTH = """
import mmap
from torch.utils.data import Dataset

def spin(seconds):
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass

def clear(mebibytes):
    with mmap.mmap(-1, mebibytes << 20) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1

class Rows(Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, number):
        {row}
        return torch.ones(1)

batches, waited, told = iter(DataLoader(Rows(), batch_size=1, **{loader})), 0.0, []
try:
    while True:
        began = time.monotonic()
        batch = next(batches)
        waited += time.monotonic() - began
        {step}
        optimizer.step()
        told.append([time.monotonic(), waited, time.process_time()])
finally:
    json.dump(told, open(sys.argv[1], "w"))
"""
#: For each program, what makes a row and a step, and options of its loader; then the milliseconds
#: in which a step at least waits for input and has core time, its page faults, and what helps.
TRUTHS = {
    "computes": ("pass", "spin(0.02)", {}, (0, 20, 0), ()),
    "waits": ("pass", "time.sleep(0.02)", {}, (0, 0, 0), ()),
    "computes and waits": ("pass", "spin(0.01); time.sleep(0.01)", {}, (0, 10, 0), ()),
    "a loader that waits": ("time.sleep(0.01)", "spin(0.02)", {}, (10, 20, 0), ("loader",)),
    "a loader that computes": ("spin(0.01)", "spin(0.02)", {}, (10, 30, 0), ("loader",)),
    "little input": ("time.sleep(0.0005)", "spin(0.08)", {}, (0.5, 80, 0), ()),
    # A batch of another process is received in one to three milliseconds.
    "a worker that keeps up": (
        "time.sleep(0.01)", "time.sleep(0.1)", {"num_workers": 1}, (0, 0, 0), ()
    ),
    "a worker that is late": (
        "time.sleep(0.04)", "time.sleep(0.01)", {"num_workers": 1}, (28, 0, 0), ("loader",)
    ),
    "clears memory": ("pass", "clear(16)", {}, (0, 0, 4096), ("memory",)),
    "clears and waits": ("time.sleep(0.01)", "clear(16)", {}, (10, 0, 4096), ("memory", "loader")),
    "clears little": ("pass", "spin(0.03); clear(1)", {}, (0, 30, 256), ()),
    "all of it": (
        "time.sleep(0.005)", "spin(0.01); time.sleep(0.005); clear(16)", {}, (5, 10, 4096),
        ("memory", "loader"),
    ),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.sweep
@pytest.mark.parametrize("name", TRUTHS)
def test_parts_of_steps_are_those_of_programs_whose_truth_is_known(name, tmp_path):
    """Each part is within 5 %, or a millisecond, of what the program itself counts."""
    row, step, loader, (waits, cores, faults), helps = TRUTHS[name]
    script = TRUTH.format(row=row, step=step, loader=loader)
    times = tmp_path / "times.json"
    done, processes = start(SCRIPT + script, tmp_path, "torch", str(times), ESCALA_WINDOW="2")
    assert done.returncode == 0, done.stderr
    [found] = seen.window_of(processes).mean_steps
    # The first steps are not in the window.
    counted = np.diff(np.array(json.loads(times.read_text()))[processes[0].steady - 1 :], axis=0)
    for part, own, least in zip(
        ("step_seconds", "input_seconds", "core_seconds"),
        1000 * counted.mean(axis=0),
        (0, waits, cores),
        strict=True,
    ):
        assert 1000 * found[part] == pytest.approx(own, rel=0.05, abs=1)
        assert own > 0.95 * least
    assert found["minor_faults"] == pytest.approx(faults, rel=0.05, abs=25)
    assert found["workers"] == loader.get("num_workers", 0)
    use = core_use({"program": {"mean_steps": [found]}})
    is_input = found["input_seconds"] >= INPUT_FRACTION * found["step_seconds"]
    assert ("memory" in helps, "loader" in helps) == (clears_memory(use), is_input)


LOADERS = """
places = [None, None, None, 0]
loaders = [
    loader, DataLoader(rows, batch_size=4, num_workers=2), DataLoader(rows, 4),
    DataLoader(rows, 4, *places),
]
print([each.num_workers for each in loaders])
for each in loaders:
    assert [float(x) for [batch] in each for x in batch] == rows.tensors[0].tolist()
"""


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_have_as_many_workers_as_a_change_asks_for(workers, tmp_path):
    done, _ = start(SCRIPT + LOADERS, tmp_path, ESCALA_LOADER_WORKERS=str(workers))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[workers, 2, workers, workers]}\n"


COUNTED = """
model = torch.nn.Linear(64, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(40):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""


@pytest.mark.torch
def test_the_operations_of_a_step_are_counted_beside_its_trace(tmp_path):
    """A matrix product forward, and one for the gradient of the weights."""
    window = {"ESCALA_WINDOW": "0.0001"}  # It is long enough for the trace.
    done, [seen] = start(SCRIPT + COUNTED, tmp_path, ESCALA_TRACE=f"3:20:{tmp_path}", **window)
    assert 24 <= seen.made < 40
    assert done.returncode == 0, done.stderr
    counted = json.loads((tmp_path / "operations0.json").read_text())
    assert counted["step"] == 2 * (2 * 8 * 64 * 32)
    assert counted["matrix_products_per_second"] > 1e8
    assert (tmp_path / "rank0.trace.json.gz").exists()


@pytest.mark.torch
def test_steps_of_other_optimizers_are_seen_after_an_update_that_raised_an_error(tmp_path):
    code = """
broken = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
try:
    broken.step(lambda: 1 / 0)
except ZeroDivisionError:
    pass
"""
    done, [process] = start(SCRIPT + code + COUNTED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert 30 <= process.made <= 40


RANKS = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rows = TensorDataset(torch.arange(4000.0).reshape(-1, 1))
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
made = 0
try:
    for epoch in range(100):
        for [batch] in DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows)):
            model(batch).sum().backward()
            time.sleep(0.01 + dist.get_rank() * float(os.environ.get("SLOWER", 0)))
            optimizer.step()
            made += 1
except Exception:
    sys.exit("the end of the window looks like an error")
finally:
    print("made", made)
"""


def run_ranks(folder: Path, **added: str) -> list[str]:
    """Run the script `RANKS` in two ranks that are seen, and return what they print."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    marks = folder / "marks0"
    marks.mkdir()
    (folder / "script.py").write_text(RANKS, encoding="utf-8")
    given = {"ESCALA_STEPS": str(marks), "PYTHONPATH": str(HOOK), "ESCALA_WINDOW": "0.5"}
    given |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **added}
    ranks = [
        subprocess.Popen(
            [interpreter("torch"), str(folder / "script.py")],
            env=os.environ | given | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return printed


@pytest.mark.torch
def test_each_rank_leaves_a_trace_that_shows_which_one_is_slow(tmp_path):
    """A step sleeps for 10 ms, and on rank 1 for 30 ms."""
    run_ranks(tmp_path, ESCALA_TRACE=f"3:9:{tmp_path}", SLOWER="0.02")
    paths = [tmp_path / f"rank{rank}.trace.json.gz" for rank in range(2)]
    found = spans.divide([*map(spans.read, paths)])
    assert found.ranks["steps"].to_list() == [8, 8]
    skew, rest = found.ranks["skew"], found.ranks["unexplained"]
    # Beside other work, both ranks take longer.
    assert 0.01 < skew[0] - skew[1] < 0.03 and 0.01 < rest[1] - rest[0] < 0.03
    assert rest[0] > 0.009 and found.last.idxmax() == 1
    # Of two numbers, each rank sends and receives the half, twice.
    assert found.ranks["bytes"].to_list() == [8, 8]
    parts = found.ranks[["compute", "skew", "transfer", "copies", "input", "unexplained"]]
    assert parts.sum(axis=1).to_list() == pytest.approx(found.ranks["whole"].to_list())


@pytest.mark.torch
@pytest.mark.sweep
def test_all_ranks_end_at_the_same_step_and_the_script_cleans_up(tmp_path):
    printed = run_ranks(tmp_path)
    last = json.loads((tmp_path / "window.json").read_text())["last"]
    processes = seen.read(tmp_path / "marks0")
    assert [process.made for process in processes] == [last, last]
    # The step in which the process ends is counted by nobody else.
    assert printed == [f"made {last - 1}\n"] * 2
    window = seen.window_of(processes)
    assert window.epoch_steps == 500
    [epoch], _ = window.epochs
    assert len(epoch.steps) >= 5
    assert epoch.train_seconds >= 0.01 * epoch.count
    # A step that the machine interrupted is left out of the epoch, but not of the window.
    windows = (process.steps_between(process.steady, last) for process in processes)
    assert max(sum(steps.seconds for steps in steady) for steady in windows) >= 0.5


KERAS = """
import numpy, keras
data = numpy.ones((6, 1)), numpy.ones((6, 1))
one, other = (keras.Sequential([keras.layers.Dense(1)]) for _ in range(2))
for model in (one, other):
    model.compile("sgd", "mse")
one.fit(*data, batch_size=2, epochs=2, verbose=0)
for _ in range(5):
    one.train_on_batch(*data)
    other.train_on_batch(*data)
"""


@pytest.mark.tensorflow
def test_batches_of_keras_are_steps_in_fit_and_in_a_loop_of_the_script(tmp_path):
    done, processes = start(KERAS, tmp_path, "tensorflow")
    assert done.returncode == 0, done.stderr
    [process] = processes
    # `fit` calls no `train_on_batch`, and models that take turns make one step.
    assert [loop.batches for loop in process.loops] == [3, 3]
    # A line may tell of several quick steps.
    made = [loop.steps[-1][1] - loop.made_before for loop in process.loops]
    assert made == [3, 3 + 5]


def process(*loops: list[float], steady: int = 0, **known: int) -> seen.Process:
    """A process whose loops have steps of these seconds, each with one batch."""
    now, made, result = 0.0, 0, []
    for seconds in loops:
        loop = seen.Loop(now, **known, made_before=made)
        for taken, more in enumerate(seconds, 1):
            now, made = now + more, made + 1
            loop.steps.append((now, made))
            loop.taken.append(taken)
        result.append(loop)
    return seen.Process(result, steady)


@pytest.mark.parametrize(
    ("steps", "mean", "every", "left_out"),
    [
        # A rollout of 1 s before every 16 updates of 0.01 s: whole periods are timed.
        ([0.01] * 5 + ([1.0] + [0.01] * 15) * 3, (1.0 + 0.15) / 16, 16, 0),
        # A loader gives four batches at once.
        ([0.2, 0.01, 0.01, 0.01] * 20, (0.2 + 0.03) / 4, 4, 0),
        # One evaluation, and one that is followed by a slow step.
        ([0.01] * 50 + [1.0] + [0.01] * 50, 0.01, None, 1),
        ([0.01] * 50 + [1.0, 0.1] + [0.01] * 50, 0.01, None, 2),
        # A wait for data before every 4 and 10 steps in turn is too common for chance.
        (([0.2] + [0.01] * 3 + [0.2] + [0.01] * 9) * 9 + [0.2], 0.52 / 14, 0.29 * 14 / 0.52, 0),
    ],
)
def test_a_long_step_counts_if_it_recurs(steps, mean, every, left_out):
    window = seen.window_of([process(steps)])
    [[epoch]] = window.epochs
    assert epoch.train_seconds / epoch.count == pytest.approx(mean)
    assert window.period == pytest.approx(0 if left_out else mean * every)
    assert len([note for note in window.notes if "left out" in note]) == bool(left_out)
    if left_out:
        assert epoch.count == len(steps) - left_out


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        # Episodes become longer while the script trains.
        ([0.01 + 0.001 * n for n in range(20)], 0.0245 / 0.0145),
        ([0.02] * 10 + [0.01] * 10, 0.5),
        ([0.01] * 20, None),
    ],
)
def test_steps_that_change_while_the_script_trains_are_told(steps, times):
    told = [note for note in seen.window_of([process(steps)]).notes if "later steps" in note]
    assert bool(told) == (times is not None)
    if told:
        assert float(told[0].split()[3]) == pytest.approx(times, rel=0.05)


def test_steps_count_if_each_of_them_is_long_in_one_process():
    many = [process([1.0 if n % 3 == rank else 0.01 for n in range(30)]) for rank in range(3)]
    for [epoch] in seen.window_of(many).epochs:
        assert (epoch.count, epoch.train_seconds) == (30, pytest.approx(10 + 20 * 0.01))


@pytest.mark.parametrize("places", [[50, 250], [20, 60, 250], [20, 100, 110, 280]])
def test_long_steps_of_chance_are_left_out(places):
    steps = [1.0 if place in places else 0.01 for place in range(300)]
    window = seen.window_of([process(steps)])
    [[epoch]] = window.epochs
    assert (epoch.count, epoch.train_seconds) == (
        300 - len(places),
        pytest.approx(3 - 0.01 * len(places)),
    )
    assert not [note for note in window.notes if "recur" in note]
    # The runs have a window that shows whether they recur.
    assert window.period > 1


@pytest.mark.parametrize(
    ("line", "steps", "every"),
    [
        # Of `done` steps, a line tells of each, or of some, also if the last ones have no line.
        ("step {done}/{steps}", 20, 1),
        ("step {done}/{steps}", 20, 10),
        ("step {done}/{steps}", 100, 20),
        ("step {done}/{steps}", 25, 10),
        # Steps count from 0.
        ("step {before}/{steps}", 20, 1),
        # A bar begins with 0 steps.
        ("{done}/{steps} [00:01<00:03", 20, 1),
        ("{done}/{steps} [00:01<00:03", 20, 5),
        ("{done}/{steps} [00:01<00:03", 98, 10),
        # The first epoch tells how many steps it has.
        ("step {done}", 20, 1),
        ("step {before}", 20, 1),
    ],
)
@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.8])
def test_a_window_of_lines_projects_the_whole_training(line, steps, every, fraction):
    """Each of 30 epochs has steps of 0.1 s, and half a second of other work."""
    now, told, epochs = 2.0, [], 30
    for _ in range(epochs):
        if "[" in line:
            told.append((now, line.format(done=0, steps=steps)))
        for done in range(1, steps + 1):
            now += 0.1
            if done % every == 0:
                told.append((now, line.format(done=done, before=done - 1, steps=steps)))
        told.append((now, "the epoch ended"))
        now += 0.5
    search = OutputSearch(None if "/" in line else "ended", r"step|\d/")
    for time, text in told:
        if time < fraction * now:
            search.feed(f"{text}\n".encode(), time)
    marks, _ = lines.marks_of(search.marks, 1, None)
    process_of_lines, _ = seen.steps_of(marks, has_ended=False)
    window = seen.window_of([process_of_lines])
    assert window.project(epochs, 0.0) == pytest.approx(now, rel=0.01)


@pytest.mark.parametrize(
    ("batches", "taken", "steps"),
    [
        (4, [1, 2, 3, 4, 4, 4, 4, 4], 4),  # It goes on with batches that it keeps.
        (4, [4, 4, 4], None),  # It takes all batches before its first step.
        (4, [1, 1, 1, 2, 2], 12),  # Three updates of each batch.
        (4, [2, 4], 2),  # One update of two batches.
        (100, [2, 3, 4, 5, 6], 100),  # A batch is taken before it is needed,
        (20, [3, 5, 7, 9, 11, 13, 15, 17, 19, 20], 10),  # also with an update of two batches.
        (1, [1], 1),
        (None, [1, 2], None),
    ],
)
def test_the_steps_of_an_epoch_follow_from_batches(batches, taken, steps):
    notes = [(float(made), made) for made in range(1, len(taken) + 1)]
    loop = seen.Loop(0.0, batches, steps=notes, taken=taken)
    assert loop.steps_in_all == (steps and pytest.approx(steps))


#: Libraries that make rounds as XGBoost does, without its time to import.
LIBRARY = {
    "xgboost/__init__.py": "",
    "xgboost/core.py": (
        "import time\nSECONDS = 0.01\nclass Booster:\n    def update(self): time.sleep(SECONDS)\n"
    ),
    "work.py": (
        "from xgboost.core import Booster\n"
        "def rounds(number):\n    for _ in range(number): Booster().update()\n"
    ),
}


def write_library(folder: Path) -> None:
    for name, text in LIBRARY.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


#: Scripts, their options of Python, and the rounds that are seen of each process.
FORMS = {
    "fails": ((), "rounds(3)\nraise ValueError('no')", [3]),
    "ends with a code": ((), "rounds(3)\nsys.exit(3)", [3]),
    "forks": ((), "rounds(2)\nif os.fork(): os.wait()\nelse: rounds(4)\nrounds(1)", [3, 5]),
    "becomes itself": (
        (),
        "rounds(2)\n"
        "if sys.argv[1:] == []: os.execv(sys.executable, [sys.executable, __file__, '1'])",
        [2],
    ),
    "two threads": (
        (),
        "both = [threading.Thread(target=rounds, args=[5]) for _ in range(2)]\n"
        "[one.start() for one in both]; [one.join() for one in both]",
        [10],
    ),
    "a pool": (
        (),
        "import multiprocessing as m\n"
        "if __name__ == '__main__':\n"
        "    one = m.get_context('spawn').Process(target=rounds, args=[4])\n"
        "    one.start(); one.join()",
        [4],
    ),
    "isolated": (("-I",), "rounds(3)", []),
    "without site": (("-S",), "rounds(3)", []),
    "its own sitecustomize": ((), "rounds(3)\nprint(sitecustomize.MINE)", [3]),
    "a zip": ((), "rounds(3)\nprint(os.path.basename(sys.argv[0]))", [3]),
}  # fmt: skip


def test_a_program_of_slow_steps_ends_at_the_last_step_of_its_window(tmp_path, monkeypatch):
    """A process of MPI that is killed makes its launcher fail."""
    write_library(tmp_path)
    (tmp_path / "script.py").write_text(
        "import xgboost.core\nxgboost.core.SECONDS = 0.4\nfrom work import rounds\nrounds(1000)"
    )
    marks = tmp_path / "marks0"
    marks.mkdir()
    program = Program.of({"command": [sys.executable, "script.py"]}, tmp_path, "program")
    given = os.environ | {
        "PYTHONPATH": f"{HOOK}{os.pathsep}{tmp_path}", "ESCALA_STEPS": str(marks),
        "ESCALA_WINDOW": "2",
    }  # fmt: skip
    monkeypatch.setattr(child, "WINDOW_GRACE_SECONDS", 0.1)
    output = child.Output(program)
    window = child.WindowEnd(tmp_path / "window.json", lambda: False)
    ended = child.run(program, list(program.command), given, "ESCALA_STEPS", output, window=window)
    assert ended.code == 0
    assert seen.read(marks)[0].made == json.loads(window.file.read_text())["last"]


def test_the_age_of_a_window_is_that_of_this_machine(tmp_path, monkeypatch):
    """The clock of a file server may be behind."""
    window = child.WindowEnd(tmp_path / "window.json", lambda: False)
    end_window(window.file, 12, 0.5)
    os.utime(window.file, (0, 0))
    assert not window.ends_program() and not window.ends_program()
    monkeypatch.setattr(child, "WINDOW_GRACE_SECONDS", -1.0)
    assert window.ends_program()


def test_processes_of_two_nodes_with_one_number_end_the_same_window(tmp_path, monkeypatch):
    """The second ends it while the first is about to."""
    file, node, link = tmp_path / "window.json", ["a"], os.link
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=node[0]))

    def wait(*paths: str) -> None:
        monkeypatch.setattr(os, "link", link)
        node[0] = "b"
        end_window(file, 7)
        link(*paths)

    monkeypatch.setattr(os, "link", wait)
    end_window(file, 5)
    assert json.loads(file.read_text())["last"] == 7
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("form", FORMS)
def test_a_script_does_with_the_hook_what_it_does_without(form, tmp_path):
    options, code, rounds = FORMS[form]
    library, marks = tmp_path / "library", tmp_path / "marks0"
    write_library(library)
    marks.mkdir()
    imports = "import os, sys, threading\n"
    if "sitecustomize" in form:
        (library / "sitecustomize.py").write_text("MINE = 1")
        imports += "import sitecustomize\n"
    imports += f"sys.path.insert(0, {str(library)!r})\nfrom work import rounds\n"
    script = tmp_path / "script.py"
    script.write_text(imports + code)
    if form == "a zip":
        script = tmp_path / "script.pyz"
        with zipfile.ZipFile(script, "w") as file:
            file.writestr("__main__.py", imports + code)

    def end(**added: str) -> subprocess.CompletedProcess:
        given = os.environ | {"PYTHONPATH": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
        call = [sys.executable, *options, script]
        return subprocess.run(call, env=given | added, capture_output=True, text=True, timeout=60)

    bare = end()
    hooked = end(ESCALA_STEPS=str(marks), PYTHONPATH=f"{HOOK}{os.pathsep}{library}")
    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (
        bare.returncode, bare.stdout, bare.stderr,
    )  # fmt: skip
    assert sorted(process.made for process in seen.read(marks)) == rounds


def test_steps_of_loops_of_one_batch_become_steady():
    rule = Rule()
    for number in range(20):
        rule.begin(number)
        rule.step(number + 0.9, 1, number + 1)
    assert rule.steady
