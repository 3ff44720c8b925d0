"""The start and the end of a call: estimates, refusals, interrupts, and runs that were lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import chdir
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

from escala.cache import store
from escala.core import exits, interrupts, own_results
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.hardware import available_cores, available_memory
from escala.core.progress import say
from escala.core.readable import counted
from escala.experiment import Experiment, Run
from escala.experiment.calibration import SUFFIX
from escala.experiment.unused import idle_probes, unread_knobs
from escala.record import again, estimate, estimate_memory
from escala.runtime import allocation, slurm
from escala.workflow import internals, matches, order
from escala.workflow.allocated import Allocated
from escala.workflow.forming import Forming
from escala.workflow.internals import Job, Workflow
from escala.workflow.study import Study, shown

#: Seconds that a job which SLURM ends takes to remove its files.
ENDING_SECONDS = 5.0
#: The target that reports the runs that are there, and measures none.
REPORT = "report"
#: Environment variable by which jobs know that the call has this target.
_REPORTS_ONLY = "ESCALA_REPORTS_ONLY"
_RESULTS, _SLURM_LOGS = Path("results"), Path(".snakemake/slurm_logs")


class Session:
    """A call of Snakemake.

    Parameters
    ----------
    folder : its working directory.
    """

    def __init__(self, workflow: Workflow, study: Study, project: Path, folder: Path):
        self._workflow, self._study = workflow, study
        self._project, self._folder = project, folder
        self.allocated = Allocated(workflow)
        self._late: set[Run] = set()
        self._graph = matches.Graph(study, self.reports_only, self.allocated.is_inside)
        self._forming = Forming(study, self._graph, folder)
        self._ending = cache(self._ending)
        if workflow.is_main_process:
            self._graph.register()
            internals.on_selection(self._startable)
            internals.ask_at_one_interval()

    def reports_only(self) -> bool:
        """Return whether the call, or the one that started this job, only reports what is there."""
        if self._workflow.is_main_process:
            only = REPORT in internals.targets(self._workflow)
            os.environ[_REPORTS_ONLY] = str(int(only))
        return os.environ.get(_REPORTS_ONLY) == "1"

    def there(self, files: Iterable[str]) -> list[str]:
        """Return files, without those that a call which only reports lacks."""
        files = list(files)
        return [each for each in files if Path(each).exists()] if self.reports_only() else files

    def runs(self, needed: bool = True) -> list[Run]:
        """Return the training runs of this call, or all that are in its graph."""
        dag = self._workflow.dag
        return [run for run, job in self._graph.jobs(dag) if dag.needrun(job) or not needed]

    def _pilots(self) -> list[Experiment]:
        """Return the experiments of this call whose number of repeats is not known yet."""
        jobs = internals.jobs(self._workflow.dag, "pilot", needed=True)
        return [self._study.named(job.wildcards.experiment) for job in jobs]

    def runs_to_estimate(self) -> list[Run]:
        """Return the runs of this call, with all repeats that a pilot may add."""
        following = (
            run
            for e in self._pilots()
            for run in e.largest.timed
            if run.repeat > e.settings["repeats"]
        )
        return [*self.runs(), *following]

    def cores(self) -> int | None:
        """Return the cores of this machine if jobs run on it, and None on a cluster."""
        return self._workflow.cores if self._workflow.local_exec else None

    def runs_in_order(self) -> list[Run] | None:
        """Return the runs to estimate if they follow each other in this process, else None."""
        alone = self._workflow.local_exec and self._workflow.is_main_process
        return self.runs_to_estimate() if alone else None

    def late(self, run: Run) -> str | None:
        """Return why a run is not begun: its repeat would not end within the job; None if it is.

        A repeat is begun only if all of it fits, and a begun one goes on.
        """
        if not self.allocated.is_inside():
            return None
        dag = self._workflow.dag
        jobs = [(each, job) for each, job in self._graph.jobs(dag) if dag.needrun(job)]
        together = {each: job for each, job in jobs if again.in_same_repeat(each, run)}
        if any(map(dag.finished, together.values())):
            return None
        with chdir(self._folder):
            before = estimate.medians(together)
            has_measured = any(dag.finished(job) for _, job in jobs)
            why = self.allocated.late([before(each) for each in together], has_measured)
        if why is None:
            return None
        self._late.add(run)
        return f"{why}: {self._progress()}"

    def _progress(self) -> str:
        """Return how many runs of this call are measured, and what to do about the others."""
        dag = self._workflow.dag
        jobs = [job for _, job in self._graph.jobs(dag)]
        done = sum(not dag.needrun(job) or dag.finished(job) for job in jobs)
        return f"{done} of {len(jobs)} runs measured; {self.allocated.remedy}"

    def start(self) -> None:
        """Refuse runs that are not possible here, and print what the others will take.

        From now on jobs end on SIGTERM and SIGHUP. Snakemake waits for them, or lets them run on.

        Raises
        ------
        WorkflowError : a layout that this machine cannot run, runs that do not fit on the disk,
            results in a folder of somebody else, a scheduler that does not answer, or a report of
            an experiment without runs.
        """
        interrupts.handle(self._end_programs)
        internals.tell_no_job(lambda: interrupts.received() or bool(self._late))
        with shown():
            if self.reports_only():
                self._require_runs()
            if runs := self.runs():
                self.allocated.require(runs)
            if self._workflow.local_exec:
                self._refuse_impossible_layouts()
            elif internals.submitted_name(self._workflow):
                self._prepare_submissions()
            if self._workflow.is_main_process and runs:
                self._print_estimate()
                with chdir(self._folder):
                    estimate.require_disk(self._print_disk(), _RESULTS)
            if self._workflow.is_main_process:
                self._claim_results()

    def _claim_results(self) -> None:
        """Mark and hold the folders of results that this call writes to, until it ends.

        One of somebody else, and one that another call holds, are refused.
        """
        jobs = internals.jobs(self._workflow.dag, needed=True)
        places = {Path(file).parts[:2] for job in jobs for file in job.output}
        for name in sorted(each[1] for each in places if each[0] == _RESULTS.name):
            own_results.claim(self._folder / _RESULTS / name)
            own_results.hold(self._folder / _RESULTS / name)

    def _require_runs(self) -> None:
        """Refuse to report an experiment of which no run is there."""
        e = self._study.default
        if not any(Path(self._folder, run.file).exists() for run in e.largest.timed):
            remedy = f"measure it first: the target `runs`, or `all` for both; or {call('submit')}"
            raise e.error("report", f"results/{e.name}", "has no run yet", remedy)

    def _prepare_submissions(self) -> None:
        if any(not job.is_local for job in internals.jobs(self._workflow.dag, needed=True)):
            slurm.require_controller()
        slurm.use_environment()
        internals.submit_in_order(self._workflow)

    def _startable(self, ready: Collection[Job], running: Collection[Job]) -> list[Job]:
        """Return the jobs that may start, on a cluster those of one repeat."""
        if not (self._workflow.local_exec and running):  # A run has the machine to itself.
            self._forming.update(self._workflow.dag)
        if self._workflow.local_exec:
            return list(ready)
        for job in self._lost():
            self._ending(job)
        return order.startable(self._study, ready, running)

    def _lost(self) -> list[Job]:
        failed = internals.failed_jobs(self._workflow)
        lost = [job for job in failed if job.rule.name in matches.RULES]
        if self._late:
            lost = [job for job in lost if self._study.run(job.wildcards) not in self._late]
        return lost

    def _ending(self, job: Job) -> tuple[str, str]:
        """Return how a job ended: asked once, because SLURM forgets it after some minutes."""
        return slurm.ending(job.rule.name, list(job.wildcards), self._folder / _SLURM_LOGS)

    def _end_programs(self) -> None:
        """End the programs of an interrupted call, submit nothing more, and say how far it came."""
        interrupts.end(internals.local_processes())
        if self.runs():
            print(f"{self._progress()}.", flush=True)

        def end_waiting() -> None:
            internals.submit_no_more(self._workflow)
            while True:
                slurm.end_waiting()
                time.sleep(0.2)

        if internals.submitted_name(self._workflow):
            # A thread: what was interrupted may hold a lock that this needs.
            threading.Thread(target=end_waiting, daemon=True).start()

    def end_dry_run(self) -> None:
        """Print what the runs will take, with the memory of their models, which it builds."""
        if not internals.end_dry_run(self._workflow):
            return
        try:
            self._print_estimate()
            if self.runs():
                with chdir(self._folder):
                    self._print_disk(self._print_memory())
        except InputError as error:
            print(error, file=sys.stderr)

    def _print_estimate(self) -> None:
        """Print the estimated time of the runs, and settings that no run reads."""
        for name in dict.fromkeys(run.experiment for run in self.runs()):
            e = self._study.named(name)
            # The variants of a calibration are made from those of its experiment.
            unread = [] if name.endswith(SUFFIX) else unread_knobs(e)
            lines = [
                *(
                    f"variants.{v}.{k} is set, and no run of the variant reads it."
                    for v, k in unread
                ),
                *(
                    f"{p} is enabled, and applies to no run of the experiment."
                    for p in idle_probes(e)
                ),
            ]
            print(*(f"{name}: {line}\n" for line in lines), sep="", end="")
        for e in self._pilots():
            most = e.settings["pilot"]["at_most"]
            print(f"{e.name}: a pilot sets the number of repeats. The estimates are for {most}.")
        with chdir(self._folder):
            print(estimate.sentence(self.runs_to_estimate(), self._study.named), flush=True)
            if self.runs() and (text := self.allocated.sentence()):
                print(text)
            if added := self._graph.added:
                print(
                    f"They include {counted(len(added), 'run')}, added so that each run has its "
                    "match: a run of its reference in the same repeat and session."
                )
            if again.times() and self.runs():
                print(
                    "A repeat that other work disturbs is measured again, at most "
                    f"{counted(again.times(), 'time')}. The estimate does not include this."
                )
            if (folder := store.location()) and folder.exists():
                print(f"Runs in the store {folder} take no time.")
            sys.stdout.flush()

    def _print_disk(self, footprints: dict | None = None) -> estimate.Disk:
        needed = estimate.disk(self.runs_to_estimate(), self._study.named, footprints)
        print(estimate.disk_sentence(needed, _RESULTS), flush=True)
        return needed

    def _print_memory(self) -> dict:
        """Build the models of the runs, print their memory, and return their footprints."""
        named = self._study.named
        found = estimate_memory.memory(self.runs(), named, self._project)
        available = None if internals.jobs_on_cluster(self._workflow) else available_memory()
        if text := estimate_memory.sentence(found, named, available):
            print(text, flush=True)
        return found.footprints

    def _refuse_impossible_layouts(self) -> None:
        cores, steps = min(len(available_cores()), self._workflow.cores), self.allocated.names
        for run in self.runs():
            self._study.named(run.experiment).require_cores(run, cores, bool(steps))
            allocation.require_host()

    def fail(self) -> None:
        """Cancel the jobs that are left, and record the runs that ended without a result."""
        name = internals.submitted_name(self._workflow)
        if name and not slurm.cancel(name):
            say(f"SLURM does not answer. Cancel the jobs of this call later: scancel --name={name}")
        with chdir(self._folder):
            self._outdate_predictions()
            lost = self._lost()
            for job in lost:
                self._record_lost(job)
            if lost and internals.jobs_on_cluster(self._workflow):
                # A job that SLURM ends has a Snakemake of its own, which removes its output late.
                time.sleep(ENDING_SECONDS)
                for job in lost:
                    self._record_lost(job)
        if self._late and not lost:
            print(f"{self._progress()}.", flush=True)
            raise SystemExit(exits.NO_TIME)

    def _outdate_predictions(self) -> None:
        """Let a next call make the tables of predictions that this one could not make again.

        Snakemake puts the earlier table back as if it was made from the present inputs.
        """
        dag = self._workflow.dag
        for job in internals.jobs(dag, "predict", needed=True):
            table = Path(job.output[0])
            if not dag.finished(job) and table.exists():
                inputs = filter(Path.exists, map(Path, job.input))
                before = min(path.stat().st_mtime for path in inputs) - 1
                os.utime(table, (before, before))
                internals.forget(self._workflow, job.output[0])

    def _record_lost(self, job: Job) -> None:
        """Record a run whose job ended without a result, unless this job has lost a node of it."""
        run = self._study.run(job.wildcards)
        if Path(run.file).exists() or self.allocated.has_lost_node_of(run):
            return
        e = self._study.named(run.experiment)
        status, reason = self._ending(job)
        call = ["--request", "@/dev/stdin", "--data", job.params.data, "--output", run.file]
        call += ["--turn", json.dumps({"place": e.largest.turn(run)})]
        call += ["--lost", status, f"{reason}; see {job.log[0]}"]
        script = [sys.executable, "-m", "scripts.train", *call]
        written = subprocess.run(script, input=json.dumps(e.request(run)), text=True)
        if written.returncode:
            say(
                f"{run.file}: it ended as {status} ({reason}), and this could not be written: exit "
                f"code {written.returncode}, see above. The same call again measures it"
            )

    def succeed(self) -> None:
        """List the runs that did not end ok, where `rule all` did not, and name predictions.

        Raises
        ------
        WorkflowError : a requested run did not end ok.
        """
        dag = self._workflow.dag
        rules = {job.rule.name for job in dag.jobs}
        files = [run.file for run in self.runs(needed="predict" in rules)]
        if files and not rules & {"all", REPORT}:
            check = [sys.executable, "-m", "scripts.check_runs", "--runs", *files]
            check += ["--page"] if "page" in rules else []
            if subprocess.run(check).returncode:
                raise WorkflowError("a requested run did not end ok; see above")
        for job in internals.jobs(dag, "predict"):
            print(f"Predictions: {job.output[0]}", flush=True)
