"""An experiment: its checked settings and its runs."""

from __future__ import annotations

import copy
import itertools
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.hardware import cpu_quota, quota_clause
from escala.data import CLASSES, LEAKAGE, kind_of
from escala.experiment import folders
from escala.experiment.checks import CHECKS
from escala.experiment.order import permuted
from escala.experiment.references import (
    DEFAULT_REFERENCES,
    NATIVE,
    ONE_PROCESS,
    Configuration,
    Reference,
    compared_with,
)
from escala.experiment.runs import AGAIN, Pair, Run, configuration_of, is_compared, where_listed
from escala.experiment.schema import program_schema, validated
from escala.probes import PROBES
from escala.runtime.launch import SRUN
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.strategies.knobs import all_knobs, read_by_run
from escala.workloads import WORKLOADS
from escala.workloads.program_environment import identity

#: Settings of a workload that a variant may override, by how it is trained.
_TRAINING_OF_VARIANT = {
    "steps": ("batch", "learning_rate", "checkpoint_epochs"),
    "fit": (),
    "command": ("batch",),
}
# A layout of one node uses no network, even if the experiment defines a network `native`.
_NO_LINK = {"interface": None, "rate": None, "steps": None}


def _group(run: Run) -> tuple:
    """Return what the timing runs share that take turns in one repeat."""
    ladder = None if run.pair == AGAIN else run.pair
    return run.repeat, run.dataset, run.workload, ladder


def _with_repeats_of_pilot(settings: Any) -> Any:
    """Return unchecked settings; if they lack `repeats` and have a pilot, it gives the repeats."""
    pairs = settings.get("pairs") if isinstance(settings, Mapping) else None
    if not isinstance(pairs, Mapping) or "repeats" in settings:
        return settings
    # If `pilot` is missing too, this is what the check reports.
    return {**settings, "repeats": pairs.get("pilot", 1)}


class Experiment:
    """A validated experiment with every default filled in.

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
        folders.adopt(settings, self.origin)
        self.settings = validated(_with_repeats_of_pilot(settings), self.origin)
        self.name: str = self.settings["experiment"]
        self.title: str = self.settings["title"]
        for check in CHECKS:
            check(self)

    def error(self, key: str, value: object, reason: str, remedy: str) -> InputError:
        return InputError(f"{self.origin}: {key}", value, reason, remedy)

    @property
    def datasets(self) -> dict[str, dict]:
        return self.settings["datasets"]

    def with_repeats(self, repeats: int) -> Experiment:
        """Return this experiment with another number of repeats."""
        other = copy.copy(self)
        other.__dict__ = {
            name: value
            for name, value in vars(self).items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }
        other.settings = self.settings | {"repeats": repeats}
        return other

    @cached_property
    def largest(self) -> Experiment:
        """This experiment with the largest number of repeats that its `pairs` allow."""
        pairs = self.settings.get("pairs")
        return self.with_repeats(pairs["at_most"]) if pairs else self

    def split_seed(self, dataset: str, repeat: int | None) -> int:
        """Return the seed of a repeat's split; probe runs use the first seed."""
        seeds = self.datasets[dataset]["split"]["seeds"]
        return seeds[((repeat or 1) - 1) % len(seeds)]

    @cached_property
    def runs(self) -> list[Run]:
        """Every timing run, in the order of the file.

        A fit draws no random numbers, and its time is not compared, so it is repeated only on other
        splits.
        """
        return [
            run
            for repeat in range(1, self.settings["repeats"] + 1)
            for run in self._cells(repeat=repeat)
            if is_compared(run) or repeat <= len(self.datasets[run.dataset]["split"]["seeds"])
        ]

    @property
    def references(self) -> list[Reference]:
        """The references of the experiment, the main one first.

        Programs that are never run as `single` are compared with their own strategies on one
        process, if the experiment lists no references.
        """
        if listed := self.settings.get("references"):
            return listed
        programs = all(WORKLOADS[name].kind == "command" for name in self.settings["workloads"])
        entries = self.settings["configurations"]
        alone = {each["strategy"] for each in entries if ONE_PROCESS[1] in each["layouts"]}
        if not programs or not alone or ONE_PROCESS[0] in alone:
            return list(DEFAULT_REFERENCES)
        return [{"strategy": name, "layout": ONE_PROCESS[1]} for name in sorted(alone)]

    @cached_property
    def pairs(self) -> list[Pair]:
        """The pairs of every ladder: neighbouring rungs, and the ends if these are others."""
        return [
            pair
            for ladder, rungs in self.settings["ladders"].items()
            for pair in self._pairs(ladder, rungs)
        ]

    def _pairs(self, ladder: str, rungs: list[dict]) -> Iterator[Pair]:
        for number, (before, after) in enumerate(itertools.pairwise(rungs), start=1):
            change = after.get("label") or self._change(before, after)
            name = f"{ladder}-{number}"
            yield Pair(
                name, ladder, number, configuration_of(before), configuration_of(after), change
            )
        if len(rungs) > 2:
            ends = configuration_of(rungs[0]), configuration_of(rungs[-1])
            yield Pair(f"{ladder}-ends", ladder, None, *ends, None)

    def _change(self, before: dict, after: dict) -> str:
        """Return which settings of two rungs differ, each as `key: old → new`."""
        old, new = map(self._of_rung, (before, after))
        changes = (
            f"{key}: {json.dumps(old.get(key))} → {json.dumps(new.get(key))}"
            for key in old | new
            if old.get(key) != new.get(key)
        )
        return ", ".join(changes) or "nothing"

    def _of_rung(self, rung: dict) -> dict:
        strategy, layout, variant, network = configuration_of(rung)
        configuration = {"strategy": strategy, "layout": layout, "network": network}
        return configuration | self.settings["variants"][variant]

    @cached_property
    def paired(self) -> list[Run]:
        """Every run of the ladders' pairs, in the order of execution.

        Each pair is timed in its own series. If all rungs took turns, the product of the
        neighbours' ratios would equal the ratio of the ends by arithmetic. The first side of a pair
        alternates.
        """
        return [
            Run(self.name, dataset, workload, *configuration, repeat, pair=pair.name)
            for dataset, workload in self.tasks
            if WORKLOADS[workload].kind != "fit"
            for pair in self.pairs
            for repeat in range(1, self.settings["repeats"] + 1)
            for configuration in (pair.before, pair.after)[:: 1 if repeat % 2 else -1]
        ]

    @cached_property
    def again(self) -> list[Run]:
        """The second run of each main reference in each repeat; their ratios give the noise floor.

        It has the same settings, split and seeds as the first.
        """
        if not self.settings["noise_floor"]:
            return []
        return [replace(run, pair=AGAIN) for run in self.runs if self._is_main_reference(run)]

    def _is_main_reference(self, run: Run) -> bool:
        return is_compared(run) and any(
            run.configuration in self._references[other][:1]
            for other in self.configurations_of(run.workload)
        )

    @cached_property
    def timed(self) -> list[Run]:
        """Every timing run in the order of execution; runs of ladders come last."""
        return [*self._in_turns, *self.paired]

    @cached_property
    def _in_turns(self) -> list[Run]:
        """The timing runs outside ladders in the order of execution.

        The repeats come one after the other, in each the tasks, and in each of these the runs and
        the duplicates in an order drawn from the names of the experiment and the task.
        """
        groups: dict[tuple, list[Run]] = {}
        for run in [*self.runs, *self.again]:
            groups.setdefault((run.repeat, run.dataset, run.workload), []).append(run)
        places = {task: place for place, task in enumerate(self.tasks)}
        return [
            run
            for repeat, *task in sorted(groups, key=lambda group: (group[0], places[group[1:]]))
            for run in permuted(groups[repeat, *task], repeat, "/".join([self.name, *task]))
        ]

    def turn(self, run: Run) -> dict[str, int] | None:
        """Return the place of a timing run in its repeat, from 1, and the number of runs there.

        The runs of a repeat are those of its dataset and workload, or the two sides of a ladder's
        pair. They are so many, and in this order, if all are measured. None of a probe run.
        """
        return None if run.instrument else self._turns[run]

    @cached_property
    def _turns(self) -> dict[Run, dict[str, int]]:
        found = {}
        for _, group in itertools.groupby(self.timed, key=_group):
            runs = list(group)
            found |= {run: {"place": n, "of": len(runs)} for n, run in enumerate(runs, start=1)}
        return found

    def probed(self, probe: str) -> list[Run]:
        """Return the runs of a probe that the whole experiment includes."""
        return self.of_instrument(probe) if self.settings[probe]["enabled"] else []

    def of_instrument(self, probe: str | None) -> list[Run]:
        """Return the timing runs, or every possible run of a probe.

        A probe with the setting `repeats` has as many runs of each configuration. A probe run that
        the whole experiment leaves out can still be requested by its path.
        """
        return list(self._places[probe])

    @cached_property
    def _places(self) -> dict[str | None, dict[Run, int]]:
        """For the timing runs (None) and each probe, every run and its index."""
        runs = {None: self.timed} | {probe: self._possible(probe) for probe in PROBES}
        return {probe: {run: index for index, run in enumerate(of)} for probe, of in runs.items()}

    def holds(self, run: Run) -> bool:
        """Return whether a run is among those of the experiment."""
        return run in self._places.get(run.instrument, ())

    def _possible(self, probe: str) -> list[Run]:
        repeats = self.settings[probe].get("repeats")
        return [
            run
            for repeat in (range(1, repeats + 1) if repeats else [None])
            for run in self._cells(repeat=repeat, instrument=probe)
            if PROBES[probe].applies(run, STRATEGIES[run.strategy])
        ]

    def position(self, run: Run) -> float | None:
        """Return the place of a run in the order of execution, None for a run after all others.

        That of a timing run is its index in `timed`. The first repeat of a probe comes before all
        repeats of the timing runs, the last after them, and the others at equal distances between.
        A single repeat, and a probe without `repeats`, come after them.
        """
        if run.instrument is None:
            return self._places[None][run]
        last = self.settings[run.instrument].get("repeats", 1) - 1
        if last < 1:
            return None
        before = round((run.repeat - 1) / last * self.settings["repeats"])
        return bisect_right(self._in_turns, before, key=lambda timed: timed.repeat) - 0.5

    def _cells(self, **last: Any) -> Iterator[Run]:
        for dataset, workload in self.tasks:
            for configuration in self.configurations_of(workload):
                yield Run(self.name, dataset, workload, *configuration, **last)

    @property
    def tasks(self) -> list[tuple[str, str]]:
        """Each dataset with each workload that reads data of its kind."""
        return [
            (dataset, workload)
            for dataset, settings in self.datasets.items()
            for workload in self.settings["workloads"]
            if WORKLOADS[workload].data_kind == settings["kind"]
        ]

    @property
    def has_classes(self) -> bool:
        """Return whether any workload is scored as a classification."""
        known = [WORKLOADS[workload] for _, workload in self.tasks]
        return any(each.is_scored and each.scores is None for each in known)

    def configurations_of(self, workload: str) -> list[Configuration]:
        """Return the configuration of every cell that a workload runs in.

        Only layouts of several nodes use a network, and a workload runs under those strategies only
        that can train it.

        A fit is one process, and no knob changes its result. So it runs only as `single` `1x1`,
        under the first variant of that configuration.
        """
        configurations = [
            Configuration(entry["strategy"], layout, variant, network)
            for entry in self.settings["configurations"]
            if WORKLOADS[workload].kind in STRATEGIES[entry["strategy"]].trains_by
            for layout in entry["layouts"]
            for variant in entry.get("variants", self.settings["variants"])
            for network in (
                entry.get("networks", self.settings["networks"])
                if Layout.parse(layout).nodes > 1
                else [NATIVE]
            )
        ]
        if WORKLOADS[workload].kind != "fit":
            return configurations
        return [
            configuration for configuration in configurations if configuration[:2] == ONE_PROCESS
        ][:1]

    def run_files(self) -> list[str]:
        return [run.file for run in self.runs]

    def probed_files(self) -> list[str]:
        return [run.file for probe in PROBES for run in self.probed(probe)]

    def tabulated_files(self) -> list[str]:
        """The files of the probe runs that enter tables."""
        tabulated = (name for name, probe in PROBES.items() if probe.tabulated)
        return [run.file for name in tabulated for run in self.probed(name)]

    def paired_files(self) -> list[str]:
        """The files of the second runs of references, and of the ladders' pairs."""
        return [run.file for run in (*self.again, *self.paired)]

    def dataset_files(self) -> list[str]:
        """The descriptions of all splits that repeats train on."""
        return sorted(self.split_folder(*split) + "/dataset.json" for split in self._splits())

    def _splits(self) -> set[tuple[str, int]]:
        """Return dataset and seed of every split that a repeat trains on."""
        return {
            (dataset, self.split_seed(dataset, repeat))
            for dataset in self.datasets
            for repeat in range(1, self.settings["repeats"] + 1)
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

    def data_folder(self, dataset: str) -> str:
        return f"results/{self.name}/data/{dataset}"

    def split_folder(self, dataset: str, seed: int) -> str:
        return f"{self.data_folder(dataset)}/split{seed}"

    def cores_needed(self, run: Run) -> int:
        """Return the cores that a run needs on each of its nodes."""
        per_process = self.settings["variants"][run.variant]["cores_per_process"]
        return Layout.parse(run.layout).processes * per_process

    def references_of(self, run: Run) -> list[Run]:
        """Return the runs that a run's ratios are formed with, all of its repeat.

        A run without its references has no ratio. A duplicate has the first run of its
        configuration, and each side of a ladder's pair the other side. A probe run has some only if
        its probe is `compared`.
        """
        if not is_compared(run) or (run.instrument and not PROBES[run.instrument].compared):
            return []
        if run.pair == AGAIN:
            return [replace(run, pair=None)]
        if run.pair is not None:
            [pair] = [pair for pair in self.pairs if pair.name == run.pair]
            others = [side for side in (pair.before, pair.after) if side != run.configuration]
        else:
            others = self._references[run.configuration]
        found = (replace(run, **other._asdict()) for other in others)
        return [other for other in found if self.holds(other)]

    def matched_with(self, run: Run) -> list[Run]:
        """Return its references, and the runs of its repeat that have it as a reference."""
        return list(dict.fromkeys([*self.references_of(run), *self._referring.get(run, [])]))

    @cached_property
    def _referring(self) -> dict[Run, list[Run]]:
        """For each run, those that have it as a reference."""
        found: dict[Run, list[Run]] = defaultdict(list)
        for run in itertools.chain.from_iterable(self._places.values()):
            for reference in self.references_of(run):
                found[reference].append(run)
        return found

    @cached_property
    def _references(self) -> dict[Configuration, list[Configuration]]:
        """For each configuration, those it is compared with, whether or not they are measured."""
        return {
            configuration: [other for _, other in compared_with(configuration, self.references)]
            for workload in self.settings["workloads"]
            for configuration in self.configurations_of(workload)
        }

    def run(
        self,
        dataset: str,
        workload: str,
        strategy: str,
        layout: str,
        variant: str,
        network: str,
        repeat: int | None,
        instrument: str | None = None,
        pair: str | None = None,
    ) -> Run:
        """Return the timing run or the probe run with these names.

        Raises
        ------
        InputError : the experiment holds no such run.
        """
        configuration = (strategy, layout, variant, network)
        wanted = Run(self.name, dataset, workload, *configuration, repeat, instrument, pair)
        if not self.holds(wanted):
            raise InputError(
                wanted.file,
                f"{strategy} {layout}",
                f"is not among the runs of {self.origin}",
                "add its strategy, layout, variant or repeat there",
            )
        return wanted

    def request(self, run: Run) -> dict:
        """Return everything that determines a run's result, except its data and the code.

        A probe run takes one epoch, or some steps of it.
        """
        return {
            **asdict(run),
            **self.settings_of(run),
            "launcher": self.settings["launcher"],
            "oversubscribe": self.settings["oversubscribe"],
            "probe_settings": self._probe_settings(run),
            **self._program(run),
        }

    def _program(self, run: Run) -> dict:
        """Return what determines the results of a program, and where it and its data are."""
        declared = WORKLOADS[run.workload]
        if declared.kind != "command":
            return {}
        program, settings = declared.program(), self.datasets[run.dataset]
        of_kind = kind_of(settings).load("settings")
        paths = of_kind.paths(settings) if hasattr(of_kind, "paths") else {}
        where = {name: str(path) for name, path in paths.items()}
        return {
            "program": identity(program),
            "start": {"program": program.as_plan(), "paths": where},
        }

    @property
    def probe_settings(self) -> dict[str, dict]:
        """The settings of every probe, by its name."""
        return {name: self.settings[name] for name in PROBES}

    def _probe_settings(self, run: Run) -> dict | None:
        """Return the settings that determine a run of a probe; None for a timing run.

        Those that are declared with `of_run: false` do not, and neither does `enabled`.
        """
        if run.instrument is None:
            return None
        declared = PROBES[run.instrument].settings["properties"]
        return {
            key: value
            for key, value in self.settings[run.instrument].items()
            if key != "enabled" and declared[key].get("of_run", True)
        }

    def settings_of(self, run: Run) -> dict:
        """Return how a run trains: its settings, knobs, link and number of steps."""
        kind = WORKLOADS[run.workload].kind
        # The content of the folder determines the run, not its path; so does that of a program.
        apart = {folders.PATH, *(program_schema()["properties"] if kind == "command" else ())}
        training = {
            key: value
            for key, value in self.settings["workloads"][run.workload].items()
            if key not in apart
        }
        variant = self.settings["variants"][run.variant]
        of_variant = {key: variant[key] for key in _TRAINING_OF_VARIANT[kind] if key in variant}
        training = training | of_variant
        several = Layout.parse(run.layout).nodes > 1
        link = self.settings["networks"][run.network] if several else _NO_LINK
        steps = link["steps"]
        if run.instrument:
            steps = PROBES[run.instrument].steps(self._probe_settings(run)) or steps
        if (run.instrument or steps) and kind != "command":
            training = training | {"epochs": 1, "validate": False, "save_model": False}
            training["checkpoint_epochs"] = None
            for name in ("target_accuracy", "early_stopping"):
                training.pop(name, None)
        return {
            "training": training,
            "knobs": read_by_run(
                {k: v for k, v in variant.items() if k not in _TRAINING_OF_VARIANT["steps"]},
                run.strategy,
                run.workload,
            ),
            "link": {key: link[key] for key in ("interface", "rate")},
            "max_steps": None if kind == "command" else steps,
        }

    def idle_probes(self) -> list[str]:
        """Return the probes that are asked for and that capture no run of this experiment."""
        return [
            name
            for name, probe in PROBES.items()
            # One that is on by default is not asked for.
            if not probe.settings["properties"]["enabled"]["default"]
            and self.settings[name]["enabled"]
            and not self._possible(name)
        ]

    def unread_knobs(self) -> list[tuple[str, str]]:
        """Return each variant and knob that is set although no run of the variant reads it."""
        read: dict[str, set[str]] = {}
        known = all_knobs()
        for run in self.timed:
            knobs = self.settings_of(run)["knobs"]
            read.setdefault(run.variant, set()).update(knobs)
        return [
            (name, knob)
            for name in read
            for knob, value in self.settings["variants"][name].items()
            if knob in known and value != known[knob].default and knob not in read[name]
        ]

    def require_cores(self, run: Run, available: int) -> None:
        """Refuse a run that this machine cannot start, or lacks cores for without `oversubscribe`.

        Raises
        ------
        InputError : its layout needs more nodes or cores than the machine has, or its launcher is
            SLURM.
        """
        key = where_listed(run)
        if self.settings["launcher"] == SRUN:
            raise self.error(
                "launcher",
                SRUN,
                "needs a SLURM allocation",
                "use auto, or run through SLURM: --profile profiles/slurm",
            )
        if Layout.parse(run.layout).nodes > 1:
            raise self.error(
                key,
                run.layout,
                "needs more than one node, but this is a single machine",
                "use a layout 1xN, or run through SLURM: --profile profiles/slurm, or the lab's "
                "--profile profiles/lab",
            )
        needed = self.cores_needed(run)
        if needed > available and not self.settings["oversubscribe"]:
            raise self.error(
                key,
                run.layout,
                f"needs {needed} cores, and {available} are available{quota_clause(cpu_quota())}",
                "ask for fewer processes, lower cores_per_process of the variant, give Snakemake "
                "more --cores, or set oversubscribe: true",
            )
