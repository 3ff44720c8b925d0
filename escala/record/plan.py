"""The plan of a run: its request with all values derived from it.

The ranks read it as `ranks/request.json`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from escala.cache.digests import sha256
from escala.cache.store import location
from escala.core import variables
from escala.core.errors import InputError
from escala.core.rates import bits_per_second
from escala.data import base
from escala.record import key
from escala.runtime.layout import Layout, global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import complete, threads_of
from escala.training import checkpoint
from escala.training.shards import Shards
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


def make_plan(request: dict, description: dict, data: Path) -> dict:
    """Return the plan that the ranks read: the request with all values derived from it.

    Raises
    ------
    InputError : early stopping needs a validation loss, and the split has no validation side.
    """
    stopping = request["training"].get("early_stopping", {})
    if stopping.get("monitor") == "validation" and "validation" not in description["rows"]:
        raise InputError(
            data,
            "early_stopping.monitor",
            "is validation, and this dataset has no validation rows: test rows must not decide",
            "use monitor: training, or a dataset with a validation side",
        )
    layout = Layout.parse(request["layout"])
    knobs = complete(request["knobs"], request["workload"])
    # The launcher of a program gives each rank threads of its own.
    together = STRATEGIES[request["strategy"]].one_process_per_node and "start" not in request
    threads = threads_of(knobs, layout.processes if together else 1)
    common = {
        "strategy": request["strategy"],
        "workload": request["workload"],
        "kind": WORKLOADS[request["workload"]].kind,
        "training": request["training"],
        "knobs": knobs | {"threads": threads},
        "ranks": layout.ranks,
        "data": str(data.resolve()),
        "train_counts": _counts(description),
        "train_rows": description["rows"]["train"],
        "validated_on": _validated_on(request["training"], description),
        "max_steps": request.get("max_steps"),
        "link_bits_per_second": _link_rate(request["link"]),
        "instrument": request["instrument"],
        "probe_settings": request["probe_settings"],
    }
    by_kind = {"steps": _by_steps, "fit": _by_fit, "command": _by_command}
    if "start" in request:
        split = {"split": str(data.resolve())}
        common["start"] = request["start"] | {"paths": split | request["start"]["paths"]}
    return common | by_kind[common["kind"]](common, request["repeat"] or 1)


def _link_rate(link: dict) -> int | None:
    """Return the requested rate of the links between nodes in bit/s, None without one."""
    return bits_per_second(link["rate"]) if link["rate"] else None


def _validated_on(training: dict, description: dict) -> str | None:
    """Return the side whose rows are evaluated after each epoch, or None."""
    if not training.get("validate"):
        return None
    return "validation" if "validation" in description["rows"] else "test"


def _counts(description: dict) -> list[int] | None:
    """Return the training rows of each class before oversampling, if the description has them."""
    if "counts" not in description:
        return None
    return [description["counts"][name]["train"] for name in description["classes"]]


def _by_steps(plan: dict, repeat: int) -> dict:
    """Return the further entries of the plan of a workload trained by steps."""
    training = plan["training"]
    rate, batch = training["learning_rate"], global_batch(training, plan["ranks"])
    scale = batch / rate["reference_batch"] if rate["rule"] == "linear" else 1.0
    seed = training["seed"] + repeat - 1
    return {
        "epochs": training["epochs"],
        "global_batch": batch,
        "learning_rate": rate["value"] * scale,
        "seed": seed,
        "shuffle_seed": seed,
    }


def _by_fit(plan: dict, repeat: int) -> dict:
    """Return the same entries for a fit: one step over all rows, without random numbers."""
    threads = plan["knobs"]["threads"]["intra_op"] or plan["knobs"]["cores_per_process"]
    return {
        "knobs": plan["knobs"] | {"threads": {"intra_op": threads, "inter_op": 1}},
        "epochs": 1,
        "global_batch": plan["train_rows"],
        "learning_rate": None,
        "seed": None,
        "shuffle_seed": None,
    }


def _by_command(plan: dict, repeat: int) -> dict:
    """Return the same entries for a program, which may take them from its command."""
    training = plan["training"]
    seed = training["seed"] + repeat - 1
    return {
        "epochs": training["epochs"],
        "global_batch": global_batch(training, plan["ranks"]),
        "learning_rate": None,
        "seed": seed,
        "shuffle_seed": seed,
    }


def resumption(plan: dict, description: dict, folder: Path) -> dict:
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


def shards(plan: dict, shares: list[float]) -> Shards:
    return Shards(
        plan["shuffle_seed"],
        plan["train_rows"],
        plan["global_batch"],
        shares,
        plan["knobs"]["shard"],
    )
