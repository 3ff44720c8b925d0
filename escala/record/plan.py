"""The plan of a run: its request with all values derived from it.

The ranks read it as `ranks/plan.json`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from escala.cache.digests import sha256
from escala.cache.store import location
from escala.core import variables
from escala.core.errors import InputError
from escala.data import base
from escala.engines import engine_name
from escala.record import key
from escala.runtime.layout import global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import complete, threads_of
from escala.training import checkpoint
from escala.training.plan import Plan
from escala.workloads import WORKLOADS


def split_description(data: Path) -> dict:
    """Return a split's description after checking that its arrays match it.

    Raises
    ------
    InputError : an array is missing or damaged, or the description is missing.
    """
    description = base.description(data)
    try:
        damaged = [
            n
            for n, digest in description["sha256"].items()
            if sha256(data / n, location()) != digest
        ]
    except (KeyError, AttributeError, FileNotFoundError) as error:
        damaged = [str(error)]
    if damaged:
        raise InputError(data, damaged[0], "is damaged", f"remove {data} and run again")
    return description


def make_plan(request: dict, description: dict, data: Path) -> Plan:
    """Return the plan that the ranks read: the request with all values derived from it.

    Raises
    ------
    InputError : early stopping needs a validation loss, and the split has no validation side.
    """
    training, rows = request["training"], description["rows"]
    if (
        training.get("early_stopping", {}).get("monitor") == "validation"
        and "validation" not in rows
    ):
        reason = "is validation, and this dataset has no validation rows: test rows must not decide"
        remedy = "use monitor: training, or a dataset with a validation side"
        raise InputError(data, "early_stopping.monitor", reason, remedy)
    layout = request["layout"]
    knobs = complete(request["knobs"], request["workload"])
    # The launcher of a program gives each rank threads of its own.
    together = STRATEGIES[request["strategy"]].layouts.process_per_node and "start" not in request
    threads = threads_of(knobs, layout.processes if together else 1)
    takes_steps = "start" not in request and WORKLOADS[request["workload"]].takes_steps
    validation = "validation" if "validation" in rows else "test"
    counts = None
    if "counts" in description:
        # Those before oversampling.
        counts = [description["counts"][name]["train"] for name in description["classes"]]
    plan: Plan = {
        **{name: request[name] for name in ("strategy", "workload", "training", "instrument")},
        "engine": engine_name(request["strategy"]) if takes_steps else None,
        "knobs": knobs | {"threads": threads},
        "ranks": layout.ranks,
        "data": str(data.resolve()),
        "train_counts": counts,
        **_train_rows(training, rows["train"], data),
        "validated_on": validation if training.get("validate") else None,
        "max_steps": request.get("max_steps"),
        "probe_settings": request["probe_settings"],
    }
    if "start" in request:
        paths = {"split": str(data.resolve())} | request["start"]["paths"]
        plan["start"] = request["start"] | {"paths": paths}
    return plan | _schedule(plan, request["repeat"] or 1)


def _train_rows(training: dict, split_rows: int, data: Path) -> dict[str, int]:
    """Return the training rows of a run, and those of the split if it takes some of them.

    Raises
    ------
    InputError : weak scaling asks for more rows than the split has.
    """
    weak = training.get("weak", {})
    if "rows_per_rank" not in weak:
        return {"train_rows": split_rows}
    rows, ranks = weak["rows_per_rank"] * weak["ranks"], weak["ranks"]
    if rows > split_rows:
        reason = f"makes {rows} rows for {ranks} ranks, and this split has {split_rows}"
        remedy = f"write at most {split_rows // ranks}, or take a larger dataset"
        raise InputError(data, f"rows_per_rank: {weak['rows_per_rank']}", reason, remedy)
    return {"train_rows": rows, "split_rows": split_rows}


def _schedule(plan: Plan, repeat: int) -> dict:
    """Return epochs, batch, learning rate and seeds; a program may take them from its command.

    A fit is one step over all rows, without random numbers.
    """
    training, rate = plan["training"], None
    if not plan["engine"] and "start" not in plan:
        threads = plan["knobs"]["threads"]["intra_op"] or plan["knobs"]["cores_per_process"]
        return {
            "knobs": plan["knobs"] | {"threads": {"intra_op": threads, "inter_op": 1}},
            "epochs": 1,
            "global_batch": plan["train_rows"],
            **dict.fromkeys(("learning_rate", "seed")),
        }
    strategy, knobs = STRATEGIES[plan["strategy"]], plan["knobs"]
    batch, seed = global_batch(training, plan["ranks"]), training["seed"] + repeat - 1
    if plan["engine"]:
        declared = training["learning_rate"]
        linear = declared["rule"] == "linear"
        scale = batch / declared["reference_batch"] if linear else 1.0
        rate = declared["value"] * scale
    return {
        "epochs": training["epochs"],
        "global_batch": batch,
        "step_rows": min(batch, plan["train_rows"]) if plan["engine"] else None,
        "learning_rate": rate,
        # A rank that exchanges nothing takes the mean over its own rows.
        "weighting": knobs["weighting"] if strategy.exchanges(knobs) else "ranks",
        "seed": seed,
    }


def resumption(plan: Plan, description: dict, folder: Path) -> dict:
    """Return the epoch after which the run resumes, 0 at its start, and its checkpoints' digest.

    A checkpoint of other settings, data, code or environment is removed.
    """
    own = {key: value for key, value in plan.items() if key != "data"}
    own |= {
        "sha256": description["sha256"],
        "source": key.code_sha256(plan["workload"], plan["strategy"], plan["instrument"]),
        "environment": variables.describe(),
    }
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    epoch = checkpoint.latest(folder, digest)
    if epoch is None:
        checkpoint.forget(folder)
    return {"digest": digest, "resume_after": epoch or 0}
