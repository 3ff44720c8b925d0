"""An experiment: its checked settings and its runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from escala.core.errors import InputError, InputErrors
from escala.core.hardware import cpu_quota, quota_clause
from escala.data import CLASSES, LEAKAGE, kind_of
from escala.experiment import expand, folders, scaling
from escala.experiment.checks import Fault, faults_of_names, faults_of_runs
from escala.experiment.runs import (
    DUPLICATE,
    Configuration,
    Reference,
    Run,
    Rung,
    is_compared,
    references_for,
    where_listed,
)
from escala.experiment.schema import validate
from escala.probes import PROBES
from escala.runtime.launch import SRUN, SSH


class Experiment:
    """A valid experiment with every default filled in.

    Parameters
    ----------
    settings : the content of the experiment's file.
    origin : the file, for messages.

    Raises
    ------
    InputError : a key is unknown, a value is not allowed, or settings contradict each other.
    """

    def __init__(self, settings: Mapping[str, Any], origin: str | Path):
        self.origin = str(origin)
        programs = folders.adopt(settings, self.origin)
        settings = validate(settings, self.origin, programs)
        self.name: str = settings["experiment"]
        self.title: str = settings["title"]
        faults: list[Fault] = []
        for name, dataset in settings["datasets"].items():
            try:
                kind_of(dataset).settings.check(dataset)
            except InputError as error:
                where = f"datasets.{name}.{error.where}"
                faults.append((where, error.value, error.reason, error.remedy))
        self._refuse([*faults, *scaling.faults(settings)])
        self.settings = scaling.with_scaling(settings)
        for check in (faults_of_names, faults_of_runs):
            self._refuse(list(check(self.settings)))

    def _refuse(self, faults: Sequence[Fault]) -> None:
        if faults:
            raise InputErrors([self.error(*fault) for fault in faults])

    def error(self, key: str, value: object, reason: str, remedy: str) -> InputError:
        return InputError(f"{self.origin}: {key}", value, reason, remedy)

    @property
    def datasets(self) -> dict[str, dict]:
        return self.settings["datasets"]

    @property
    def sequential(self) -> dict | None:
        """What `repeats` holds if the session decides when it stops, else None."""
        repeats = self.settings["repeats"]
        return repeats if isinstance(repeats, dict) else None

    @cached_property
    def runs(self) -> list[Run]:
        """Every timing run outside ladders, without duplicates, in the order of the file."""
        return expand.timing_runs(self.settings)

    @cached_property
    def duplicates(self) -> list[Run]:
        """The second run of each main reference in each repeat.

        The second run has the settings, split and seeds of the first. The ratios of both give the
        noise floor.
        """
        if not self.settings["noise_floor"]:
            return []
        main = {others[0] for others in self._references.values() if others}
        return [
            replace(run, series=DUPLICATE)
            for run in self.runs
            if is_compared(run) and run.configuration in main
        ]

    @cached_property
    def rungs(self) -> list[Rung]:
        """The rungs of every ladder: neighbours, and the two ends if they are no neighbours."""
        return expand.rungs(self.settings)

    @cached_property
    def rung_runs(self) -> list[Run]:
        """Every run of the ladders' rungs, in the order of execution."""
        return expand.ladder_runs(self.settings)

    @cached_property
    def timed(self) -> list[Run]:
        """Every timing run in the order of execution; runs of ladders come last."""
        return [*self._interleaved, *self.rung_runs]

    @cached_property
    def _interleaved(self) -> list[Run]:
        return expand.interleave([*self.runs, *self.duplicates], self.name, self.tasks)

    def probe_runs(self, probe: str) -> list[Run]:
        """Return the runs of a probe that the whole experiment includes."""
        return self.runs_under(probe) if self.settings[probe]["enabled"] else []

    def runs_under(self, probe: str | None) -> list[Run]:
        """Return the timing runs, or every run of a probe, even of a probe that is not enabled.

        A user can request a run by its path even if the whole experiment leaves the run out.
        """
        return list(self._places[probe])

    def possible_probe_runs(self, probe: str) -> list[Run]:
        """Return every run of a probe, even of a probe that is not enabled."""
        return expand.probe_runs(self.settings, probe)

    @cached_property
    def _places(self) -> dict[str | None, dict[Run, int]]:
        """The timing runs (under None) and the runs of each probe, each run with its index."""
        by_probe = {None: self.timed}
        by_probe |= {probe: self.possible_probe_runs(probe) for probe in PROBES}
        return {
            probe: {run: index for index, run in enumerate(runs)}
            for probe, runs in by_probe.items()
        }

    @cached_property
    def _known(self) -> dict[Run, Run]:
        """Every run, by an equal run that may lack `declared`."""
        return {run: run for runs in self._places.values() for run in runs}

    def run(self, *names: Any, **more: Any) -> Run:
        """Return the run with some names: the fields of `Run` after `experiment`.

        Raises
        ------
        InputError : the experiment holds no such run.
        """
        wanted = Run(self.name, *names, **more)
        run = self._known.get(wanted)
        if run is None:
            reason = f"is not among the runs of {self.origin}"
            remedy = "add its strategy, layout, variant or repeat there"
            if (probe := wanted.instrument) in PROBES:
                any_repeat = replace(wanted, repeat=None)
                of_probe = {replace(known, repeat=None) for known in self._places[probe]}
                timed = {replace(known, repeat=None, series=None) for known in self.timed}
                if any_repeat not in of_probe and replace(any_repeat, instrument=None) in timed:
                    description = PROBES[probe].settings["description"]
                    reason = f"{probe} does not apply to it: {description.rstrip('.')}"
                    remedy = "leave it out"
            raise InputError(wanted.file, f"{wanted.strategy} {wanted.layout}", reason, remedy)
        return run

    @property
    def tasks(self) -> list[tuple[str, str]]:
        """Each dataset with each workload that reads data of its kind."""
        return expand.tasks(self.settings)

    def position(self, run: Run) -> float | None:
        """Return the place of a run in the order of execution, None for a run after all others.

        The place of a timing run is its index in `timed`. The first repeat of a probe comes before
        all timing runs, the last repeat comes after all timing runs, and the other repeats come at
        equal distances between. A single repeat, and the runs of a probe without `repeats`, come
        after all timing runs.
        """
        if run.instrument is None:
            return self._places[None][run]
        last = self.settings[run.instrument].get("repeats", 1) - 1
        if last < 1:
            return None
        before = round((run.repeat - 1) / last * expand.most_repeats(self.settings))
        return bisect_right(self._interleaved, before, key=lambda timed: timed.repeat) - 0.5

    @property
    def references(self) -> list[Reference]:
        """The references of the experiment, the main one first."""
        return expand.references(self.settings)

    def references_of(self, run: Run) -> list[Run]:
        """Return the runs of the same repeat that a run is compared with.

        A duplicate is compared with the first run of its configuration. A side of a ladder's rung
        is compared with the other side. A probe run has references only if its probe is `compared`.
        """
        if not is_compared(run) or (run.instrument and not PROBES[run.instrument].compared):
            return []
        if run.series == DUPLICATE:
            return [replace(run, series=None)]
        if run.series is not None:
            [rung] = [rung for rung in self.rungs if rung.name == run.series]
            others = [side for side in (rung.before, rung.after) if side != run.configuration]
        else:
            others = self._references[run.configuration]
        runs = (self._known.get(replace(run, **other._asdict())) for other in others)
        return [*filter(None, runs)]

    @cached_property
    def _references(self) -> dict[Configuration, list[Configuration]]:
        """The configurations that each configuration is compared with, measured or not."""
        study = self.settings.get("scaling") if self.settings["jobs_by_nodes"] else None
        compared = {}
        for workload in self.settings["workloads"]:
            for configuration in expand.configurations(self.settings, workload):
                others = [other for _, other in references_for(configuration, self.references)]
                # Both sizes of a doubling are measured in one job.
                smaller = scaling.smaller_size(configuration, study) if study else []
                compared[configuration] = list(dict.fromkeys([*others, *smaller]))
        return compared

    def split_seed(self, dataset: str, repeat: int | None) -> int:
        """Return the seed of a repeat's split; probe runs use the first seed."""
        seeds = self.datasets[dataset]["split"]["seeds"]
        return seeds[((repeat or 1) - 1) % len(seeds)]

    def data_folder(self, dataset: str) -> str:
        return f"results/{self.name}/data/{dataset}"

    def split_folder(self, dataset: str, seed: int) -> str:
        return f"{self.data_folder(dataset)}/split{seed}"

    def split_of_repeat(self, dataset: str, repeat: int | None) -> str:
        """Return the folder of the split that a repeat trains on."""
        return self.split_folder(dataset, self.split_seed(dataset, repeat))

    def dataset_files(self) -> list[str]:
        """The descriptions of all splits that repeats train on."""
        return sorted(self.split_folder(*split) + "/dataset.json" for split in self._splits())

    def _splits(self) -> set[tuple[str, int]]:
        """Return dataset and seed of every split that a repeat trains on."""
        return {
            (name, self.split_seed(name, repeat))
            for name in self.datasets
            for repeat in range(1, expand.most_repeats(self.settings) + 1)
        }

    def leakage_files(self) -> list[str]:
        """For each split, the file with the similarity of its test rows to its training rows."""
        return sorted(
            f"{self.split_folder(dataset, seed)}/test_similarity.npy"
            for dataset, seed in self._splits()
            if LEAKAGE in kind_of(self.datasets[dataset]).audits
        )

    def class_files(self) -> list[str]:
        """For each dataset, the file with the counts of its classes before the split."""
        return [
            f"{self.data_folder(name)}/classes.csv"
            for name, settings in self.datasets.items()
            if CLASSES in kind_of(settings).audits
        ]

    def request(self, run: Run) -> dict:
        """Return everything that determines the result of a run, except the data and the code."""
        return expand.request(self.settings, run)

    def settings_of(self, run: Run) -> dict:
        """Return how a run trains: its settings, knobs, link and number of steps."""
        return expand.run_settings(self.settings, run)

    def require_cores(self, run: Run, available: int, in_job: bool = False) -> None:
        """Refuse a run that this machine cannot start, or has too few cores for.

        Parameters
        ----------
        in_job : whether runs are started on the nodes of a job, which are like this machine.

        Raises
        ------
        InputError : the layout needs more nodes than there are, or more cores without
            `oversubscribe`; or SLURM must launch the run.
        """
        by_slurm = "through SLURM: --profile profiles/slurm, or inside a job"
        if (launcher := self.settings["launcher"]) in (SRUN, SSH) and not in_job:
            remedy = f"use auto, or run {by_slurm}"
            reason = "needs a SLURM allocation" if launcher == SRUN else "needs hosts: ESCALA_HOSTS"
            raise self.error("launcher", launcher, reason, remedy)
        if run.layout.nodes > 1 and not in_job:
            reason = "needs more than one node, but this is a single machine"
            remedy = (
                f"use a layout 1xN, or run {by_slurm}, or the lab's --profile profiles/lab, or "
                "name hosts that ssh reaches: ESCALA_HOSTS=n1,n2"
            )
            raise self.error(where_listed(run), run.layout, reason, remedy)
        if run.cores > available and not self.settings["oversubscribe"]:
            quota = quota_clause(cpu_quota())
            reason = f"needs {run.cores} cores, and {available} are available{quota}"
            remedy = (
                "ask for fewer processes, lower cores_per_process of the variant, give Snakemake "
                "more --cores, or set oversubscribe: true"
            )
            raise self.error(where_listed(run), run.layout, reason, remedy)
