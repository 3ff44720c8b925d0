"""Build the table of every measurement of every timing run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import numpy as np

from escala.record.comparable import Measurement
from escala.record.disturbance import earlier
from escala.report.tables.base import PARTS, Evidence, data_of, epochs_to_target, is_cut, names_of

_TRAINING = (
    "global_batch", "rows_per_rank", "learning_rate", "optimizer", "epochs_asked", "epochs_done",
    "stopped_early", "parameters", "train_rows", "test_rows",
)  # fmt: skip

#: Between the notes on a program.
NOTES_APART = "; "
_OF_PROGRAMS = (
    "command", "known_by", "named", "first_epoch_seconds", "program_seconds", "program_notes",
)  # fmt: skip


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each measurement."""
    return map(row, evidence.found)


def row(run: Measurement) -> dict:
    """Return the row of a measurement."""
    ranks, training, machine = run["ranks"], run["training"], run["machine"]
    seconds, steps = run["seconds"] or {}, run["step_seconds"] or {}
    evaluation, epochs = run["evaluation"] or {}, run["epochs"]
    ok, cut = run["status"] == "ok", is_cut(run)
    if cut:
        evaluation = {}
    return {
        **names_of(run),
        **{key: run[key] for key in ("current", "comparable", "incomparable_because")},
        **{key: run[key] for key in ("status", "reason", "started")},
        "kind": "unavailable" if not ok else "estimated" if cut else "measured",
        "training_kind": training["kind"],
        "ranks": ranks["asked"],
        "ranks_obtained": ranks["obtained"],
        "oversubscribed": ranks["oversubscribed"],
        **{key: (run["link"] or {}).get(key) for key in ("mbit_per_second", "latency_ms")},
        "launcher": ranks.get("launcher"),
        "cores": ";".join(",".join(map(str, cores)) for cores in ranks["cores"]),
        "intra_op_threads": ranks["threads"]["intra_op"],
        "inter_op_threads": ranks["threads"]["inter_op"],
        **{key: training[key] for key in _TRAINING},
        "resumptions": len(training.get("resumed_after", [])),
        "train_seconds": seconds.get("train"),
        "train_seconds_per_epoch": _seconds_per_epoch(run) if ok else None,
        "epoch_wall_seconds_per_epoch": (
            float(np.mean([epoch["epoch_wall_seconds"] for epoch in epochs]))
            if ok and not cut
            else None
        ),
        "step_median_seconds": steps.get("median"),
        "step_p90_seconds": steps.get("p90"),
        "samples_per_second": run["samples_per_second"],
        **{f"{part}_seconds": seconds.get(part) for part in PARTS},
        "wall_seconds": run["wall_seconds"],
        **_program(run),
        **_disturbance(run),
        "accuracy": evaluation.get("accuracy"),
        "macro_f1": evaluation["macro"]["f1"] if "macro" in evaluation else None,
        **_time_to_target(run),
        **data_of(run),
        **{key: machine[key] for key in ("cpu", "cores_available", "memory_bytes", "kernel")},
        "gpus": "; ".join(machine.get("gpus", [])) or None,
        "hostname": machine["hostname"],
        "hosts": ";".join(run["ranks"]["hosts"]),
        "weights_sha256": run["weights_sha256"],
        "source_sha256": run["source_sha256"],
        "file": run["file"],
    }


def _program(run: Measurement) -> dict:
    """Return what a program tells of itself; all of it is empty for other workloads."""
    told = run.get("program")
    if not told:
        return dict.fromkeys(_OF_PROGRAMS)
    return {
        "command": " ".join(map(_quoted, told["command"])),
        "known_by": told["known_by"],
        "named": ";".join(told["named"]),
        "first_epoch_seconds": told["first_epoch_seconds"],
        "program_seconds": told["whole_seconds"],
        "program_notes": NOTES_APART.join(told["notes"]) or None,
    }


def _quoted(word: str) -> str:
    """Quote a word of a command as a shell needs it, its placeholders apart."""
    plain = re.sub(r"[{}]", "_", word)
    return word if shlex.quote(plain) == plain else shlex.quote(word)


def _disturbance(run: Measurement) -> dict:
    """Return whether other work disturbed a run, and how often it was measured before."""
    found = run.get("disturbance") or {}
    return {
        "disturbed": found.get("disturbed"),
        "disturbed_because": found.get("reason"),
        "earlier_attempts": len(earlier(run)),
    }


def _seconds_per_epoch(run: Measurement) -> float:
    """Return the training seconds of an epoch, extrapolated if it was cut to some of its steps."""
    spent, epochs = run["seconds"]["train"], run["epochs"]
    if not is_cut(run):
        return spent / len(epochs)
    return spent / sum(e["steps"] for e in epochs) * run["training"]["steps_per_epoch"]


def _time_to_target(run: Measurement) -> dict:
    """Return the training seconds until the target accuracy, censored if it was not reached."""
    target = run["training"].get("target_accuracy")
    row = {"target_accuracy": target, "time_to_target_seconds": None}
    if run["status"] != "ok" or target is None:
        return row | {"time_to_target_kind": "unavailable"}
    needed = epochs_to_target(run)
    return row | {
        "time_to_target_seconds": sum(epoch["train_seconds"] for epoch in run["epochs"][:needed]),
        "time_to_target_kind": "censored" if needed is None else "measured",
    }
