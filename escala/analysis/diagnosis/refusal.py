"""Refuse a file that cannot be diagnosed, with a remedy that fits its content."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from escala.analysis.diagnosis.recording import Recording
from escala.core.errors import InputError
from escala.core.readable import counted
from escala.probes._trace_file import Events

_NAME_IT = "name the file of HOROVOD_TIMELINE or --timeline-filename"
_RUN_ON = "let the training make three steps or more, and read the file again"
_SAME_NAME = (
    "give a tensor the same name at each step, as hvd.allreduce(…, name=…) and "
    "hvd.DistributedOptimizer do"
)


def refusal(path: Path, recording: Recording, events: Events) -> InputError:
    """Return the error of a file with too few steps."""
    reason, remedy = _answer(recording, events)
    if recording.known and (unfinished := recording.unfinished()):
        reason += f"; at its end, {unfinished[0].said()}"
    if events.damage:
        reason += f"; {events.damage}"
        remedy = f"copy it again; {remedy}"
    return InputError(path, None, reason, remedy)


def _answer(recording: Recording, events: Events) -> tuple[str, str]:
    if not recording.events:
        if events.damage:
            return "holds no trace", _NAME_IT
        return (
            "holds no operation yet",
            "wait for Horovod's first operation; only rank 0 writes, to a path on its node",
        )
    if not recording.known:
        return (
            f"holds {counted(recording.events, 'event')}, and none is of Horovod",
            f"{_NAME_IT}; in a run of Escala it is timeline.json, not trace.json",
        )
    operations = recording.operations()
    reduced = operations[~operations["phase"].str.startswith("BROADCAST")]
    if reduced.empty:
        broadcasts = f", but {counted(len(operations), 'broadcast')}" if len(operations) else ""
        return f"holds no operation on a gradient that ended{broadcasts}", _RUN_ON
    names = pd.Series(recording.tensors())[reduced["tensor"].unique()]
    most = reduced["tensor"].value_counts().max()
    reason = f"holds too few steps: a tensor is reduced {counted(most, 'time')} at most"
    if names.str.contains("noname").any():
        return (
            f"{reason}, because tensors without a name of their own get another one at each step "
            f"({names.iloc[-1]})",
            _SAME_NAME,
        )
    alike = names.str.replace(r"\d+", "", regex=True).value_counts()
    if alike.iloc[0] > 2:
        return f"{reason} ({names.iloc[-1]})", f"{_RUN_ON}; {_SAME_NAME}"
    return reason, _RUN_ON
