"""The runs that calibrate the cost model for an experiment.

These runs are a separate experiment with its own name and session. Like any runs, they are stored,
repeated after a failure, and measured again when their code changes.

| run | gives |
|---|---|
| one process with three numbers of rows in turns, `REPEATS` times | times of steps |
| clocks of one process | when each gradient is known, and the time of the update |
| collectives on `1x2` | collectives and steps with exchange, rates of a core, contention |
| collectives on `2x1` of each network | collectives and steps with exchange between nodes |
| `escala/hook/escala_collectives.py` on each layout of a program | sums, contention |

One process is `single` `1x1`, or the process of another engine
(`escala.experiment.runs.one_process`). For a program, the process has the program's strategy. The
last row is a program too: the workload `NAME-sums-LIBRARY`. The interpreter of the user's program
runs it under the same strategy, and `escala.analysis.cost_model.programs` computes bounds from its
times.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from escala import workloads
from escala.analysis.cost_model.works import (
    Work,
    Works,
    first_of_programs,
    predictable,
    usual_knobs,
    variant_name,
    why_unbounded,
)
from escala.core.hardware import available_cores
from escala.data.settings import derive
from escala.experiment import Experiment, Run
from escala.experiment.runs import NATIVE, NO_LINK, Declared
from escala.experiment.schema import Settings
from escala.probes import PROBES
from escala.probes.collectives import Collectives
from escala.programs.program import HOOK
from escala.runtime.layout import Layout, global_batch
from escala.strategies import STRATEGIES

#: Suffix of a calibration's name, after the name of its experiment.
SUFFIX = "-calibration"
REPEATS = 3
#: Least number of steps of a run, and number of steps with clocks.
STEPS, CLOCK_STEPS = 20, 40
#: Most epochs of a run with a small dataset, or of a program. The first epoch of a program does not
#: count.
MOST_EPOCHS, EPOCHS_OF_PROGRAM = 50, 3
#: Least number of rows of a run, if a row has at most `NUMBERS` numbers. With longer rows, a run
#: has fewer rows.
ROWS, NUMBERS = 8000, 1000
#: Sizes in bytes that are summed, besides the size of the gradients. Latency decides the time of
#: the smallest size. The rate decides the time of the largest size.
SIZES = (2**10, 2**16, 2**20, 2**22, 2**24, 2**26)
_ONE, _ONE_NODE, _TWO_NODES = Layout(1, 1), Layout(1, 2), Layout(2, 1)
#: Settings that turn off what a workload does outside its steps.
_OUTSIDE = dict.fromkeys(("validate", "tensorboard", "save_model"), False)
_OUTSIDE |= {"checkpoint_epochs": None}


class CalibrationExperiment(Works, Experiment):
    """The runs that calibrate the cost model for `base`, as an experiment.

    Raises
    ------
    InputError : the cost model predicts no configuration of `base`.
    """

    def __init__(self, base: Experiment):
        Works.__init__(self, base)
        works = self.different_works
        self.origin, self.name = base.origin, f"{base.name}{SUFFIX}"
        self.title = f"Calibration for {base.name}"
        if works and not any(run.declared.strategy.library for run in predictable(base)):
            self._refuse("none of them has several ranks that the cost model predicts")
        if not works and not self.program_works:
            self._refuse("none of them is predicted by the cost model")
        # Each work has a run of the probe, and all these runs together take the probe's default
        # time. The calibration joins their repeats of collectives. Contention is measured for each
        # work separately, so a work has fewer rounds of blocks: 4 of 30 steps, if there are three
        # works or more.
        schemas = Collectives.settings["properties"]
        defaults = {name: schema["default"] for name, schema in schemas.items()}
        rounds = math.ceil(defaults["rounds"] / max(1, len(works)))
        rounds = max(schemas["rounds"]["minimum"], rounds)
        fraction = rounds / defaults["rounds"]
        collectives = {
            "rounds": rounds,
            "seconds": defaults["seconds"] * fraction,
            "steps": math.ceil(defaults["steps"] * fraction),
        }
        of_base = {key: value for key, value in base.settings.items() if key != "scaling"}
        sums = {_sums_name(work): self._sums(work) for work in self.program_works.values()}
        of_calibration = {
            "experiment": self.name,
            "repeats": REPEATS,
            "workloads": dict(self._workloads()),
            "ladders": {},
            "noise_floor": False,
            "jobs_by_nodes": False,
            "references": [],
            **{name: {"enabled": False} for name in PROBES},
            "clocks": {"enabled": True, "steps": CLOCK_STEPS, "repeats": 1},
            "collectives": defaults | collectives,
        }
        self.settings = Settings(of_base | of_calibration, {**base.settings.knows, **sums})

    def _refuse(self, reason: str) -> None:
        usable = [name for name, strategy in STRATEGIES.items() if strategy.library]
        raise self.base.error(
            "configurations",
            sorted({run.strategy for run in self.base.runs}),
            reason,
            f"add one of {', '.join(usable)} with several ranks and a workload that is trained by "
            "steps, or a program that names {rows}",
        )

    def _workloads(self) -> Iterator[tuple[str, dict]]:
        """Yield the name and the settings of each workload, without work outside its steps."""
        of_base = self.base.settings["workloads"]
        left_out = ("early_stopping", "target_accuracy")
        for name in dict.fromkeys(work.workload for work in self.different_works):
            settings = {key: value for key, value in of_base[name].items() if key not in left_out}
            yield name, settings | _OUTSIDE
        for work in self.program_works.values():
            settings = of_base[work.workload]
            most_epochs = (
                EPOCHS_OF_PROGRAM if "epochs" in self._program(work).placeholders else math.inf
            )
            yield work.workload, settings | {"epochs": min(settings["epochs"], most_epochs)}
            if STRATEGIES[work.strategy].programs:
                training = {key: settings[key] for key in ("batch", "seed")}
                yield _sums_name(work), training | {"epochs": 1}

    def _program(self, work: Work) -> workloads.Program:
        return self.base.settings.knows[work.workload].program()

    def _sums(self, work: Work) -> workloads.Workload:
        """Return the program that times sums for a work."""
        program, library = self._program(work), STRATEGIES[work.strategy].programs
        gradient_bytes, sizes = program.gradient_bytes, SIZES
        if gradient_bytes is not None:
            sizes = [size for size in SIZES if size < gradient_bytes]
            sizes += [gradient_bytes] if gradient_bytes else []
        settings = {
            "command": ["python", "escala_collectives.py", library, *map(str, sizes)],
            "directory": str(HOOK),
            "files": ["escala_collectives.py"],
            "environment": {
                "python": program.interpreter or sys.executable,
                "lines": list(program.lines),
                "variables": list(program.variables),
            },
            "data_kind": self.base.settings.knows[work.workload].data_kind,
            "in_place": True,
            "where": f"{self.origin}: workloads.{_sums_name(work)}",
        }
        return workloads.program(settings, Path.cwd())

    def _run(
        self, work: Work, rows: int, layout: Layout = _ONE, network: str = NATIVE, **others: Any
    ) -> Run:
        """Return a run of a work with a number of rows for each rank.

        Parameters
        ----------
        others : further fields of the run. They replace fields of the work.
        """
        strategy = others.pop("strategy", work.strategy)
        workload = others.pop("workload", work.workload)
        left_out = ("learning_rate", "checkpoint_epochs")
        variant = {
            name: value
            for name, value in self.base.settings["variants"][work.variant].items()
            if name not in left_out
        }
        return Run(
            self.name,
            work.dataset,
            workload,
            strategy,
            layout,
            variant_name(work.variant, rows),
            network if layout.nodes > 1 else NATIVE,
            **{"repeat": None} | others,
            declared=Declared(
                self.settings.knows[workload],
                STRATEGIES[strategy],
                variant | usual_knobs() | {"batch": {"rows": rows, "per": "rank"}},
                self.base.settings["networks"][network] | {"steps": None}
                if layout.nodes > 1
                else NO_LINK,
            ),
        )

    def steps_of(self, work: Work) -> list[Run]:
        """Return the timing runs of one process. In each repeat, all numbers of rows take turns."""
        return [
            self._run(work, rows, repeat=repeat)
            for repeat in range(1, REPEATS + 1)
            for rows in work.rows
        ]

    def clocks_of(self, work: Work) -> Run:
        return self._run(work, work.middle_rows, repeat=1, instrument="clocks")

    def collectives(self, links: bool) -> list[Run]:
        """Return the runs that time collectives.

        Parameters
        ----------
        links : whether there are several nodes; if not, only collectives of one node are timed.
        """
        runs = []
        for run in predictable(self.base):
            layout, work = run.layout, self.work_of(run)
            fields = {"strategy": run.strategy, "instrument": "collectives"}
            if layout.ranks > 1 and (layout.processes > 1 or not links):
                runs.append(self._run(work, work.middle_rows, _ONE_NODE, **fields))
            if layout.nodes > 1 and links:
                runs.append(self._run(work, work.middle_rows, _TWO_NODES, run.network, **fields))
        return list(dict.fromkeys(runs))

    def sums_of(self, work: Work, links: bool) -> list[list[Run]]:
        """Return the runs that time sums of a program, in a list for each layout.

        Parameters
        ----------
        links : as in `collectives`; without links, only layouts for which this machine has cores.
        """
        name = _sums_name(work)
        return [
            [
                self._run(
                    work, work.middle_rows, run.layout, run.network, workload=name, repeat=repeat
                )
                for repeat in range(1, REPEATS + 1)
            ]
            for run in first_of_programs(self.base)
            if (run.dataset, run.workload, run.strategy, run.variant) == work[:4]
            and why_unbounded(run) is None
            and run.layout.ranks > 1
            and (links or (run.layout.nodes == 1 and run.cores <= len(available_cores())))
        ]

    def runs_needed(self, links: bool) -> list[Run]:
        """Return all runs of the calibration; `links` as in `collectives`."""
        works, programs = self.different_works, self.program_works.values()
        return [
            *(run for work in works for run in self.steps_of(work)),
            *map(self.clocks_of, works),
            *self.collectives(links),
            *(run for work in programs for run in self.steps_of(work)),
            *(run for work in programs for group in self.sums_of(work, links) for run in group),
        ]

    @cached_property
    def runs(self) -> list[Run]:
        return [run for run in self._all if run.instrument is None]

    @cached_property
    def _all(self) -> dict[Run, None]:
        return dict.fromkeys([*self.runs_needed(links=False), *self.runs_needed(links=True)])

    def possible_probe_runs(self, probe: str) -> list[Run]:
        return [run for run in self._all if run.instrument == probe]

    def data_folder(self, dataset):
        return self.base.data_folder(dataset)

    def references_of(self, run):
        """Return no reference, because times of steps are compared with no other times."""
        return []

    def settings_of(self, run):
        """Return the settings of a run, with the number of epochs for its number of steps.

        Runs with short rows have more steps, because the speed of a machine changes from second to
        second.
        """
        settings = super().settings_of(run)
        if run.declared.workload.is_program:
            return settings
        size = derive("size", self.datasets[run.dataset])
        least_rows = ROWS * NUMBERS / max(size.numbers or 0, NUMBERS)
        rows = global_batch(settings["training"], run.layout.ranks)
        steps = settings["max_steps"] or max(STEPS, math.ceil(least_rows / rows))
        needed_epochs = steps * rows / (size.rows or math.inf)
        epochs = min(max(math.ceil(needed_epochs), 1), MOST_EPOCHS)
        training = settings["training"] | {"epochs": epochs}
        return settings | {"training": training, "max_steps": math.ceil(steps / epochs)}

    def gradients_file(self, work: Work) -> str:
        """Return the file that describes the gradients of a work."""
        names = "/".join((*work[:3], variant_name(work.variant, work.middle_rows)))
        return f"results/{self.name}/gradients/{names}.json"

    def sources(self, links: bool) -> dict[str, Any]:
        """Return the files of a calibration by their use, in JSON's types.

        Parameters
        ----------
        links : as in `collectives`.
        """
        return {
            "works": {
                work.name: {
                    "gradients": self.gradients_file(work),
                    "steps": [run.file for run in self.steps_of(work)],
                    "clocks": self.clocks_of(work).file,
                }
                for work in self.different_works
            },
            "collectives": [run.file for run in self.collectives(links)],
            "programs": {
                work.name: {
                    "gradient_bytes": self._program(work).gradient_bytes,
                    "steps": [run.file for run in self.steps_of(work)],
                    "sums": [[run.file for run in group] for group in self.sums_of(work, links)],
                }
                for work in self.program_works.values()
            },
        }


def _sums_name(work: Work) -> str:
    return f"{work.workload}-sums-{STRATEGIES[work.strategy].programs}"


def experiment_of(name: str) -> str | None:
    """Return the name of the experiment of a calibration with this name, or None."""
    base = name.removesuffix(SUFFIX)
    return base if base and base != name else None
