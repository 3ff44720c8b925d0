"""Tell where the time of a step goes, from the traces of any training, which need not be Escala's.

Name the traces of all ranks of one training by the profiler of PyTorch or JAX. Then it tells what
computes, what is exchanged beside it, what waits for a slower rank, and what waits for input. Or
name a timeline of Horovod: the bounds of what its exchange adds assume a cycle of 1 ms
(HOROVOD_CYCLE_TIME).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from escala.core.errors import InputError

EXAMPLES = """\
examples:
  escala why traces/*.pt.trace.json.gz
  escala why traces/*/plugins/profile/*/*.trace.json.gz
  escala why /path/timeline.json

In PyTorch, around some steps of each rank, in a folder that is empty before:

  with torch.profiler.profile(
      schedule=torch.profiler.schedule(wait=3, warmup=1, active=10, repeat=1),
      on_trace_ready=torch.profiler.tensorboard_trace_handler("traces", use_gzip=True),
      record_shapes=True,  # With Gloo, to tell what collectives move.
  ) as profiler:
      for batch in loader: …; profiler.step()

In JAX, after the first steps of each process, with a folder for each of them:

  with jax.profiler.trace("traces/0"):
      for number in range(10):
          with jax.profiler.StepTraceAnnotation("train", step_num=number):
              state = jax.block_until_ready(train_step(state))
"""


def add(parser: argparse.ArgumentParser) -> None:
    text = "a trace of PyTorch, JAX or Horovod, whole or cut short, also as .gz, .bz2 or .xz"
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help=text)


def run(arguments: argparse.Namespace) -> None:
    from escala.analysis.traces import explain

    for path in arguments.files:
        if not path.is_file():
            remedy = "name the files that the profiler wrote, or that of HOROVOD_TIMELINE"
            raise InputError("trace", str(path), "is no file", remedy)
    for line in explain(arguments.files):
        print(line)
