"""Call Snakemake in children of one process, which has imported it and the project.

Such a call does what the command `snakemake` does, and saves the seconds of the imports. Run as a
script in the folder of a project, this module reads calls from standard input, one JSON object a
line, and answers each with a line: the exit code and the output. `Forks` starts it and asks it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import TracebackType

#: What every call imports.
MODULES = (
    "escala.cache.store",
    "escala.data.genomes.settings",
    "escala.analysis.cost_model.calibrating",
    "escala.predict",
    "escala.probes",
    "escala.workflow.reports",
    "escala.workflow.session",
    "escala.workflow.plans",
    "escala.record.key",
    "escala.report.figures",
    "escala.strategies",
    "escala.workloads",
    "snakemake.cli",
    "snakemake.profiles",
    "snakemake.report",
    "snakemake.storage",
)


class Forks:
    """A process whose children call Snakemake with the code of a project.

    Parameters
    ----------
    project : folder whose modules the calls import. They do not change meanwhile.
    """

    def __init__(self, project: Path):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *arguments: str | Path, folder: Path, **environment: str
    ) -> subprocess.CompletedProcess:
        """Call Snakemake in a folder.

        Parameters
        ----------
        arguments : of Snakemake.
        environment : variables alongside those of this process.
        """
        return self._call("run", arguments, folder, environment)

    def dry_run(self, *arguments: str | Path, folder: Path, **environment: str) -> tuple[int, str]:
        """Build the graph of the jobs of a call, and return the exit code and all output.

        Unlike `snakemake --dry-run` it prints no estimate of time.
        """
        done = self._call("dry_run", arguments, folder, environment)
        return done.returncode, done.stdout + done.stderr

    def _call(
        self, how: str, arguments: tuple[str | Path, ...], folder: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess:
        call = {
            "how": how,
            "arguments": list(map(str, arguments)),
            "environment": os.environ | environment,
            "folder": str(folder),
            "cores": list(os.sched_getaffinity(0)),
        }
        print(json.dumps(call), file=self._process.stdin, flush=True)
        code, *outputs = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess(["snakemake", *arguments], code, *outputs)

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def run(arguments: list[str]) -> int:
    """Call Snakemake, and return its exit code."""
    from snakemake import cli

    sys.argv = ["snakemake", *arguments]
    try:
        return ended(cli.main)
    finally:
        atexit._run_exitfuncs()


def dry_run(arguments: list[str]) -> int:
    """Build the graph of jobs of a call, and return the exit code."""
    from snakemake import cli

    def main() -> int:
        parser, options = cli.parse_args(arguments)
        options.dryrun = True
        # A report would need the results, and --unlock builds no graph.
        options.report, options.report_after_run, options.unlock = None, False, False
        return not cli.args_to_api(options, parser)

    # What runs at exit, the estimates, does not run.
    return ended(main)


def ended(function: Callable[[], int]) -> int:
    """Return the exit code of a process that calls a function."""
    try:
        return function()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0


def make(call: dict, *outputs: int) -> None:
    """Make a call in this process, a child, which ends."""
    code = 1
    try:
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
        os.environ.clear()
        os.environ.update(call["environment"])
        os.chdir(call["folder"])
        os.sched_setaffinity(0, call["cores"])
        code = {"run": run, "dry_run": dry_run}[call["how"]](call["arguments"])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Answer the calls of standard input until it ends."""
    sys.path.insert(0, str(Path.cwd()))
    # A child inherits what is imported and read here.
    for module in MODULES:
        import_module(module)
    read_code()
    # A collection would copy the memory that a child shares with this process.
    gc.disable()
    gc.freeze()
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if not child:
                make(json.loads(line), output.fileno(), errors.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said = []
            for file in (output, errors):
                file.seek(0)
                said.append(file.read())
            print(json.dumps([code, *said]), flush=True)


def read_code() -> None:
    """Read the project's experiment, which every call reads."""
    from escala import experiment

    _ = experiment.load(Path("config.yaml")).runs


if __name__ == "__main__":
    main()
