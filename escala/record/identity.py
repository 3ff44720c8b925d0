"""What is known of a run before it starts: with a status, a valid run.json."""

from __future__ import annotations

from datetime import datetime

from escala.core import variables
from escala.core.environment import session
from escala.experiment.runs import NAMES
from escala.probes import PROBES
from escala.programs.program import Program
from escala.record import key, machine
from escala.record.schema import FORMAT, validate_run
from escala.training.plan import Plan
from escala.training.shards import Shards


def identity(request: dict, plan: Plan, description: dict, started: datetime) -> dict:
    """Return the content of a run.json without a status, in which nothing is measured yet.

    Parameters
    ----------
    request : with its `sha256` and the run's `turn`.
    description : of the split.

    Raises
    ------
    ValueError : it would not be valid.
    """
    unmeasured = (
        "link", "seconds", "step_seconds", "samples_per_second", "evaluation", "disturbance",
        "usage", *(name for name, probe in PROBES.items() if probe.result), "weights_sha256",
    )  # fmt: skip
    found = {
        "format": FORMAT,
        **{name: request[name] for name in NAMES},
        "session": session(),
        "started": started.isoformat(timespec="seconds"),
        "ranks": _ranks(plan),
        "training": _training(request, plan, description),
        "epochs": [],
        **dict.fromkeys(unmeasured),
        "data": {
            **{name: description[name] for name in ("provenance", "leaky", "split_seed")},
            "sha256": sha256_of(description),
        },
        "machine": machine.describe(),
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
    if job := machine.job():
        found["job"] = job
    if "start" in plan:
        _describe_program(request, found)
    validate_run(found | {"status": "failed", "reason": "not started", "wall_seconds": 0.0})
    return found


def sha256_of(description: dict) -> dict[str, str]:
    """Return the digests of a split's arrays, and of what a program reads itself, by name."""
    paths = {name: path["sha256"] for name, path in description.get("paths", {}).items()}
    return description.get("sha256", {}) | paths


def _versions(request: dict) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    if "program" in request:
        own = request["program"]["versions"]
        return ({"python": own["python"]} | own["packages"]) if own else {}
    code = key.code(request["workload"], request["strategy"])
    return machine.versions() | code.versions


def _ranks(plan: Plan) -> dict:
    unknown = dict.fromkeys(("obtained", "launcher", "interface", "one_clock", "fractions"))
    return unknown | {
        "asked": plan["ranks"],
        "hosts": [],
        "machines": [],
        "oversubscribed": False,
        "cores": [],
        "threads": plan["knobs"]["threads"],
    }


def _training(request: dict, plan: Plan, description: dict) -> dict:
    # The steps of a program are its own affair.
    kind, steps = "command", None
    if "start" not in plan:
        kind = "steps" if plan["engine"] else "fit"
        steps = Shards.planned(plan, [1 / plan["ranks"]] * plan["ranks"]).steps(None)
    return {
        "kind": kind,
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


def _describe_program(request: dict, found: dict) -> None:
    """Add what is known of a program; leave open what its command does not take from the run."""
    named = Program.from_plan(request["start"]["program"]).named
    found["program"] = {
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
        found["training"] |= {"global_batch": None, "rows_per_rank": None}
    if "epochs" not in named:
        found["training"]["epochs_asked"] = None
    if "seed" not in named:
        found["seeds"] = {"weights": None, "shuffle": None}
