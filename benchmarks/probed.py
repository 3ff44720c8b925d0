"""Matches of the same training with a probe and without it.

The probe, as all else of a run, may use only the cores that the ranks use: the worst case. The two
of a match follow each other, now one first and now the other.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common import turns
from escala.core.arguments import above_zero, whole_number
from escala.core.files import read_json
from escala.core.hardware import available_cores
from escala.experiment import Experiment, read
from escala.experiment.files import ROOT
from escala.record.run import measure
from escala.runtime.layout import Layout

TIME_LIMIT_SECONDS = 3600


def parser(description: str, seconds: float) -> argparse.ArgumentParser:
    """Return the options of a benchmark of a probe that samples every so many seconds."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("split", type=Path, help="folder of a split, with train.npy")
    options.add_argument("--strategy", default="single", help=" ")
    options.add_argument("--layout", type=Layout.parse, default="1x1", help="such as 1x2")
    options.add_argument("--epochs", type=whole_number, default=3, help="of a run")
    options.add_argument("--matches", type=whole_number, default=7, help=" ")
    options.add_argument("--seconds", type=above_zero, default=seconds, help="between samples")
    return options


def matches(
    arguments: argparse.Namespace,
    probe: str,
    watch: Callable[[Path], contextlib.AbstractContextManager] = contextlib.nullcontext,
    **settings: object,
) -> Iterator[tuple[dict, dict]]:
    """Yield a run without the probe and one with it for each match.

    `settings` are further ones of the probe; `watch` is entered with the folder of each run.
    """
    os.sched_setaffinity(0, available_cores()[: arguments.layout.ranks])
    wanted = _request(arguments, probe, {"seconds": arguments.seconds, **settings})
    without = wanted | {"instrument": None, "probe_settings": None, "repeat": 1}
    for number in range(arguments.matches):
        found = {}
        for asked in turns((without, wanted), number):
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder, "run.json")
                with watch(run.parent):
                    outcome = measure(asked, arguments.split, run, TIME_LIMIT_SECONDS)
                if outcome.status != "ok":
                    raise SystemExit(outcome.reason)
                found[asked is wanted] = read_json(run)
        yield found[False], found[True]


def _request(arguments: argparse.Namespace, probe: str, settings: dict) -> dict:
    """Return the request of a probed run: the default experiment's, of another configuration."""
    names, layout = {"strategy": arguments.strategy, "variant": "tuned"}, str(arguments.layout)
    changed = read(ROOT / "config.yaml") | {
        "workloads": {"virus-cnn": {"epochs": arguments.epochs}},
        "configurations": [
            {"strategy": arguments.strategy, "layouts": [layout], "variants": ["tuned"]}
        ],
        "references": [names | {"layout": layout}],
        probe: {"enabled": True, **settings},
    }
    experiment = Experiment(changed, "config.yaml")
    wanted = experiment.request(experiment.probed(probe)[0])
    return wanted | {"training": wanted["training"] | {"epochs": arguments.epochs}}
