"""Estimates of how long the runs of an invocation take."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from escala.core.files import read_json
from escala.core.readable import counted
from escala.data import size_of
from escala.data.size import Size
from escala.experiment import Experiment, Run
from escala.record.schema import read_session
from escala.runtime.layout import Layout, global_batch
from escala.workloads import WORKLOADS

#: Rows per second and core at 1000 letters, measured for `virus-cnn` on one core of a 2-core x86
#: virtual machine (6400 rows in 5.65 s), and the start-up of a run there. Other models need more or
#: fewer operations for each value of a row: one core took about a tenth of the time that this
#: rate gives for `mnist-mlp`, and ten times as much for `resnet34` on pictures of 32 × 32 pixels.
REFERENCE_ROWS_PER_SECOND = 6400 / 5.65
REFERENCE_LENGTH = 1000
REFERENCE_STARTUP_SECONDS = 7.0
#: The same for a fit: letters per second of `kmer-logreg`, and the start-up without TensorFlow.
REFERENCE_FIT_LETTERS_PER_SECOND = 10e6
REFERENCE_FIT_STARTUP_SECONDS = 3.0
#: Where training also stopped early, 56 runs of `tal1-cnn` took a twenty-fifth of their estimate.
UNCERTAIN = "this estimate has been up to 25 times too long and 10 times too short"


def sentence(runs: list[Run], experiment: Callable[[str], Experiment]) -> str:
    """Return a sentence on how long `runs` take, with the source of the estimate.

    The estimate of a run is the median of earlier runs of its configuration. Without these it is
    the median for its dataset and workload, and without these it comes from the reference rate and
    all epochs, as if no run stopped early. The time is unavailable of a program, whose speed nobody
    knows before, and if the number of rows is unknown, as before the first download.
    """
    if not runs:
        return "Estimated training time: none, no run has to be measured."
    earlier, rough, unknown, programs = [], [], 0, 0
    seconds_of = _EarlierRuns(experiment)
    for run in runs:
        measured = seconds_of.median(run)
        if measured is not None:
            earlier.append(measured)
            continue
        if WORKLOADS[run.workload].kind == "command":
            programs += 1
            continue
        guess = _from_reference_rate(run, experiment(run.experiment))
        if guess is None:
            unknown += 1
        else:
            rough.append(guess)
    parts = [
        f"{duration(sum(seconds))} {source}"
        for seconds, source in [
            (earlier, f"for {len(earlier)} from earlier runs of the same experiment"),
            (rough, f"for {len(rough)} from a reference rate; {UNCERTAIN}"),
        ]
        if seconds
    ]
    if unknown:
        parts.append(f"unavailable for {unknown}, whose number of rows is not known yet")
    if programs:
        parts.append(f"unavailable for {programs} of programs that were not measured here before")
    text = f"Estimated training time of {counted(len(runs), 'run')}: {'; '.join(parts)}."
    return " ".join([text, *_untimed(runs, experiment)])


def _untimed(runs: list[Run], experiment: Callable[[str], Experiment]) -> list[str]:
    """Return a sentence on what takes long before the runs of each dataset, at an unknown rate."""
    before = {run.dataset: expected(run, experiment(run.experiment)).untimed for run in runs}
    return [
        f"Not included for {dataset}: {what}, whose time is not known."
        for dataset, what in before.items()
        if what
    ]


def duration(seconds: float) -> str:
    """Return a duration in readable form: `42 s`, `3 min 5 s`, `2 h 4 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class _EarlierRuns:
    """The seconds of earlier runs, of which each file is read once."""

    def __init__(self, experiment: Callable[[str], Experiment]):
        self._experiment = experiment
        self._peers: dict[tuple, dict[tuple, list[Run]]] = {}
        self._medians: dict[tuple, float | None] = {}
        self._seconds: dict[Run, list[float]] = {}

    def median(self, run: Run) -> float | None:
        """Return the median seconds of a run's configuration, or else of its dataset and workload.

        None if neither has an earlier run.
        """
        for names in _names(run):
            key = run.experiment, run.instrument, names
            if key not in self._medians:
                peers = self._grouped(run.experiment, run.instrument)[names]
                seconds = [each for peer in peers for each in self._measured(peer)]
                self._medians[key] = statistics.median(seconds) if seconds else None
            if self._medians[key] is not None:
                return self._medians[key]
        return None

    def _grouped(self, experiment: str, instrument: str | None) -> dict[tuple, list[Run]]:
        if (experiment, instrument) not in self._peers:
            found = defaultdict(list)
            for run in self._experiment(experiment).of_instrument(instrument):
                for names in _names(run):
                    found[names].append(run)
            self._peers[experiment, instrument] = found
        return self._peers[experiment, instrument]

    def _measured(self, run: Run) -> list[float]:
        if run not in self._seconds:
            records = map(read_session, sorted(Path(run.folder).glob("sessions/*.json")))
            self._seconds[run] = [
                record["wall_seconds"] for record in records if record and record["status"] == "ok"
            ]
        return self._seconds[run]


def _names(run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a run's configuration, and those of its dataset and workload."""
    return (run.dataset, run.workload, *run.configuration), (run.dataset, run.workload)


def _from_reference_rate(run: Run, experiment: Experiment) -> float | None:
    size, settings = expected(run, experiment), experiment.settings_of(run)
    length, rows = size.values, size.train_rows
    if length is None:
        return None
    if WORKLOADS[run.workload].kind == "fit":
        if rows is None:
            return None
        return rows * length / REFERENCE_FIT_LETTERS_PER_SECOND + REFERENCE_FIT_STARTUP_SECONDS
    ranks = Layout.parse(run.layout).ranks
    rate = REFERENCE_ROWS_PER_SECOND * REFERENCE_LENGTH / length * ranks
    training, steps = settings["training"], settings["max_steps"]
    if steps:
        most = steps * global_batch(training, ranks)
        rows = most if rows is None else min(most, rows)
    elif rows is not None:
        rows *= training["epochs"]
    return None if rows is None else rows / rate + REFERENCE_STARTUP_SECONDS


def expected(run: Run, experiment: Experiment) -> Size:
    """Return what is known about a run's split, from its arrays or else from the settings."""
    described = _description(run, experiment)
    if described.keys() >= {"rows", "inputs", "targets"}:
        return Size.of(described)
    return size_of(experiment.datasets[run.dataset])


def _description(run: Run, experiment: Experiment) -> dict:
    """Return the `dataset.json` of a run's split, empty if it does not exist yet."""
    seed = experiment.split_seed(run.dataset, run.repeat)
    path = Path(experiment.split_folder(run.dataset, seed)) / "dataset.json"
    return read_json(path) if path.is_file() else {}
