"""Read a Horovod timeline event by event, and keep the values from which steps are computed.

These are some numbers for each operation on a tensor, and the begins and ends of the phases of each
family.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from escala.core.errors import InputError
from escala.core.readable import milliseconds, with_noun
from escala.probes import timeline
from escala.probes.timeline import Events

OPERATION = timeline.OTHER
_UNKNOWN = float("nan")
#: Remedies for a file that cannot be diagnosed.
_NAME_IT = (
    "name a file of torch.profiler, jax.profiler, HOROVOD_TIMELINE or --timeline-filename; "
    "`escala why --help` shows how a script writes one"
)
_RUN_ON = "let the training make three steps or more, and read the file again"
_SAME_NAME = (
    "give a tensor the same name at each step, as hvd.allreduce(…, name=…) and "
    "hvd.DistributedOptimizer do"
)


@dataclass(frozen=True)
class Unfinished:
    """A phase that had not ended at the end of the timeline.

    Attributes
    ----------
    ready : ranks that were ready for the tensor; empty if the timeline does not record ranks.
    seconds : time from the begin of the phase to the last event.
    """

    tensor: str
    phase: str
    ready: tuple[int, ...]
    seconds: float

    def sentence(self) -> str:
        text = f"{self.phase} of {self.tensor} had begun {milliseconds(self.seconds)} before"
        if not self.ready:
            return text
        ranks = f"rank{'s' * (len(self.ready) > 1)} {', '.join(map(str, self.ready))}"
        return f"{text}, for which {ranks} {'was' if len(self.ready) == 1 else 'were'} ready"


@dataclass
class _Negotiation:
    """The present negotiation on a tensor, or else the last negotiation. Moments are in seconds.

    Attributes
    ----------
    begin : when the first rank requested the tensor.
    end : when all ranks were ready.
    ready : when each rank was ready, in order.
    """

    begin: float
    end: float = _UNKNOWN
    ready: dict[int, float] = field(default_factory=dict)


def read(events: Iterable[dict | None]) -> list[Recording]:
    """Return the timelines of a file. The event None stands between two timelines."""
    recordings = [Recording()]
    for event in events:
        if event is None:
            recordings.append(Recording())
        else:
            recordings[-1].add(event)
    return recordings


class Recording:
    """The values that are kept of a timeline.

    Attributes
    ----------
    events : number of events, without events of names and without instants.
    is_horovod : whether the timeline has a negotiation or an operation of Horovod.
    ranks : all ranks that the timeline names.
    last : moment of the last event, in seconds.
    """

    def __init__(self) -> None:
        self.events, self.is_horovod, self.last = 0, False, 0.0
        self.ranks: set[int] = set()
        # The starts and the ends of the phases of each family.
        self._families = defaultdict(lambda: (array("d"), array("d")))
        # The name of a tensor by the `pid` of its events; numbers of tensors and phases by name.
        self._names: dict[int | str, str] = {}
        self._tensors: dict[str, int] = {}
        self._phases: dict[str, int] = {}
        self._open_phases = timeline.OpenPhases()
        self._negotiations: dict[int | str, _Negotiation] = {}
        # The columns of the tables `operations` and `waits`.
        self._operations = {
            name: array(kind)
            for name, kind in (
                ("tensor", "i"), ("phase", "i"), ("bytes", "d"), ("start", "d"),
                ("end", "d"), ("first", "d"), ("rank_0", "d"), ("agreed", "d"),
            )
        }  # fmt: skip
        self._waits = {
            name: array(kind)
            for name, kind in (("tensor", "i"), ("ranks", "i"), ("last", "i"), ("seconds", "d"))
        }
        # Number of negotiations on each tensor.
        self._negotiated: dict[int, int] = defaultdict(int)

    def add(self, event: dict) -> None:
        """Keep the values of an event. Its `ph` is B or E at the begin or end of a phase."""
        kind = event["ph"]
        self.events += kind not in "Mi"
        if kind == "B":
            self._begin(event)
        elif kind == "E":
            self._end(event)
        elif kind == "X":
            negotiation = self._negotiations.get(event["pid"])
            if negotiation and timeline.is_ready(event):
                rank = int(event["name"])
                self.ranks.add(rank)
                negotiation.ready.setdefault(rank, event["ts"] * timeline.MICROSECONDS)
        elif name := timeline.tensor_name(event):
            self._names[event["pid"]] = name
        if kind in "BEXi":
            self.last = max(self.last, event["ts"] * timeline.MICROSECONDS)

    def _begin(self, event: dict) -> None:
        self._open_phases.begin(event)
        self.is_horovod = self.is_horovod or timeline.is_whole(event["name"])
        if event["name"].startswith("NEGOTIATE_"):
            begin = event["ts"] * timeline.MICROSECONDS
            self._negotiations[event["pid"]] = _Negotiation(begin)

    def _end(self, event: dict) -> None:
        phase_begin = self._open_phases.end(event)
        if phase_begin is None:
            return
        begin, depth = phase_begin
        pid, phase = event["pid"], begin["name"]
        start, end = (moment["ts"] * timeline.MICROSECONDS for moment in (begin, event))
        starts, ends = self._families[timeline.family(phase)]
        starts.append(start)
        ends.append(end)
        if depth:
            return
        if phase.startswith("NEGOTIATE_"):
            if negotiation := self._negotiations.get(pid):
                negotiation.end = end
                self._add_wait(self._tensor(pid), negotiation.ready)
            return
        negotiation = self._negotiations.pop(pid, _Negotiation(_UNKNOWN))
        size = timeline.tensor_bytes(event.get("args"))
        row = (
            self._tensor(pid),
            self._phases.setdefault(phase, len(self._phases)),
            _UNKNOWN if size is None else size, start, end,
            negotiation.begin, negotiation.ready.get(0, _UNKNOWN), negotiation.end,
        )  # fmt: skip
        for column, value in zip(self._operations.values(), row, strict=True):
            column.append(value)

    def _tensor(self, pid: int | str) -> int:
        """Return the number of a tensor. A new name gets a new number."""
        return self._tensors.setdefault(self._name(pid), len(self._tensors))

    def _name(self, pid: int | str) -> str:
        return self._names.get(pid, f"tensor {pid}")

    def _add_wait(self, tensor: int, ready: dict[int, float]) -> None:
        """Add a row on the last rank of a negotiation, and the seconds that the first rank waited.

        The first negotiation on a tensor is left out, because it contains the start. With its
        response cache, Horovod records ranks only in this first negotiation.
        """
        self._negotiated[tensor] += 1
        if ready and self._negotiated[tensor] > 1:
            last = max(ready, key=ready.__getitem__)
            row = (tensor, len(ready), last, ready[last] - min(ready.values()))
            for column, value in zip(self._waits.values(), row, strict=True):
                column.append(value)

    def tensors(self) -> list[str]:
        """Return the names of the tensors. The number of a tensor is its place in this list."""
        return list(self._tensors)

    def operations(self) -> pd.DataFrame:
        """Return the operations on tensors that ended, in order of their start.

        Returns
        -------
        Columns `tensor` (a number), `phase`, `bytes` (missing if unknown), `start`, `end`, and
        moments of the negotiation before the operation, missing without a negotiation: `first` (the
        first rank requested the tensor), `rank_0` (rank 0 was ready; also missing if not recorded),
        and `agreed` (all ranks were ready). Moments are in seconds.
        """
        frame = pd.DataFrame({name: np.array(values) for name, values in self._operations.items()})
        frame["phase"] = frame["phase"].map(dict(enumerate(self._phases))).astype(object)
        return frame.sort_values("start", kind="stable", ignore_index=True)

    def waits(self) -> pd.DataFrame:
        """Return a row for each negotiation whose ranks are recorded.

        Returns
        -------
        Columns `tensor` (a number), `ranks` (number of ranks), `last` (the last rank) and `seconds`
        (that the first rank waited for the last rank).
        """
        return pd.DataFrame({name: np.array(values) for name, values in self._waits.items()})

    def intervals(self, family: str) -> np.ndarray:
        """Return start and end of each phase of a family in seconds, of shape (number, 2)."""
        return np.column_stack(self._families[family])

    def find_unfinished(self) -> tuple[Unfinished, ...]:
        """Return the innermost open phase of each tensor, in the order of their begins."""
        innermost = [(pid, stack[-1]) for pid, stack in self._open_phases.stacks.items() if stack]
        return tuple(
            Unfinished(
                self._name(pid),
                event["name"],
                tuple(sorted(self._negotiations[pid].ready))
                if event["name"].startswith("NEGOTIATE_")
                else (),
                self.last - event["ts"] * timeline.MICROSECONDS,
            )
            for pid, event in sorted(innermost, key=lambda phase: phase[1]["ts"])
        )


def too_few_steps(path: Path, recording: Recording, events: Events) -> InputError:
    """Return the error of a file with too few steps."""
    reason, remedy = _reason_and_remedy(recording, events)
    if recording.is_horovod and (unfinished := recording.find_unfinished()):
        reason += f"; at its end, {unfinished[0].sentence()}"
    if events.damage:
        reason += f"; {events.damage}"
        remedy = f"copy it again; {remedy}"
    return InputError(path, None, reason, remedy)


def _reason_and_remedy(recording: Recording, events: Events) -> tuple[str, str]:
    if not recording.events:
        if events.damage:
            return "holds no trace", _NAME_IT
        return (
            "holds no operation yet",
            "wait for Horovod's first operation; only rank 0 writes, to a path on its node",
        )
    if not recording.is_horovod:
        return (
            f"holds {with_noun(recording.events, 'event')}, and none is of PyTorch, JAX or Horovod",
            _NAME_IT,
        )
    operations = recording.operations()
    reduced = operations[~operations["phase"].str.startswith("BROADCAST")]
    if reduced.empty:
        broadcasts = f", but {with_noun(len(operations), 'broadcast')}" if len(operations) else ""
        return f"holds no operation on a gradient that ended{broadcasts}", _RUN_ON
    names = pd.Series(recording.tensors())[reduced["tensor"].unique()]
    most = reduced["tensor"].value_counts().max()
    reason = f"holds too few steps: a tensor is reduced {with_noun(most, 'time')} at most"
    if names.str.contains("noname").any():
        return (
            f"{reason}, because tensors without a name of their own get another one at each step "
            f"({names.iloc[-1]})",
            _SAME_NAME,
        )
    without_numbers = names.str.replace(r"\d+", "", regex=True).value_counts()
    if without_numbers.iloc[0] > 2:
        return f"{reason} ({names.iloc[-1]})", f"{_RUN_ON}; {_SAME_NAME}"
    return reason, _RUN_ON
