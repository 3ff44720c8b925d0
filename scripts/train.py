"""Train and measure one run, and always write its run.json."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.cache import store
from escala.core.children import die_with_parent
from escala.data import base
from escala.probes import PROBES
from escala.record import key
from escala.record.stored import keep_older, may_be_served
from escala.strategies.base import TIMELINE_FILES

#: Files that a run may leave beside its run.json.
BESIDE = (
    "ranks",
    "predictions.npy",
    "model.npz",
    "model.json",
    "tensorboard",
    *TIMELINE_FILES,
)


def main() -> None:
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
        default={"matched_with": []},
        metavar="JSON",
        help="the requests of the runs of its repeat that the run is matched with",
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
    # Ranks must not go on after Snakemake was killed: it would start the run again beside them.
    die_with_parent()
    request, output = arguments.request, arguments.output

    if arguments.lost:
        from escala.record.run import lost

        lost(request, arguments.data, output, *arguments.lost)
        return

    def make() -> bool:
        from escala.record.run import measure

        outcome = measure(request, arguments.data, output, arguments.time_limit)
        print(f"{output}: {outcome.status}" + (f" ({outcome.reason})" * bool(outcome.reason)))
        return outcome.status == "ok"

    probe = request["instrument"]
    beside = tuple(dict.fromkeys((*BESIDE, *(PROBES[probe].products if probe else ()))))
    names = (base.DESCRIPTION, *base.files(base.description(arguments.data)))
    arrays = {name: arguments.data / name for name in names}
    works = [key.work(each) for each in (request, *arguments.turn["matched_with"])]
    common = {
        "code": key.CODE,
        "packages": key.PACKAGES,
        "inputs": {name: path for name, path in arrays.items() if path.exists()},
        "measurement": key.machine(),
    }
    own, *kept = store.kept(probe or "train", works, "run.json", **common)
    sessions = keep_older(output, own)
    serve = may_be_served(sessions, kept)
    if sessions and not serve:
        print(f"{output}: is measured again: the store lacks a run that it is matched with")
    cli.serve_or_make(
        probe or "train",
        **common,
        **works[0]._asdict(),
        outputs={name: output.with_name(name) for name in ("run.json", *beside)},
        optional=beside,
        make=make,
        serve=serve,
    )
    # A run from the store was measured in another session, which is kept as well.
    keep_older(output, [output.read_bytes()])


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
