"""Train and measure one run, and always write its run.json."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from escala import cli, lab
from escala.cache import store
from escala.core import exits
from escala.core.children import die_with_parent
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.progress import say
from escala.data import base
from escala.probes import PROBES
from escala.record import again, key
from escala.record.stored import keep_older, may_be_served
from escala.strategies.base import TIMELINE_FILES

#: Files that a run may leave next to its run.json.
FILES = ("ranks", "predictions.npy", "model.npz", "model.json", "tensorboard", *TIMELINE_FILES)
#: Parts of a request that select code.
_SELECTING = ("workload", "strategy", "instrument")


def main() -> int | None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--request",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="the run's identity, training settings, knobs and seeds",
    )
    parser.add_argument(
        "--turn",
        type=cli.json_or_file,
        default={"place": None, "matched_with": [], "repeat": None},
        metavar="JSON",
        help="the run's place in its repeat; the requests of the runs of the repeat that it is "
        "matched with; all runs of the repeat if the run ends it, none if a later run does, null "
        "if that is not known; the nodes of this job that it uses, null without a choice; and why "
        "it is not begun, null if it is",
    )
    parser.add_argument("--data", required=True, type=Path, help="folder of the split")
    parser.add_argument("--time-limit", type=float, default=3600, metavar="SECONDS")
    parser.add_argument("--output", required=True, type=Path, help="the run.json to write")
    parser.add_argument(
        "--lost",
        nargs=2,
        metavar=("STATUS", "REASON"),
        help="do not run: write that the run ended without a result",
    )
    arguments = parser.parse_args()
    # Ranks must not go on after Snakemake was killed: it would start the run again alongside them.
    die_with_parent()
    request, output = arguments.request, arguments.output

    if arguments.lost:
        from escala.record.run import lost

        lost(request, arguments.data, output, *arguments.lost, turn=arguments.turn["place"])
        return None

    if late := arguments.turn.get("late"):
        print(f"{output}: not begun: {late}", file=sys.stderr)
        return exits.NO_TIME

    serve_or_measure(request, arguments.turn, arguments.data, output, arguments.time_limit)
    try:
        end_repeat(list(map(Path, arguments.turn["repeat"] or [])))
    # This run is complete, and what was to be measured again stands as it was measured first.
    except SystemExit:
        print("interrupted while runs were measured again", file=sys.stderr)
    except InputError as error:
        say(error)
    return None


def measure_of(turn: dict) -> again.Measure:
    """Return what measures a run, with all that its turn says."""
    from escala.record import run

    nodes = turn.get("nodes") or ()
    return partial(run.measure, turn=turn["place"], links=lab.links(), nodes=nodes)


def serve_or_measure(
    request: dict, turn: dict, data: Path, output: Path, seconds: float, measured: bool = False
) -> None:
    """Serve a run from the store, or measure it and store it.

    Parameters
    ----------
    turn : see `main`.
    seconds : its time limit.
    measured : whether it was measured in this session, and is only to be stored.
    """

    def make() -> bool:
        from escala.record import program_changes

        if measured:
            code = key.code_sha256(*(request[name] for name in _SELECTING))
            may_be_stored = read_json(output)["source_sha256"] == code
        else:
            measure = measure_of(turn)
            outcome = measure(request, data, output, seconds)
            print(f"{output}: {outcome.status}" + f" ({outcome.reason})" * bool(outcome.reason))
            may_be_stored = again.settle(measure, request, turn, data, output, seconds)
        return may_be_stored and not program_changes.changed(request, data)

    probe = request["instrument"]
    files = tuple(dict.fromkeys((*FILES, *(PROBES[probe].products if probe else ()))))
    names = (base.DESCRIPTION, *base.files(base.description(data)))
    arrays = {name: data / name for name in names}
    works = [key.work(each) for each in (request, *turn["matched_with"])]
    common = {
        "inputs": {name: path for name, path in arrays.items() if path.exists()},
        "measurement": key.machine(),
    }
    own, *kept = store.kept(probe or "train", works, "run.json", **common)
    sessions = keep_older(output, own)
    serve = not measured and may_be_served(sessions, kept)
    if sessions and not serve and not measured:
        print(f"{output}: is measured again: the store lacks a run that it is matched with")
    cli.serve_or_make(
        probe or "train",
        **common,
        **works[0]._asdict(),
        outputs={name: output.with_name(name) for name in ("run.json", *files)},
        optional=files,
        make=make,
        serve=serve,
    )
    # A run from the store was measured in another session, which is kept as well.
    keep_older(output, [output.read_bytes()])


def end_repeat(outputs: list[Path]) -> None:
    """Measure a repeat again if other work disturbed a run of it in this session."""
    requests = {path: again.request_of(path) for path in outputs}
    left = {path: asked for path, asked in requests.items() if asked}

    def measuring(asked: dict) -> Callable[[Path], Any]:
        measure, data = measure_of(asked["turn"]), Path(asked["data"])
        return lambda output: measure(asked["request"], data, output, asked["seconds"])

    changed = {path for path in left if again.is_left(read_json(path))}
    while any(again.is_left(read_json(path)) for path in left):
        print("End of the repeat: other work disturbed it.", flush=True)
        if not again.wait_for_quiet():
            break
        print(f"Its {len(left)} runs are measured again.", flush=True)
        if again.measure_again({path: measuring(asked) for path, asked in left.items()}):
            changed |= left.keys()
    for path in sorted(changed):
        asked = left[path]
        data, seconds = Path(asked["data"]), asked["seconds"]
        serve_or_measure(asked["request"], asked["turn"], data, path, seconds, measured=True)
    for path in left:
        path.with_name(again.REQUEST).unlink(missing_ok=True)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
