"""Make what is known of a run before it starts: its plan, and a run.json without a status.

The ranks read the plan as `ranks/plan.json`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import socket
from datetime import UTC, datetime
from pathlib import Path

from escala.cache.entries import digest_file
from escala.cache.store import location
from escala.core import hardware, packages, variables
from escala.core.environment import session
from escala.core.errors import InputError
from escala.data import base
from escala.engines import engine_name
from escala.experiment.runs import NAMES
from escala.probes import PROBES
from escala.programs.program import Program
from escala.record import key
from escala.record.schema import FORMAT, validate_run
from escala.runtime import allocation, slurm
from escala.runtime.layout import global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import complete, threads_of
from escala.training import checkpoint
from escala.training.process import Plan
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
            name
            for name, digest in description["sha256"].items()
            if digest_file(data / name, location()) != digest
        ]
    except (KeyError, AttributeError, FileNotFoundError) as error:
        damaged = [str(error)]
    if damaged:
        raise InputError(data, damaged[0], "is damaged", f"remove {data} and run again")
    return description


def make_plan(request: dict, description: dict, data: Path) -> Plan:
    """Return the plan that the ranks read: the request with all values derived from it.

    Parameters
    ----------
    request : settings of one run, as `escala.experiment` makes them. Only a program of the user has
        `start` (how it is started: program, paths, interface) and `program` (what is recorded of
        it: command, files, variables, versions).

    Raises
    ------
    InputError : early stopping needs a validation loss, and the split has no validation side; or
        weak scaling asks for more rows than the split has.
    """
    training, rows = request["training"], description["rows"]
    if (
        training.get("early_stopping", {}).get("monitor") == "validation"
        and "validation" not in rows
    ):
        reason = "is validation, and this dataset has no validation rows: test rows must not decide"
        remedy = "use monitor: training, or a dataset with a validation side"
        raise InputError(data, "early_stopping.monitor", reason, remedy)
    weak, train_rows = training.get("weak", {}), {"train_rows": rows["train"]}
    if "rows_per_rank" in weak:
        ranks, most = weak["ranks"], rows["train"]
        wanted = weak["rows_per_rank"] * ranks
        if wanted > most:
            reason = f"makes {wanted} rows for {ranks} ranks, and this split has {most}"
            remedy = f"write at most {most // ranks}, or take a larger dataset"
            raise InputError(data, f"rows_per_rank: {weak['rows_per_rank']}", reason, remedy)
        train_rows = {"train_rows": wanted, "split_rows": most}
    layout = request["layout"]
    knobs = complete(request["knobs"], request["workload"])
    # The launcher of a program gives each rank threads of its own.
    together = STRATEGIES[request["strategy"]].layouts.process_per_node and "start" not in request
    threads = threads_of(knobs, layout.processes if together else 1)
    takes_steps = "start" not in request and WORKLOADS[request["workload"]].takes_steps
    validation = "validation" if "validation" in rows else "test"
    counts = None
    if "counts" in description:
        # The rows before oversampling.
        counts = [description["counts"][name]["train"] for name in description["classes"]]
    plan: Plan = {
        **{name: request[name] for name in ("strategy", "workload", "training", "instrument")},
        "engine": engine_name(request["strategy"]) if takes_steps else None,
        "knobs": knobs | {"threads": threads},
        "ranks": layout.ranks,
        "data": str(data.resolve()),
        "train_counts": counts,
        **train_rows,
        "validated_on": validation if training.get("validate") else None,
        "max_steps": request.get("max_steps"),
        "probe_settings": request["probe_settings"],
    }
    if "start" in request:
        paths = {"split": str(data.resolve())} | request["start"]["paths"]
        plan["start"] = request["start"] | {"paths": paths}
    return plan | _schedule(plan, request["repeat"] or 1)


def _schedule(plan: Plan, repeat: int) -> dict:
    """Return epochs, batch, learning rate and seeds. The command of a program may name them.

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
        # A rank without exchange takes the mean over the rows of its own shard.
        "weighting": knobs["weighting"] if strategy.exchanges(knobs) else "ranks",
        "seed": seed,
    }


def resumption(plan: Plan, description: dict, folder: Path) -> dict:
    """Return the epoch after which the run resumes, or 0, and the digest of its checkpoints.

    A checkpoint of other settings, data, code or environment is removed.
    """
    determining = {name: value for name, value in plan.items() if name != "data"}
    determining |= {
        "sha256": description["sha256"],
        "source": key.code_sha256(plan["workload"], plan["strategy"], plan["instrument"]),
        "environment": variables.describe(),
    }
    digest = hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()
    epoch = checkpoint.latest(folder, digest)
    if epoch is None:
        checkpoint.forget(folder)
    return {"digest": digest, "resume_after": epoch or 0}


def describe_start(request: dict, plan: Plan, description: dict, started: datetime) -> dict:
    """Return the run.json of a run at its start: without a status, and with nothing measured.

    Parameters
    ----------
    request : the request, with its `sha256`, and `turn`, the place of the run in the order of its
        repeat.
    description : description of the split.

    Raises
    ------
    ValueError : the run.json would not be valid.
    """
    unmeasured = (
        "link", "seconds", "step_seconds", "samples_per_second", "evaluation", "disturbance",
        "usage", *(name for name, probe in PROBES.items() if probe.result), "weights_sha256",
    )  # fmt: skip
    result = {
        "format": FORMAT,
        **{name: request[name] for name in NAMES},
        "session": session(),
        "started": started.isoformat(timespec="seconds"),
        "ranks": dict.fromkeys(("obtained", "launcher", "interface", "one_clock", "fractions"))
        | {name: [] for name in ("hosts", "machines", "cores")}
        | {
            "asked": plan["ranks"],
            "oversubscribed": False,
            "threads": plan["knobs"]["threads"],
        },
        "training": _describe_training(request, plan, description),
        "epochs": [],
        **dict.fromkeys(unmeasured),
        "data": {
            **{name: description[name] for name in ("provenance", "leaky", "split_seed")},
            "sha256": sha256_of(description),
        },
        "machine": hardware.describe()
        | {"kernel": platform.release(), "hostname": socket.gethostname()},
        "versions": _versions(request),
        "source_sha256": key.code_sha256(
            request["workload"], request["strategy"], request["instrument"]
        ),
        "environment": variables.describe(),
        "request_sha256": request["sha256"],
        "turn": request["turn"],
        "knobs": plan["knobs"],
        "seeds": {"weights": plan["seed"], "shuffle": plan["seed"]},
    }
    if job := describe_job():
        result["job"] = job
    if "start" in plan:
        _describe_program(request, result)
    validate_run(result | {"status": "failed", "reason": "not started", "wall_seconds": 0.0})
    return result


def sha256_of(description: dict) -> dict[str, str]:
    """Return the digests of a split's arrays, and of the paths that a program reads, by name."""
    paths = {name: path["sha256"] for name, path in description.get("paths", {}).items()}
    return description.get("sha256", {}) | paths


def _versions(request: dict) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    if "program" in request:
        versions = request["program"]["versions"]
        return ({"python": versions["python"]} | versions["packages"]) if versions else {}
    code = key.code(request["workload"], request["strategy"])
    return packages.versions(SHARED_PACKAGES) | code.versions


def _describe_training(request: dict, plan: Plan, description: dict) -> dict:
    """Return `training` of a run.json before the run."""
    steps = None  # A fit has no steps, and the steps of a program are not known.
    if plan["engine"]:
        steps = Shards.of_plan(plan, [1 / plan["ranks"]] * plan["ranks"]).steps(None)
    return {
        **{
            name: plan[name]
            for name in ("global_batch", "learning_rate", "train_rows", "validated_on")
        },
        "rows_per_rank": -(-plan["global_batch"] // plan["ranks"]),
        "optimizer": None,
        "epochs_asked": plan["epochs"],
        "steps_per_epoch": steps,
        "epochs_done": 0,
        "stopped_early": False,
        "best_epoch": None,
        "resumed_after": [],
        "parameters": None,
        "test_rows": description["rows"]["test"],
        "target_accuracy": request["training"].get("target_accuracy"),
        "settings": request["training"],
    }


def _describe_program(request: dict, result: dict) -> None:
    """Add what is known of a program. A setting that its command does not name is not known."""
    named = Program.from_plan(request["start"]["program"]).placeholders
    result["program"] = {
        "command": request["program"]["command"],
        "files": request["program"]["files"],
        "variables": request["program"]["variables"],
        "named": sorted(named),
        "known_by": None,
        "first_epoch_seconds": None,
        "whole_seconds": None,
        "notes": [],
    }
    if not {"rows", "rows_of_rank"} & named:
        result["training"] |= {"global_batch": None, "rows_per_rank": None}
    if "epochs" not in named:
        result["training"]["epochs_asked"] = None
    if "seed" not in named:
        result["seeds"] = {"weights": None, "shuffle": None}


#: Distributions that all runs use, to prepare data, start ranks and score them.
SHARED_PACKAGES = ("scikit-learn", "imbalanced-learn", "biopython", "snakemake")


def describe_job() -> dict | None:
    """Return what its scheduler tells of the job of this process; None outside of a job."""
    job = allocation.ask_job()
    if job is None:
        return None
    times = {"submitted": job.submitted, "started": job.started}
    return {
        "number": job.number,
        "step": None,
        "exclusive": job.exclusive,
        "nodes": allocation.hosts(job),
        "slurm": slurm.version() if job.scheduler == "slurm" else None,
        **{
            name: at and at.astimezone(UTC).isoformat(timespec="seconds")
            for name, at in times.items()
        },
    }
