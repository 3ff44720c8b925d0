"""The trace of a PyTorch program: which steps of which process its profiler records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest

from escala.core.errors import Unavailable
from escala.probes.torch_trace import TorchTrace
from escala.programs.program import HOOK
from escala.strategies.base import TRACE

#: In place of PyTorch: a profiler whose trace is the steps that it saw.
TORCH = """
import json
steps = []
class profiler:
    class ProfilerAction: RECORD = 1
    class profile:
        def __init__(self, schedule): self.spans = 0
        def step(self): self.spans += 1
        def start(self): self.first = len(steps)
        def stop(self): self.last = len(steps)
        def export_chrome_trace(self, path):
            with open(path, "w") as file:
                json.dump(steps[self.first : self.last], file)
"""
TRAINING = """
import sys
from escala_steps import epoch, steps
if {imports}: import torch
for number in range(2):
    for batch in steps(range(5)):
        if {imports}: torch.steps.append((number, batch))
    epoch()
"""


@pytest.mark.parametrize(
    ("asked", "rank", "imports", "recorded"),
    [
        (4, None, True, [[0, 3], [0, 4], [1, 0], [1, 1]]),
        (4, "0", True, [[0, 3], [0, 4], [1, 0], [1, 1]]),
        # Fewer than asked for, at the end of the program.
        (40, None, True, [[0, 3], [0, 4], *([1, step] for step in range(5))]),
        (4, "1", True, None),
        (4, None, False, None),
    ],
)
def test_steps_after_the_first_are_recorded_in_the_first_process(
    asked, rank, imports, recorded, tmp_path
):
    (tmp_path / "torch.py").write_text(TORCH)
    trace = tmp_path / "a:b" / "trace.json"
    trace.parent.mkdir()
    environment = os.environ | {"PYTHONPATH": f"{HOOK}:{tmp_path}", "ESCALA_STEPS": str(tmp_path)}
    environment |= {"ESCALA_TRACE": f"3:{asked}:{trace}"} | ({"RANK": rank} if rank else {})
    program = [sys.executable, "-c", TRAINING.format(imports=imports)]
    subprocess.run(program, env=environment, check=True, timeout=60)
    found = json.loads(trace.read_text()) if trace.exists() else None
    assert found == recorded
    assert sorted(trace.parent.iterdir()) == [trace] * (recorded is not None)


@pytest.mark.parametrize(("process", "left"), [(0, True), (0, False), (1, False)])
def test_a_program_without_a_trace_is_told_by_its_first_process(process, left, tmp_path):
    if left:
        (tmp_path / TRACE).write_text("[]")
    told = nullcontext()
    if process == 0 and not left:
        told = pytest.raises(Unavailable, match="no trace was left")
    with told, TorchTrace({"steps": 4}, tmp_path / "ranks").around(process, node=0):
        pass
