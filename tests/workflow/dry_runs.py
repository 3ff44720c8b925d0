"""Make dry runs of Snakemake: one process imports it, and a child of it makes each call.

Reads a list of objects with `arguments` and `environment` from standard input. Writes a list of
pairs, exit code and output, to standard output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

from snakemake import cli

from escala import experiment
from escala.cache import store

#: What every call imports.
MODULES = (
    "escala.data.genomes.settings",
    "escala.experiment.calibration",
    "escala.predict",
    "escala.probes",
    "escala.record.estimate_disk",
    "escala.record.estimate_memory",
    "escala.record.key",
    "escala.report.figures",
    "escala.runtime.slurm_executor",
    "escala.strategies",
    "escala.workloads",
    "snakemake.profiles",
    "snakemake.report",
    "snakemake.storage",
)


def plan(arguments: list[str]) -> int:
    """Build the graph of jobs of a call, and return its exit code."""
    try:
        parser, options = cli.parse_args(arguments)
        options.dryrun = True
        # A report would need the results, and --unlock builds no graph.
        options.report, options.report_after_run, options.unlock = None, False, False
        return not cli.args_to_api(options, parser)
    except SystemExit as end:
        print(end.code)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


def main() -> None:
    # A child inherits what is imported and read here. No code changes meanwhile.
    for module in MODULES:
        import_module(module)
    store.code_digest = cache(store.code_digest)
    for script in Path("scripts").glob("*.py"):
        store.code_digest(f"scripts.{script.stem}", chosen=())
    experiment.load(Path("config.yaml")).run_files()
    done = []
    for call in json.load(sys.stdin):
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if not child:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.environ.update(call["environment"])
                code = plan(call["arguments"])
                sys.stdout.flush()
                sys.stderr.flush()
                # Without the functions that run at exit: they import TensorFlow for an estimate.
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            done.append((code, output.read()))
    json.dump(done, sys.stdout)


if __name__ == "__main__":
    main()
