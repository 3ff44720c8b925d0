"""The parts of the steps of a Horovod run with clocks, by subtraction of the moments in its files.

It shares no code with `escala.analysis.attribution`, so one can be held against the other:

    python -m tests.step_by_hand results/EXPERIMENT/runs/…/clocks.rep1

prints both for each rank, in ms a step, and fails where a part of at least a hundredth of the step
differs by more than 5 %.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

SAMPLED = ("core_seconds", "queue_seconds", "idle_seconds")
LARGEST, LEAST = 0.05, 0.01
WINDOWS = (("gather_begins", "entered"), ("entered", "computed"), ("summed", "returned"))
TRANSFERS = ("MPI_ALLREDUCE", "GLOO_ALLREDUCE", "NCCL_ALLREDUCE")

#: Of a moment and tensor: when it was, and core, queue and idle seconds, None where not sampled.
Moments = Mapping[tuple[str, str], tuple[float, float | None, float | None, float | None]]


def by_hand(
    steps: Mapping[int, Mapping[tuple[int, int], Moments]],
    transfers: Iterable[tuple[float, float]] = (),
) -> dict[int, dict[str, float]]:
    """Return the seconds of the parts of each rank, means over the steps that were sampled.

    Parameters
    ----------
    steps : by rank, and by epoch and step.
    transfers : begins and ends of Horovod's transfers, in the same seconds.
    """
    found = {}
    for rank, of_rank in steps.items():
        sampled = [step for step, moments in of_rank.items() if _is_sampled(moments)]
        wanted, by_others = 0.0, 0.0
        for step in sampled:
            (begins, *first), (ends, *last) = (
                of_rank[step][n, ""] for n in ("gather_begins", "returned")
            )
            by_others += ends - begins - (last[0] - first[0]) - (last[2] - first[2])
            wanted += sum(_lost(of_rank[step], *window) for window in WINDOWS)
        share = min(1.0, max(0.0, by_others) / wanted) if wanted else 0.0
        sums: dict[str, float] = defaultdict(float)
        for step in sampled:
            others = [_last(of_other[step], "gradient_ready") for of_other in steps.values()]
            for part, seconds in _step(of_rank[step], max(others), transfers, share).items():
                sums[part] += seconds / len(sampled)
        found[rank] = dict(sums)
    return found


def _is_sampled(moments: Moments) -> bool:
    names = {name for window in WINDOWS for name in window}
    return all((name, "") in moments and moments[name, ""][2] is not None for name in names)


def _lost(moments: Moments, first: str, last: str) -> float:
    (start, used, queued, _), (end, used_then, queued_then, _) = (
        moments[first, ""],
        moments[last, ""],
    )
    return max(0.0, min(queued_then - queued, end - start - (used_then - used)))


def _last(moments: Moments, name: str) -> float:
    return max(at for (moment, tensor), (at, *_) in moments.items() if moment == name and tensor)


def _step(
    moments: Moments, all_ready: float, transfers: Iterable[tuple[float, float]], share: float
) -> dict[str, float]:
    begins, gathered, entered, returned = (
        moments[name, ""][0] for name in ("gather_begins", "gather_ends", "step_begins", "returned")
    )
    ready, arrived, updated = (
        _last(moments, name) for name in ("gradient_ready", "exchanged", "updated")
    )
    exchange_begins = min(all_ready, arrived)
    works = (
        {"input": gathered - begins, "entering": entered - gathered},
        {"compute": ready - entered},
        {"optimiser": updated - arrived, "leaving": returned - updated},
    )
    lost, parts = 0.0, {}
    for window, work in zip(WINDOWS, works, strict=True):
        fraction = min(1.0, share * _lost(moments, *window) / sum(work.values()))
        for part, seconds in work.items():
            lost += fraction * seconds
            parts[part] = seconds - fraction * seconds
    moving = sorted((max(a, exchange_begins), min(b, arrived)) for a, b in transfers)
    transfer, until = 0.0, exchange_begins
    for start, end in moving:
        transfer += max(0.0, end - max(start, until))
        until = max(until, end)
    return {
        "input": parts["input"],
        "dispatch": parts["entering"] + parts["leaving"],
        "compute": parts["compute"],
        "optimiser": parts["optimiser"],
        "skew": exchange_begins - ready,
        "transfer": transfer,
        "rest of the exchange": arrived - exchange_begins - transfer,
        "off the core": lost,
        "whole": returned - begins,
    }


def read(folder: Path) -> tuple[dict, list[tuple[float, float]]]:
    """Return what `by_hand` takes from the files of a run."""
    steps: dict = defaultdict(lambda: defaultdict(dict))
    for path in folder.glob("ranks/rank*.clocks.csv"):
        rank = int(path.name.removeprefix("rank").split(".")[0])
        with path.open(newline="") as lines:
            for row in csv.DictReader(lines):
                values = (float(row[name]) if row[name] else None for name in SAMPLED)
                at = (float(row["seconds"]), *values)
                steps[rank][int(row["epoch"]), int(row["step"])][row["moment"], row["tensor"]] = at
    text = (folder / "timeline.json").read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else f"{text}]")
    [origin] = [
        event["args"]["start_time_since_epoch_in_micros"] for event in events
        if "start_time_since_epoch_in_micros" in event.get("args", {})
    ]  # fmt: skip
    open_events, transfers = defaultdict(list), []
    for event in events:
        if event.get("ph") == "B":
            open_events[event["pid"]].append(event)
        elif event.get("ph") == "E" and open_events[event["pid"]]:
            begun = open_events[event["pid"]].pop()
            if begun["name"] in TRANSFERS:
                transfers.append(tuple((origin + each["ts"]) / 1e6 for each in (begun, event)))
    return steps, transfers


def main(folder: Path) -> int:
    """Print the parts by hand and as the report has them; return 1 if they differ."""
    from escala.analysis.attribution import run_attribution

    table = run_attribution(folder / "run.json", alone=False, one_clock=True)
    differ = 0
    for rank, parts in sorted(by_hand(*read(folder)).items()):
        reported = table[table["rank"] == rank].set_index("part")["seconds"]
        rest = reported[["copies", "negotiation", "unexplained"]].sum()
        reported = reported.to_dict() | {"rest of the exchange": rest}
        for part, seconds in parts.items():
            apart = abs(reported[part] - seconds) > LARGEST * seconds
            wrong = apart and max(seconds, reported[part]) > LEAST * parts["whole"]
            differ |= wrong
            print(
                f"rank {rank}  {part:21}{1e3 * seconds:9.2f} by hand"
                f"{1e3 * reported[part]:9.2f} reported{'  DIFFERS' if wrong else ''}"
            )
    return int(differ)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a run with clocks")
    folder = parser.parse_args().run
    if not any(folder.glob("ranks/rank*.clocks.csv")):
        parser.error(f"{folder} holds no clocks of ranks: name a folder clocks.repN of Horovod")
    sys.exit(main(folder))
