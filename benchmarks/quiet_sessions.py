"""Count what sessions say of equal configurations: alone, and beside a neighbour.

    uv run python -m benchmarks.quiet_sessions --sessions 10 --neighbour none --folder /tmp/quiet
    uv run python -m benchmarks.quiet_sessions --sessions 10 --neighbour moments --folder /tmp/quiet
    uv run python -m benchmarks.quiet_sessions --sessions 5 --neighbour core --folder /tmp/quiet

A session is a call of `escala run`: a small perceptron in two configurations that are equal (A/A),
seven repeats, about a minute if nothing is measured again. Every decided verdict is false. With
`--wide` each repeat has a run of two ranks as well, of which only the disturbed runs are counted:
the same neighbour should be found as often beside every configuration. Nothing else may run on the
machine.

none     no neighbour
moments  0.2 core (10 ms in 50 ms) in random moments: periods of 4 s on average, with and without
core     one core all the time

A line for each session and configuration tells the attempts at its runs, and in how many others
worked beside them; the last lines sum over the sessions that the folder holds of each neighbour.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import yaml

from escala.analysis.verdicts import FASTER, NO_VERDICT, SLOWER
from escala.core.files import read_json
from escala.experiment.files import ROOT
from escala.measure.again import WAIT_VARIABLE
from escala.record.disturbance import earlier

NEIGHBOURS = {
    "none": None,
    "moments": """
import random, time
while True:
    end = time.monotonic() + random.expovariate(1 / 4)
    while time.monotonic() < end:
        work = time.monotonic() + 0.01
        while time.monotonic() < work: pass
        time.sleep(0.04)
    time.sleep(random.expovariate(1 / 4))
""",
    "core": "while True: pass",
}
#: Columns of the result of a session.
NAME = ["strategy", "layout", "variant"]


def experiment(repeats: int, wide: bool) -> dict:
    """Return the settings of a session."""
    configurations = [{"strategy": "single", "layouts": ["1x1"], "variants": ["a", "b"]}]
    if wide:
        two = {"strategy": "horovod-mpi", "layouts": ["1x2"], "variants": ["a"]}
        configurations.append(two)
    batch = {"rows": 32, "per": "global"}
    rate = {"value": 0.1, "reference_batch": 32, "rule": "constant"}
    return {
        "experiment": "equal", "title": "Equal configurations", "repeats": repeats,
        "oversubscribe": False, "time_limit_minutes": 10,
        "timeline": {"enabled": False}, "clocks": {"enabled": False},
        "datasets": {
            "digits": {
                "kind": "tabular", "source": {"type": "scikit-learn", "name": "digits"},
                "constant_features": "drop", "split": {"test_fraction": 0.3, "seeds": [4]},
            }
        },
        "workloads": {
            "mlp": {
                "layers": [256, 256], "activation": "relu", "cost": "cross-entropy", "epochs": 10,
                "batch": batch, "learning_rate": rate,
            }
        },
        "variants": {"a": {"cores_per_process": 1}, "b": {"cores_per_process": 1}},
        "configurations": configurations,
        "references": [{"strategy": "single", "layout": "1x1", "variant": "a"}],
    }  # fmt: skip


@contextmanager
def neighbour(code: str | None) -> Iterator[None]:
    """Run a program beside the block that is no child of this process, and so no run's own."""
    if code is None:
        yield
        return
    start = (
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
        "stdout=subprocess.DEVNULL).pid)"
    )
    command = [sys.executable, "-c", start, code]
    started = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    try:
        yield
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)


def measure(folder: Path, settings: dict, wait: int) -> None:
    """Make the call of a session in a folder of its own."""
    folder.mkdir(parents=True)
    (folder / "equal.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [
        sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile", "--directory", folder,
        "--cores", str(len(os.sched_getaffinity(0))), "--configfile", folder / "equal.yaml",
        "--", "results/equal/tables/speedup.csv",
    ]  # fmt: skip
    environment = os.environ | {
        "ESCALA_STORE": "off",
        "PYTHONPATH": str(ROOT),
        WAIT_VARIABLE: str(wait),
    }
    with open(folder / "log", "w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log)
    if done.returncode:
        raise SystemExit(f"{folder}/log: the session failed")


def rows(session: Path) -> Iterator[dict]:
    """Yield what a session says of each configuration."""
    tables = session / "results/equal/tables"
    every = pd.read_csv(tables / "runs.csv")
    judged = pd.read_csv(tables / "speedup.csv").set_index(NAME)
    for name, runs in every.groupby(NAME):
        recorded = [read_json(session / file) for file in runs["file"]]
        attempts = [each for run in recorded for each in (*earlier(run), run["disturbance"])]
        row = judged.loc[name] if name in judged.index else {}
        yield {
            "neighbour": session.name.partition("-")[0], "session": session.name,
            **dict(zip(NAME, name, strict=True)), "attempts": len(attempts),
            "found": sum(each["disturbed"] is True for each in attempts),
            "stay": int(runs["disturbed"].eq(True).sum()),
            "ratio": row.get("ratio"), "verdict": row.get("verdict"),
        }  # fmt: skip


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return the sums over the sessions of each neighbour and configuration."""
    verdicts = {
        "decided": found["verdict"].isin([FASTER, SLOWER]),
        "no verdict": found["verdict"].eq(NO_VERDICT),
    }
    groups = found.assign(**verdicts, sessions=1).groupby(["neighbour", *NAME])
    sums = groups[["sessions", "attempts", "found", "stay", *verdicts]].sum()
    return sums.assign(fraction=(sums["found"] / sums["attempts"]).round(3)).reset_index()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="keeps all sessions")
    parser.add_argument("--neighbour", choices=NEIGHBOURS, default="none")
    parser.add_argument("--sessions", type=int, default=1, help="to add; 0 only sums")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--wide", action="store_true", help="two ranks as well")
    parser.add_argument("--wait", type=int, default=10, help="most seconds to wait for quiet")
    arguments = parser.parse_args()
    settings = experiment(arguments.repeats, arguments.wide)
    for _ in range(arguments.sessions):
        number = len(list(arguments.folder.glob(f"{arguments.neighbour}-*"))) + 1
        folder = arguments.folder / f"{arguments.neighbour}-{number}"
        with neighbour(NEIGHBOURS[arguments.neighbour]):
            measure(folder, settings, arguments.wait)
        print(pd.DataFrame(rows(folder)).to_string(index=False), flush=True)
    sessions = sorted(arguments.folder.glob("*-*/results/equal/tables/speedup.csv"))
    every = pd.DataFrame(row for file in sessions for row in rows(file.parents[3]))
    print(summary(every).to_string(index=False))


if __name__ == "__main__":
    main()
