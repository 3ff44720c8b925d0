"""Estimate of the memory that runs take, without starting one."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from escala import engines
from escala.cache import store
from escala.core import children
from escala.core.errors import Unavailable
from escala.core.files import read_json, write_json
from escala.core.readable import counted, size
from escala.engines import interpreters
from escala.experiment import Experiment, Run
from escala.experiment.runs import takes_steps
from escala.record import key
from escala.record.estimate import Experiments, expected
from escala.runtime.layout import Layout, global_batch
from escala.runtime.placement import processes_per_node
from escala.strategies import STRATEGIES
from escala.strategies.knobs import complete, model_knobs, reads
from escala.training.memory import Footprint, node_bytes, rows_of_ranks, shortage

#: Builds the models in processes of their engines: this one must not wait for a framework.
COMMAND = ["-m", "escala.engines.footprints"]
#: A model whose code takes longer has no estimate.
LIMIT_SECONDS = 120.0
#: Models are built without a GPU and without TensorFlow's messages.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclass(frozen=True)
class Memory:
    """Memory of some runs, as far as it is known.

    Attributes
    ----------
    footprints : of the model of each run, where it is known.
    unknown : the number of the other runs by reason.
    """

    footprints: Mapping[Run, Footprint]
    unknown: Mapping[str, int]


def memory(runs: list[Run], experiment: Experiments, project: Path) -> Memory:
    """Build the model of each run, and return what it takes; fits are left out.

    Each different model is built once, in a separate process, which takes a few seconds. The
    store keeps what it takes.

    Parameters
    ----------
    project : folder of the project, where these processes find its code.
    """
    models: dict[Run, str] = {}
    unknown: Counter[str] = Counter()
    for run in filter(takes_steps, runs):
        if STRATEGIES[run.strategy].divides_model:
            unknown[f"the ranks of {run.strategy} divide the variables"] += 1
            continue
        found = _model(run, experiment(run.experiment))
        if found is None:
            unknown[f"the form of {run.dataset} is not known before its data are"] += 1
        else:
            models[run] = json.dumps(found, sort_keys=True)
    built = {model: _footprint(model, project) for model in dict.fromkeys(models.values())}
    unknown.update(built[model] for model in models.values() if isinstance(built[model], str))
    footprints = {
        run: built[model] for run, model in models.items() if not isinstance(built[model], str)
    }
    return Memory(footprints, unknown)


def _model(run: Run, experiment: Experiment) -> dict[str, Any] | None:
    """Return all that determines the model of a run, None if the form of its rows is unknown."""
    form, settings = expected(run, experiment), experiment.settings_of(run)
    if form.inputs is None or form.outputs is None:
        return None
    return {
        "workload": run.workload,
        "engine": engines.engine_name(run.strategy),
        "inputs": [dict(entry) for entry in form.inputs],
        "outputs": form.outputs,
        "training": settings["training"],
        "knobs": model_knobs(complete(settings["knobs"], run.workload), run.workload),
    }


def _footprint(model: str, project: Path) -> Footprint | str:
    """Return the footprint of a model, kept in the store, or the reason why it has none."""
    settings, built = json.loads(model), None
    workload, engine = settings["workload"], settings["engine"]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "footprint")

        def make() -> bool:
            nonlocal built
            built = _built(model, project)
            if isinstance(built, str):
                return False
            write_json(file, asdict(built), durable=False)
            return True

        store.get_or_compute(
            "footprint",
            code=key.model_code(workload, engine),
            inputs={},
            parameters=settings,
            measurement={},
            outputs={"footprint": file},
            make=make,
        )
        return built or Footprint(**read_json(file))


def _built(model: str, project: Path) -> Footprint | str:
    """Return the footprint of a model, or the reason why it has none.

    A user's code may end the process that builds it, or come to no end.
    """
    settings = json.loads(model)
    about = f"{settings['workload']}: no model could be built"
    try:
        python = interpreters.python(settings["engine"])
    except Unavailable as missing:
        # A dry run installs nothing, and a run does it by itself.
        return f"{about}: {str(missing).partition('. Remedy: ')[0]}"
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer, log = (Path(scratch, name) for name in ("model", "answer", "log"))
        asked.write_text(model, encoding="utf-8")
        call = [python, *COMMAND, str(asked), str(answer)]
        variables = engines.variables(python, os.environ | _ENVIRONMENT)
        process = children.start(call, variables, log, project)
        try:
            code = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{about}: it took more than {LIMIT_SECONDS:.0f} s"
        finally:
            children.stop([process], grace_seconds=0)
        if answer.exists():
            found = read_json(answer)
            return found.get("error") or Footprint(**found)
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [
            "it said nothing"
        ]
    return f"{about}: its code ended the process with exit code {code}: {said[-1]}"


def sentence(memory: Memory, experiment: Experiments, available: float | None) -> str | None:
    """Return a sentence on the memory of the run nearest to its limit; None without runs.

    Parameters
    ----------
    available : bytes on this machine; None if a scheduler grants what `memory_gib` asks for.
    """
    found = []
    for run, footprint in memory.footprints.items():
        needed, rows = _needed_on_node(run, experiment(run.experiment), footprint)
        limit = available
        if limit is None:
            per_process = experiment(run.experiment).settings["memory_gib"] * 2**30
            limit = per_process * Layout.parse(run.layout).processes
        found.append((needed, rows, limit, run))
    parts = []
    if found:
        needed, rows, limit, run = max(found, key=lambda each: each[0] / each[2])
        granted = f"for which memory_gib asks for {size(limit)}"
        parts.append(
            f"at least {size(needed)} on a node for the run nearest to its limit, {run.workload} "
            f"on {run.dataset}, {run.strategy} {run.layout} {run.variant}, "
            + (granted if available is None else f"and {size(limit)} are available")
        )
        if needed > limit:
            parts.append(f"it will not begin, because it {shortage(needed, limit, rows)}")
    parts += [
        f"unavailable for {counted(count, 'run')}: {reason}"
        for reason, count in memory.unknown.items()
    ]
    return f"Estimated memory: {'; '.join(parts)}." if parts else None


def _needed_on_node(run: Run, experiment: Experiment, footprint: Footprint) -> tuple[int, int]:
    """Return the bytes of a run on its first node, and the most rows of a rank at a time."""
    settings, strategy = experiment.settings_of(run), STRATEGIES[run.strategy]
    layout = Layout.parse(run.layout)
    whole = global_batch(settings["training"], layout.ranks)
    train_rows = expected(run, experiment).train_rows
    knobs = complete(settings["knobs"], run.workload)
    by_speed = reads(run.strategy, "fractions") and knobs["fractions"] is None
    batch = round(min(whole, train_rows or whole))
    rows = rows_of_ranks(batch, layout.ranks, knobs["accumulation"], by_speed)[: layout.processes]
    processes = processes_per_node(layout, strategy)
    engine = engines.engine_name(run.strategy)
    return node_bytes(footprint, rows, processes, engine, not strategy.waits()), max(rows)
