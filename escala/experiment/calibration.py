"""Derive the experiment whose runs calibrate the cost model for another experiment.

Its name is that of the other one and `SUFFIX`. Its runs are like any others: stored, repeated
after a failure, and measured again when their code changes. None of them is a run of the other
experiment.

| run | gives |
|---|---|
| one process with three numbers of rows, `REPEATS` times in turns | times of steps |
| clocks of one process | when each gradient is known, and the time of the update |
| collectives on `1x2` | collectives and steps with exchange, rates of a core, contention |
| collectives on `2x1` of each network | collectives and steps with exchange between nodes |

One process is `single` `1x1`, or the same of another engine (`references.one_process`). Runs of
programs are in `escala.experiment.program_calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from escala.data import size_of
from escala.experiment import program_calibration as programs
from escala.experiment.matrix import Experiment
from escala.experiment.predictable import (
    APPLIED,
    ON_PURPOSE,
    knobs_of_one_process,
    predictable,
    rows_of_part,
)
from escala.experiment.references import NATIVE, ONE_PROCESS, one_process
from escala.experiment.runs import Run
from escala.experiment.works import Work, calibrated_rows, shared_settings, variant_name
from escala.probes import PROBES
from escala.runtime.layout import global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import all_knobs

SUFFIX = "-calibration"
REPEATS = 3
#: Steps that a calibrating run takes at least, those with clocks, and the most epochs of a small
#: dataset.
STEPS, CLOCK_STEPS, MOST_EPOCHS = 20, 40, 50
#: Least rows of a run, if a row has at most this number of numbers; longer rows are fewer.
ROWS, NUMBERS = 8000, 1000
#: Fraction of the expected training rows that a split surely has.
_SURE = 0.9
ONE_NODE, TWO_NODES = "1x2", "2x1"
_OFF = {"enabled": False}


class Works:
    """The work of one process in the configurations of `base` that are predicted."""

    def __init__(self, base: Experiment):
        self.base = base

    @cached_property
    def works(self) -> dict[tuple[str, str, str, str], Work]:
        """The work of each dataset, workload, strategy of one process and variant."""
        rows: dict[tuple, set[int]] = {}
        first: dict[tuple, str] = {}
        key_by_names: dict[tuple[str, str, str, str], tuple] = {}
        for run in predictable(self.base):
            names = self._names_of_work(run)
            key = (*names[:3], repr(knobs_of_one_process(run)))
            key_by_names[names] = key
            first.setdefault(key, run.variant)
            rows.setdefault(key, set()).add(rows_of_part(self.base, run))
        most = {key: size_of(self.base.datasets[key[0]]).train_rows for key in rows}
        return {
            names: Work(
                *names[:3],
                first[key],
                calibrated_rows(rows[key], None if most[key] is None else _SURE * most[key]),
            )
            for names, key in key_by_names.items()
        }

    @staticmethod
    def _names_of_work(run: Run) -> tuple[str, str, str, str]:
        return run.dataset, run.workload, one_process(run.strategy)[0], run.variant

    def work_of(self, run: Run) -> Work:
        """Return the work of a configuration that the cost model predicts."""
        return self.works[self._names_of_work(run)]

    @property
    def different_works(self) -> list[Work]:
        return list(dict.fromkeys(self.works.values()))

    @cached_property
    def program_works(self) -> dict[tuple, Work]:
        """The work of each dataset, program, strategy and variant that has bounds."""
        return programs.works(self.base)


class Calibration(Works, Experiment):
    """The experiment whose runs calibrate the cost model for `base`.

    Raises
    ------
    InputError : the cost model predicts no configuration of `base`.
    """

    def __init__(self, base: Experiment):
        Works.__init__(self, base)
        Experiment.__init__(self, self._derived(), base.origin)

    def data_folder(self, dataset):
        return self.base.data_folder(dataset)

    def references_of(self, run):
        """Return nothing: times of steps are used as they are."""
        return []

    def settings_of(self, run):
        """Return the settings of a run; a small dataset has as many epochs as its steps take.

        Short steps are many, because the speed of the machine changes from second to second.
        """
        settings = super().settings_of(run)
        if run.declared.workload.kind == "command":
            return settings
        size = size_of(self.datasets[run.dataset])
        numbers = sum(math.prod(each["shape"]) for each in size.inputs or ())
        least_rows = ROWS * NUMBERS / max(numbers, NUMBERS)
        rows = global_batch(settings["training"], run.layout.ranks)
        steps = settings["max_steps"] or max(STEPS, math.ceil(least_rows / rows))
        needed_epochs = steps * rows / (size.train_rows or math.inf)
        epochs = min(max(math.ceil(needed_epochs), 1), MOST_EPOCHS)
        training = settings["training"] | {"epochs": epochs}
        return settings | {"training": training, "max_steps": math.ceil(steps / epochs)}

    def _derived(self) -> dict:
        settings, works = self.base.settings, self.different_works
        program_works = list(self.program_works.values())
        runs = predictable(self.base)
        shared = [run.strategy for run in runs if run.declared.strategy.library]
        if not works and not program_works:
            self._refuse("none of them is predicted by the cost model")
        if works and not shared:
            self._refuse("none of them has several ranks that the cost model predicts")
        variants = self._variants([*works, *program_works])
        configurations = [
            *(
                _configuration(name, ONE_PROCESS[1], *sorted(self._variants(found)))
                for name, found in self._works_by_strategy().items()
            ),
            *(self._rank_settings(strategy) for strategy in dict.fromkeys(shared)),
            *map(self._program_settings, program_works),
        ]
        configurations = _merged(configurations)
        datasets = {work.dataset for work in (*works, *program_works)}
        first = configurations[0]
        return {key: each for key, each in settings.items() if key != "scaling"} | {
            "experiment": f"{self.base.name}{SUFFIX}",
            "title": f"Calibration for {self.base.name}",
            "repeats": REPEATS,
            "datasets": {
                name: each for name, each in settings["datasets"].items() if name in datasets
            },
            "workloads": self._workloads(works, program_works),
            "variants": variants,
            "networks": {
                name: each | {"steps": None} for name, each in settings["networks"].items()
            },
            "configurations": configurations,
            "references": [{"strategy": first["strategy"], "layout": first["layouts"][0]}],
            "ladders": {},
            **dict.fromkeys(PROBES, _OFF),
            "clocks": {"enabled": True, "steps": CLOCK_STEPS, "repeats": 1},
            "collectives": _OFF | shared_settings(max(1, len(works))),
        }

    def _refuse(self, reason: str) -> None:
        usable = [name for name, strategy in STRATEGIES.items() if strategy.library]
        raise self.base.error(
            "configurations",
            sorted({run.strategy for run in self.base.runs}),
            reason,
            f"add one of {', '.join(usable)} with several ranks and a workload that is trained by "
            "steps, or a program that names {rows}",
        )

    def _variants(self, works: Iterable[Work]) -> dict[str, dict]:
        known = all_knobs()
        usual = {name: known[name].default for name in (*APPLIED, *ON_PURPOSE)}
        left_out = ("learning_rate", "checkpoint_epochs")
        return {
            variant_name(work.variant, rows): {
                name: value
                for name, value in self.base.settings["variants"][work.variant].items()
                if name not in left_out
            }
            | usual
            | {"batch": {"rows": rows, "per": "rank"}}
            for work in works
            for rows in work.rows
        }

    def _workloads(self, works: Iterable[Work], program_works: Iterable[Work]) -> dict[str, dict]:
        known = self.base.settings["workloads"]
        found = {work.workload: _untested(known[work.workload]) for work in works}
        for work in program_works:
            program = self.base.settings.knows[work.workload]
            found[work.workload] = programs.one_process(program, known[work.workload])
            if STRATEGIES[work.strategy].programs:
                found[programs.sums_name(work)] = programs.sums_program(work, program)
        return found

    def _rank_settings(self, strategy: str) -> dict:
        """Return the configurations of a strategy in which collectives may be timed."""
        runs = [run for run in predictable(self.base) if run.strategy == strategy]
        several = any(run.layout.nodes > 1 for run in runs)
        works = self._works_by_strategy()[one_process(strategy)[0]]
        variants = sorted({work.middle_variant for work in works})
        found = _configuration(strategy, ONE_NODE, *variants)
        return found | {"layouts": [ONE_NODE, *[TWO_NODES] * several]}

    def _works_by_strategy(self) -> dict[str, list[Work]]:
        """Return the works that steps train by the strategy of their one process."""
        found: dict[str, list[Work]] = {}
        for work in self.different_works:
            found.setdefault(work.strategy, []).append(work)
        return found

    def _program_settings(self, work: Work) -> dict:
        """Return the configurations of one process, and of the layouts on which sums are timed."""
        layouts = [layout for layout, _ in programs.sums_layouts(self.base, work, links=True)]
        variants = [variant_name(work.variant, rows) for rows in work.rows]
        found = _configuration(work.strategy, ONE_PROCESS[1], *variants)
        return found | {"layouts": list(dict.fromkeys([ONE_PROCESS[1], *layouts]))}

    def program_runs(self, links: bool) -> dict[str, dict[str, list[list[Run]]]]:
        """Return the runs that calibrate each program: of its steps, and of the sums by layout."""
        return {
            work.name: {
                "steps": [work.steps_runs(self.run, REPEATS)],
                "sums": programs.sums_runs(
                    self.run,
                    work,
                    programs.sums_layouts(self.base, work, links),
                    REPEATS,
                ),
            }
            for work in self.program_works.values()
        }

    def clocks_of(self, work: Work) -> Run:
        return self.run(*work[:3], ONE_PROCESS[1], work.middle_variant, NATIVE, 1, "clocks")

    def collectives(self, links: bool) -> list[Run]:
        """Return the runs that time collectives.

        Parameters
        ----------
        links : whether there are several nodes; without them, only collectives of one node.
        """
        found = {}
        for run in predictable(self.base):
            layout = run.layout
            variant = self.work_of(run).middle_variant
            names = (run.dataset, run.workload, run.strategy)
            if layout.ranks > 1 and (layout.processes > 1 or not links):
                found[self.run(*names, ONE_NODE, variant, NATIVE, None, "collectives")] = None
            if layout.nodes > 1 and links:
                found[self.run(*names, TWO_NODES, variant, run.network, None, "collectives")] = None
        return list(found)

    def runs_needed(self, links: bool) -> list[Run]:
        """Return all runs of the calibration; `links` as in `collectives`."""
        works = self.different_works
        return [
            *(run for work in works for run in work.steps_runs(self.run, REPEATS)),
            *map(self.clocks_of, works),
            *self.collectives(links),
            *(
                run
                for parts in self.program_runs(links).values()
                for groups in parts.values()
                for group in groups
                for run in group
            ),
        ]

    def gradients_file(self, work: Work) -> str:
        """Return the file that describes the gradients of a work."""
        names = "/".join((*work[:3], work.middle_variant))
        return f"results/{self.name}/gradients/{names}.json"

    def sources(self, links: bool) -> dict:
        """Return the files of a calibration by what they give, in JSON's types.

        Parameters
        ----------
        links : as in `collectives`.
        """
        gradient_bytes = {
            work.name: self.base.settings.knows[work.workload].program().gradient_bytes
            for work in self.program_works.values()
        }
        return {
            "works": {
                work.name: {
                    "gradients": self.gradients_file(work),
                    "steps": [run.file for run in work.steps_runs(self.run, REPEATS)],
                    "clocks": self.clocks_of(work).file,
                }
                for work in self.different_works
            },
            "collectives": [run.file for run in self.collectives(links)],
            "programs": {
                name: {"gradient_bytes": gradient_bytes[name]}
                | {
                    part: [[run.file for run in group] for group in groups]
                    for part, groups in parts.items()
                }
                for name, parts in self.program_runs(links).items()
            },
        }


def _configuration(strategy: str, layout: str, *variants: str) -> dict:
    return {"strategy": strategy, "layouts": [layout], "variants": list(variants)}


def _merged(configurations: Iterable[Mapping]) -> list[dict]:
    """Return configurations with one entry for each strategy, of all its layouts and variants."""
    found: dict[str, dict[str, dict]] = {}
    for entry in configurations:
        merged = found.setdefault(entry["strategy"], {"layouts": {}, "variants": {}})
        for key, names in merged.items():
            names |= dict.fromkeys(entry[key])
    return [
        {"strategy": strategy, **{key: list(names) for key, names in parts.items()}}
        for strategy, parts in found.items()
    ]


def _untested(workload: Mapping[str, Any]) -> dict:
    """Return the settings of a workload without what happens outside its steps."""
    off = {"validate": False, "tensorboard": False, "save_model": False, "checkpoint_epochs": None}
    left_out = ("early_stopping", "target_accuracy")
    return {name: value for name, value in workload.items() if name not in left_out} | off


def adopted(name: str) -> str | None:
    """Return the name of the experiment that a calibration of this name belongs to, or None."""
    base = name.removesuffix(SUFFIX)
    return base if base and base != name else None
