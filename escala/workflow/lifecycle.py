"""The start and the end of a call of Snakemake: estimates, refusals and interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import psutil
from snakemake.exceptions import WorkflowError

from escala.analysis.cost_model.calibrating import SUFFIX
from escala.core import console, environment, interrupts
from escala.core.console import say
from escala.core.environment import call, session
from escala.core.errors import InputError
from escala.core.hardware import available_cores
from escala.core.readable import with_noun
from escala.core.variables import PROFILE
from escala.experiment import Run
from escala.experiment.checks import find_unread
from escala.measure import estimate, lost
from escala.measure.allocated import Allocated
from escala.measure.plan import no_time_file, words_of
from escala.report.steps import list_failures
from escala.runtime import slurm
from escala.workflow import internals
from escala.workflow.experiments import Experiments, refuse, show_errors
from escala.workflow.internals import Workflow
from escala.workflow.plans import Plans

#: The target that reports the existing runs, and measures nothing.
REPORT = "report"
#: The environment variable that tells jobs whether the call has this target.
_REPORTS_ONLY = "ESCALA_REPORTS_ONLY"
_RESULTS = Path("results")


class Lifecycle:
    """What a call of Snakemake does at its start and at its end.

    Parameters
    ----------
    folder : the working directory of the call.
    """

    def __init__(
        self,
        workflow: Workflow,
        experiments: Experiments,
        plans: Plans,
        allocated: Allocated,
        folder: Path,
    ):
        self._workflow, self._experiments, self._plans = workflow, experiments, plans
        self._allocated, self._folder = allocated, folder
        self._submitted = internals.watch_submissions()

    def reports_only(self) -> bool:
        """Return whether this call, or the call of this job, only reports existing runs."""
        if self._workflow.is_main_process:
            only = REPORT in internals.targets(self._workflow)
            os.environ[_REPORTS_ONLY] = str(int(only))
        return os.environ.get(_REPORTS_ONLY) == "1"

    def runs(self) -> list[Run]:
        """Return the runs that this call measures, with all repeats that it may need."""
        return list(self._plans.left.values())

    def cores(self) -> int | None:
        """Return the cores of this machine if jobs run on it, and None on a cluster."""
        return self._workflow.cores if self._workflow.local_exec else None

    def start(self) -> None:
        """Refuse runs that are not possible here, and print the time that the other runs will take.

        From now on SIGTERM and SIGHUP end the jobs. Without this, Snakemake would wait for the
        jobs, or let them run on.

        Raises
        ------
        WorkflowError : a layout that this machine cannot run, results in a folder of somebody else,
            a scheduler that does not answer, or a report of an experiment without runs.
        """
        interrupts.handle(self._end_programs)
        internals.leave_out_failed_jobs(interrupts.was_signalled)
        with show_errors():
            self._require_triggers()
            e, runs = self._experiments.default, self.runs()
            if self.reports_only() and not any(
                Path(self._folder, run.file).exists() for run in e.timed
            ):
                remedy = (
                    f"measure it first: the target `runs`, or `all` for both; or {call('submit')}"
                )
                raise e.error("report", f"results/{e.name}", "has no run yet", remedy)
            if runs:
                self._allocated.require(runs)
            if self._workflow.local_exec:
                cores = min(len(available_cores()), self._workflow.cores)
                for run in runs:
                    experiment = self._experiments.by_name(run.experiment)
                    experiment.require_cores(run, cores, bool(self._allocated.names))
                if runs:
                    slurm.require_host()
            elif self._workflow.is_main_process:
                slurm.require_controller()
                slurm.use_environment()
            if self._workflow.is_main_process and runs:
                self._print_estimate()
            if self._workflow.is_main_process:
                # This refuses folders of somebody else, and folders that another call holds.
                jobs = internals.jobs(self._workflow.dag, needed=True)
                places = {Path(file).parts[:2] for job in jobs for file in job.output}
                for name in sorted(place[1] for place in places if place[0] == _RESULTS.name):
                    environment.claim_results(self._folder / _RESULTS / name)
                    environment.hold_results(self._folder / _RESULTS / name)

    def rules_to_force(self) -> set[str]:
        """Return the rules and files that the call makes again even if they exist.

        A call that ignores some changes is refused first.
        """
        try:
            self._require_triggers()
        except InputError as error:
            refuse(error)
        return internals.targets_to_force(self._workflow)

    def _require_triggers(self) -> None:
        """Refuse a call whose `--rerun-triggers` ignores some changes, before it is planned."""
        if triggers := internals.triggers_left_out(self._workflow):
            profile = os.environ.get(PROFILE)
            named = f" or in {profile}, which the variable {PROFILE} names" if profile else ""
            raise InputError(
                "--rerun-triggers",
                None,
                f"leaves out {', '.join(triggers)}, so results of other settings or of other code "
                "would be taken for those of this experiment",
                f"leave it out, on the command line, in the profile of the call{named}",
            )

    def _end_programs(self) -> str:
        """End the jobs of an interrupted call here; return how many runs are measured."""
        interrupts.end_processes(child.pid for child in psutil.Process().children())
        if not self.runs():
            return ""
        with chdir(self._folder):
            return f"{self._plans.progress()}; {self._allocated.remedy}."

    def end_dry_run(self) -> None:
        """List the runs, and print the time that they take."""
        if not internals.is_end_of_dry_run(self._workflow):
            return
        print(*map(words_of, self.runs()), sep="\n")
        try:
            self._print_estimate()
        except InputError as error:
            print(error, file=sys.stderr)

    def _print_estimate(self) -> None:
        """Print the estimated time of the runs, and settings that no run reads."""
        for name in dict.fromkeys(run.experiment for run in self.runs()):
            e = self._experiments.by_name(name)
            # The variants of a calibration are derived from the variants of its experiment.
            for line in [] if name.endswith(SUFFIX) else find_unread(e):
                say(f"{name}: {line}")
            if e.sequential:
                most = with_noun(e.sequential["at_most"], "repeat")
                print(f"{name}: it stops when the answer is decided, after at most {most}.")
        with chdir(self._folder):
            print(estimate.sentence(self.runs()), flush=True)
            if self.runs() and (text := self._allocated.sentence()):
                print(text)
            if added := self._plans.added:
                print(
                    f"They include {with_noun(len(added), 'run')}, added so that each run has a "
                    "run of its reference in the same repeat and session."
                )
            sys.stdout.flush()

    def fail(self) -> None:
        """Cancel the jobs that still run, and record the runs that were killed with a session.

        If a session ended because the time of its job was over, this call ends with `NO_TIME`, too.
        """
        for name in self._submitted:
            overdue = [] if interrupts.was_signalled() else slurm.overdue_jobs(name)
            for number in overdue:
                say(f"job {number}: DEADLINE: it had not begun after queue_minutes")
            if not slurm.cancel(name):
                remedy = f"Cancel the jobs of this call later: scancel --name={name}"
                say(f"SLURM does not answer. {remedy}")
        with chdir(self._folder):
            # Snakemake puts a table of predictions that could not be made again back, as if it was
            # made from the present inputs. It gets an earlier date, so the next call makes it.
            dag = self._workflow.dag
            for job in internals.jobs(dag, "predict", needed=True):
                table = Path(job.output[0])
                if not dag.finished(job) and table.exists():
                    inputs = filter(Path.exists, map(Path, job.input))
                    before = min((path.stat().st_mtime for path in inputs), default=1) - 1
                    os.utime(table, (before, before))
                    internals.forget(self._workflow, job.output[0])
            for file, plan in self._plans.files.items():
                if interrupts.was_signalled():
                    lost.forget(plan.runs)
                elif lost.find_marks(plan.runs):
                    words = ["-m", "escala.command", "measure", file, "--lost", "--in-call"]
                    subprocess.run([sys.executable, *words])
                self._plans.write_present_table(plan)
            for name in {run.experiment for run in self.runs()}:
                file = no_time_file(name)
                if file.exists() and file.read_text(encoding="utf-8") == session():
                    raise SystemExit(console.NO_TIME)

    def succeed(self) -> None:
        """Print the answer; list the runs that did not end ok, unless a rule has. Name predictions.

        Raises
        ------
        WorkflowError : a requested run did not end ok.
        """
        dag = self._workflow.dag
        rules = {job.rule.name for job in dag.jobs}
        checks = [*internals.jobs(dag, "all", "runs", REPORT)]
        console.show("")
        told = [*checks, *internals.jobs(dag, "study_document")]
        for job in told if console.BRIEF in os.environ else ():
            print(Path(job.log[0]).read_text(encoding="utf-8"), end="", flush=True)
        runs = self._plans.target_runs | self._plans.left
        files = [file for file in runs if Path(file).exists()]
        if files and not checks:
            with show_errors():
                ended_ok = list_failures([*map(Path, files)], "page" in rules)
            sys.stdout.flush()
            if not ended_ok:
                raise WorkflowError("a requested run did not end ok; see above")
        for job in internals.jobs(dag, "predict"):
            print(f"Predictions: {job.output[0]}", flush=True)
