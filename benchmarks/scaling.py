"""What a second process gains: ratios to one process in pairs, step times, and parts of a step.

    python benchmarks/scaling.py --lengths 1000 --strategies horovod-mpi --variants plain
    python scripts/lab.py up && python benchmarks/scaling.py experiments/network/scaling-lab.yaml \\
        --profile profiles/lab

The workflow measures, one length after the other; a repeat of all strategies and variants chosen
follows the one before, so fewer of them stand closer together. What was measured under the same
settings and code is read, not measured again, unless --again says so. Ratios are those of the
training seconds of an epoch, medians over pairs of a session and repeat with their 95 % interval.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import yaml

from escala import cli
from escala.errors import InputError
from escala.experiment import Experiment, read
from escala.experiment.files import ROOT
from escala.explain import attribution, tables
from escala.explain.comparable import paired
from escala.explain.measurements import read_run
from escala.explain.statistics import median_interval
from escala.explain.tables.views import labelled
from escala.references import ONE_PROCESS, Place

SINGLE, _ = ONE_PROCESS
DATA = ["dataset", "workload"]
PLACE = list(Place._fields)
Tables = Mapping[str, pd.DataFrame]


def chosen(option: str, wanted: Sequence | None, there: Iterable) -> list:
    """Return what was asked for of what an experiment has, all of it if nothing was.

    Raises
    ------
    InputError : the experiment has no such thing.
    """
    there = list(dict.fromkeys(there))
    unknown = [value for value in wanted or there if value not in there]
    if unknown:
        known = ", ".join(map(str, there)) or "none"
        raise InputError(option, unknown[0], "is not in the experiment", f"choose of {known}")
    return list(wanted or there)


def selection(
    settings: dict,
    length: int,
    strategies: Sequence[str],
    variants: Sequence[str],
    networks: Sequence[str],
    pairs: int | None,
) -> dict:
    """Return the part of an experiment's settings that compares one process with these strategies.

    Parameters
    ----------
    length : of the datasets to take, in letters.
    pairs : repeats; None leaves them as they are.
    """
    configurations = [
        entry for entry in settings["configurations"] if entry["strategy"] in {SINGLE, *strategies}
    ]
    part = {
        "repeats": settings["repeats"] if pairs is None else pairs,
        "datasets": {n: d for n, d in settings["datasets"].items() if d["length"] == length},
        "variants": {name: settings["variants"][name] for name in variants},
        "configurations": configurations,
        "ladders": {},
    }
    if networks:
        part["networks"] = {name: settings["networks"][name] for name in networks}
    return settings | part


def measured(settings: dict, profile: str | None, again: bool) -> tuple[Tables | None, int]:
    """Let the workflow measure an experiment; return the tables, if it made them, and exit code."""
    name = settings["experiment"]
    made = Path("results") / name / "tables" / "speedup.csv"
    # It may be of another selection.
    made.unlink(missing_ok=True)
    where = ["--profile", profile] if profile else ["--cores", "all"]
    anew = ["--forcerun", "train", "instrumented"] if again else []
    environment = os.environ | ({"ESCALA_MEASURE_AGAIN": "1"} if again else {})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.yaml"
        file.write_text(yaml.safe_dump(settings, sort_keys=False))
        snakemake = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile"]
        command = [*snakemake, made, *where, *anew, "--configfile", file]
        # What is printed here is the result alone.
        with subprocess.Popen(command, env=environment, stdout=sys.stderr) as workflow:
            try:
                code = workflow.wait()
            except SystemExit:
                # As a terminal tells both. On another signal it would wait for its jobs.
                workflow.send_signal(signal.SIGINT)
                raise
    return (tables.read(made.parent) if made.exists() else None), code


def lines(found: Tables) -> Iterator[str]:
    """Yield what the tables of one length say of every configuration, one process first."""
    configurations = found["configurations"]
    speedup = labelled(found["speedup"], found["runs"])
    ratios = speedup[speedup["reference"] == 1].set_index([*DATA, *PLACE])
    parts = found["attribution"]
    for row in configurations.sort_values("ranks", kind="stable").itertuples():
        name = tuple(getattr(row, key) for key in (*DATA, *PLACE))
        yield f"{row.dataset}, {row.workload}: {' '.join(name[len(DATA) :])}"
        if row.kind == "unavailable":
            yield f"  unavailable: {row.reason}"
            continue
        if name in ratios.index:
            ratio = ratios.loc[name]
            yield f"  ratio to {ratio['reference_label']}: {_ratio(ratio)}"
        step = (row.step_seconds, row.step_low_seconds, row.step_high_seconds)
        yield f"  step: {_spread(*(1000 * value for value in step), digits=1)} ms"
        yield f"  epoch: {row.train_seconds_per_epoch:.2f} s of training"
        yield from _parts(parts[(parts[[*DATA, *PLACE]] == list(name)).all(axis=1)])
    yield from _between_variants(found["runs"])


def _ratio(row: pd.Series) -> str:
    if row["kind"] == "unavailable":
        return f"unavailable: {row['reason']}"
    values = (row["ratio"], row["ratio_low"], row["ratio_high"])
    return f"{_spread(*values, digits=3)}, {row['pairs']} pairs, {row['kind']}"


def _spread(middle: float, low: float, high: float, digits: int) -> str:
    interval = "" if pd.isna(low) else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{middle:.{digits}f}{interval}"


def _parts(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the parts of the median step of every rank, in milliseconds."""
    for rank, group in rows.dropna(subset=["part"]).groupby("rank"):
        by_part = group.set_index("part")["median_seconds"]
        names = (*attribution.PARTS, attribution.OVERLAP, attribution.UNEXPLAINED)
        said = [
            f"{name} {'unavailable' if pd.isna(by_part[name]) else f'{1000 * by_part[name]:.1f}'}"
            for name in names
        ]
        whole, slowdown = 1000 * by_part[attribution.WHOLE], group["slowdown"].iloc[0]
        step = f"{whole:.1f} ms" + (
            "" if pd.isna(slowdown) else f", {slowdown:.2f} times that of timing runs"
        )
        yield f"  parts of a step of rank {rank} ({step}), ms: {', '.join(said)}"


def _between_variants(runs: pd.DataFrame) -> Iterator[str]:
    """Yield how one process under other variants compares with it under the first."""
    strategy, layout = ONE_PROCESS
    alone = runs[(runs["strategy"] == strategy) & (runs["layout"] == layout)]
    alone = alone[alone["comparable"] & (alone["status"] == "ok") & (alone["resumptions"] == 0)]
    for (dataset, workload), group in alone.groupby(DATA, sort=False):
        (first, references), *others = (
            (variant, list(map(_timed, of_variant.itertuples())))
            for variant, of_variant in group.groupby("variant", sort=False)
        )
        for variant, timed in others:
            pairs = paired(timed, references)
            both = zip(pairs.runs, pairs.references, strict=True)
            ratio = median_interval([mine["seconds"] / theirs["seconds"] for mine, theirs in both])
            if ratio.estimate:
                yield (
                    f"{dataset}, {workload}: {strategy} {layout}, {variant} against {first}: "
                    f"{_spread(*ratio, digits=3)}"
                )


def _timed(row) -> dict:
    """Return a measurement with its training seconds of an epoch, from its row in `runs`."""
    return read_run(row.file) | {"seconds": row.train_seconds_per_epoch}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "experiment", nargs="?", type=Path, default=ROOT / "experiments" / "virus" / "scaling.yaml"
    )
    parser.add_argument("--lengths", nargs="+", type=int, help="letters of a row (all)")
    parser.add_argument("--strategies", nargs="+", help="single is, in any case (all)")
    parser.add_argument("--variants", nargs="+", help="all")
    parser.add_argument("--networks", nargs="+", help="between nodes (all)")
    parser.add_argument("--pairs", type=int, help="as many as the experiment's repeats")
    parser.add_argument("--profile", help="of Snakemake; absent, this machine")
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    arguments = parser.parse_args()
    if arguments.pairs is not None and arguments.pairs < 1:
        parser.error("--pairs: one at least")
    settings = read(arguments.experiment)
    Experiment(settings, arguments.experiment)
    has = (entry["strategy"] for entry in settings["configurations"])
    strategies = chosen("--strategies", arguments.strategies, has)
    variants = chosen("--variants", arguments.variants, settings["variants"])
    networks = chosen("--networks", arguments.networks, settings.get("networks", []))
    there = (dataset["length"] for dataset in settings["datasets"].values())
    codes = []
    for length in chosen("--lengths", arguments.lengths, there):
        part = selection(settings, length, strategies, variants, networks, arguments.pairs)
        found, code = measured(part, arguments.profile, arguments.again)
        print("\n".join(lines(found)) if found else f"{length} letters: no tables", flush=True)
        codes.append(code)
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
