"""The console command `escala`: each subcommand prints the call that it makes, and makes it.

It has no logic of its own. A subcommand of `SCRIPTS` is a module of `scripts/`, which gets the
arguments as they are. Every other one is a call of Snakemake. The call replaces this process, so
signals and the exit code are those of the call.

Results belong to the working directory. If that is no folder of the project, the workflow is that
of the installation.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

import argcomplete

from escala import cli
from escala.core import console, environment
from escala.core.arguments import Parser, raw_parser
from escala.core.console import say
from escala.core.errors import InputError
from escala.core.variables import PROFILE

NAME = "escala"
#: Files and folders that only the folder of the project has together.
PROJECT = ("Snakefile", "config.yaml", "escala", "scripts")
#: The folder of the project that this module belongs to: a clone, or that of the installation.
ROOT = Path(__file__).resolve().parents[1]
#: The program of a call, and what makes it: errors of Snakemake then have one message each.
SNAKEMAKE, CALLED = "snakemake", (sys.executable, "-m", "escala.workflow.called")
#: What an experiment has after it was run.
SUMMARY = "summary.md"
SHELLS = ("bash", "zsh", "fish")
#: Subcommands that are modules of `scripts/`, with one sentence on each.
SCRIPTS = {
    "try": "measure your own training script: do more processes, or more threads, pay?",
    "submit": "measure an experiment in one job of SLURM: write its script, or submit it",
    "advise": "recommend a layout for a goal, from measurements and predictions",
    "lab": "run a SLURM cluster on this machine, with links of a selected rate",
    "history": "keep measurements of many sessions and machines, and query them",
    "measure": "measure what is left of a plan, which escala run writes, without Snakemake",
    "retry": "remove the failed runs of results/NAME, so that the next call repeats them",
    "store": "show, check or clean what is stored",
    "check": "show what this machine can run",
    "install": "make the environment of an engine before its use, or compile operations in C++",
    "new": "write the file of an experiment, from a few questions or from options",
}
TEACHING = f"""\
the most common things:
  escala try -- python train.py          your own script: do more processes or threads pay?
  escala run                             the default experiment: does a second process pay here?
  escala submit experiments/NAME.yaml    a cluster: all its runs in one job
  escala check                           what this machine can run
  escala new                             write an experiment on your own data
  escala run -e experiments/NAME.yaml -n show what would run, and how long
  escala run -e experiments/NAME.yaml    run it, and write results/NAME/index.html

Arguments after -- go to Snakemake as they are: escala run -- --forcerun measure
docs/how-to/command.md describes every subcommand and its Snakemake call.

exit codes:
{chr(10).join(console.exit_code_lines())}
"""
#: Examples of single subcommands.
EXAMPLES = {
    "run": """\
examples:
  escala run                                        the default experiment
  escala run -e experiments/virus/ladder.yaml -n    what would run, and how long
  escala run results/demo/runs/demo-1000/virus-cnn/single/1x1/tuned/native/rep1/run.json
  escala run --profile profiles/slurm               the runs are measured in a job of SLURM
  escala run -- --forcerun measure                    arguments after -- are for Snakemake
""",
    "report": """\
examples:
  escala report                                     results/demo/report.html
  escala report -e experiments/virus/ladder.yaml    the report of another one, after its runs
""",
    "study": """\
examples:
  escala study -e experiments/scaling/study-cores.yaml     results/study-cores/study.html
  escala study -e FILE --profile profiles/slurm            on a cluster
  escala study -e FILE --doublings    join what escala submit FILE --one-per-doubling measured
The experiment has the key `scaling`; docs/how-to/study.md describes it.
""",
    "predict": """\
examples:
  escala predict                                    the times of all configurations
  escala predict -e experiments/virus/scaling.yaml  the times of another experiment
  escala predict --run results/fragments/runs/tiles-1000/kmer-logreg reads.fasta
                                                    classify reads.fasta with the trained run there

RUN is a run.json, its folder, or a folder that holds one trained run. Nothing is trained. The last
lines name the table of each FILE: results/EXPERIMENT/predictions/CONFIGURATION/repN/FILE.tsv.
""",
    "completion": """\
examples, for this shell or for its start-up file:
  eval "$(escala completion bash)"
  autoload -U compinit && compinit && eval "$(escala completion zsh)"
  escala completion fish | source
""",
}


def main() -> int:
    """Run the command with the arguments of this process; return the exit code of an error."""
    return cli.main(_main)


def _main() -> None:
    # Before other libraries are imported, because PYTHONPATH may hold foreign ones.
    environment.keep_own_modules(ROOT)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    words = sys.argv[1:] or ["--help"]
    if words[0] == "completion":
        shell = _parser().parse_args(words).shell
        print(argcomplete.shellcode([NAME], shell=shell))
    else:
        make(call_of(words))


def _complete() -> None:
    """Print how the line of a shell may go on, and end: options of a script are those it reads."""
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    word = (line + "|").split()[1:2]
    parser = _parser()
    if word and word[0] in SCRIPTS:
        # The line without its first word is that of the script.
        os.environ["_ARGCOMPLETE"] = str(int(os.environ["_ARGCOMPLETE"]) + 1)
        parser = _script(word[0])
    argcomplete.autocomplete(parser, always_complete_options=False)


def call_of(words: list[str]) -> list[str]:
    """Return the call that a subcommand with its arguments stands for.

    Raises
    ------
    InputError : no experiment is named and the working directory has no default one, a file or an
        experiment is missing, or what is asked for needs results that are not there.
    SystemExit : the arguments are wrong, or ask for help.
    """
    if words[0] in SCRIPTS:
        return ["python", "-m", f"scripts.{words[0]}", *words[1:]]
    # `--` is divided here, because argparse takes options after it for targets.
    place = words.index("--") if "--" in words else len(words)
    arguments = _parser().parse_args(words[:place])
    return arguments.call(arguments, words[place + 1 :])


def make(call: list[str]) -> NoReturn:
    """Print a call, and replace this process by it.

    Raises
    ------
    InputError : the path of the project has characters that Snakemake reads otherwise, or the
        working directory belongs to somebody else.
    OSError : the program is not installed.
    """
    folder = Path.cwd()
    # On stderr, because stdout belongs to the call.
    print(f"$ {shlex.join(call)}", file=sys.stderr, flush=True)
    if call[0] == SNAKEMAKE:  # The same, but for its errors.
        profile = os.environ.pop(PROFILE, None)
        if profile and not any(word.split("=")[0] == "--profile" for word in call):
            say(
                f"{PROFILE}: {profile} is not read, as it decides how other work runs. "
                f"To use it here: --profile {shlex.quote(profile)}"
            )
        call = [*CALLED, *call[1:]]
    environment.prepare(folder if _is_project(folder) else ROOT)
    environment.require_work_folder(folder)
    os.execvp(call[0], call)


def _run(arguments: argparse.Namespace, extra: list[str]) -> list[str]:
    """Return the call of Snakemake that makes targets, by default a whole experiment."""
    for target in arguments.targets:
        if target.endswith(".yaml") and Path(target).is_file():
            remedy = f"name it as an experiment: {environment.call('run -e', target)}"
            raise InputError("TARGET", target, "is an experiment, and not a result", remedy)
    cores = arguments.cores or (None if arguments.profile else "all")
    return [
        *_snakemake(),
        *arguments.targets,
        *(["--cores", cores] if cores else []),
        *(["--profile", installed(arguments.profile)] if arguments.profile else []),
        *(["--dry-run"] if arguments.dry_run else []),
        *extra,
        *_configfile(arguments.experiment),
    ]


def _snakemake() -> list[str]:
    """Return the beginning of a call of Snakemake: in another folder it names the workflow."""
    if _is_project(Path.cwd()):
        return ["snakemake"]
    # Snakemake would take these settings from the working directory first.
    profile = ["--workflow-profile", str(ROOT / "profiles" / "default")]
    has_profile = Path("profiles", "default").exists()
    return ["snakemake", "--snakefile", str(ROOT / "Snakefile"), *(profile if has_profile else [])]


def installed(path: str) -> str:
    """Return a path as it is, or that of the project's file of this name if there is none here."""
    return str(ROOT / path) if not Path(path).exists() and (ROOT / path).exists() else path


def _study(arguments: argparse.Namespace, extra: list[str]) -> list[str]:
    """Return the call that makes a scaling study, or the one that joins its doublings."""
    if not arguments.doublings:
        return _run(arguments, extra)
    file = (_configfile(arguments.experiment) or ["config.yaml"])[-1]
    return ["python", "-m", "scripts.doublings", file]


def _predict(arguments: argparse.Namespace, extra: list[str]) -> list[str]:
    """Return the call of Snakemake that predicts times, or classifies files with a run."""
    if arguments.run is None:
        for target in arguments.targets:
            if Path(target).exists() and Path(target).parts[0] != "results":
                classify = environment.call("predict --run RUN", target)
                remedy = f"name the run that classifies it: {classify}"
                raise InputError("TARGET", target, "is a file, and not a result", remedy)
        arguments.targets = arguments.targets or ["predictions"]
        return _run(arguments, extra)
    from escala.predict.targets import RULES, predictions

    predicted = predictions(Path(arguments.run), [Path(file) for file in arguments.targets])
    arguments.targets = predicted.targets
    arguments.experiment = arguments.experiment or _file_of(predicted.experiment)
    # The table is always made, most often from the store, so that its counts are printed.
    options = ["--allowed-rules", *RULES, "--forcerun", "predict"]
    settings = ["--config", f"predict={predicted.settings}"]
    return _run(arguments, [*options, *extra, *settings])


def _file_of(name: str) -> str | None:
    """Return the file of an experiment, None if it is the default one."""
    from escala.experiment.files import known_files

    folder = Path.cwd()
    file = known_files(folder).get(name)
    if file is None:
        reason, remedy = "no file here is this experiment's", "name it: --experiment FILE"
        raise InputError("--run", name, reason, remedy)
    is_default = _is_project(folder) and file == folder / "config.yaml"
    return None if is_default else os.path.relpath(file)


def _report(arguments: argparse.Namespace, extra: list[str]) -> list[str]:
    """Return the call of Snakemake that writes the report of an experiment again."""
    from escala import experiment

    named = _configfile(arguments.experiment)
    file = named[-1] if named else "config.yaml"
    name = experiment.load(file).name
    if not Path(f"results/{name}/{SUMMARY}").is_file():
        remedy = "run it first: escala run" + f" -e {shlex.quote(file)}" * bool(
            arguments.experiment
        )
        raise InputError("--experiment", file, "has no results yet", remedy)
    output = f"results/{name}/report.html"
    options = ["--cores", "1", "--report", output]
    return [*_snakemake(), *options, *extra, *named]


def experiments() -> list[str]:
    """Return the files of the experiments in the working directory."""
    from escala.experiment.files import is_experiment

    files = [*Path().glob("*.yaml"), *Path("experiments").rglob("*.yaml")]
    return sorted(map(str, filter(is_experiment, files)))


def _configfile(experiment: str | None) -> list[str]:
    """Return the last option of a call: `--configfile` takes every word after it."""
    if experiment is None:
        _require_default()
        return []
    experiment = installed(experiment)
    if not Path(experiment).is_file():
        import difflib

        known = experiments()
        near = difflib.get_close_matches(experiment, known, 1) or known[:1]
        remedy = f"name a file such as {near[0]}, or write one by `escala new`"
        remedy = remedy if near else "write one by `escala try` or `escala new`"
        raise InputError("--experiment", experiment, "no such file", remedy)
    from escala.core.yaml12 import read

    # Snakemake reads the file before any rule is, and its message does not name it.
    read(experiment)
    return ["--configfile", experiment]


def _require_default() -> None:
    """Refuse a call without an experiment outside the folder of a project."""
    folder = Path.cwd()
    project = next((parent for parent in (folder, *folder.parents) if _is_project(parent)), None)
    if project == folder:
        return
    remedy = "measure a script: escala try -- python train.py; or write a file: escala new"
    if here := experiments():
        remedy = f"name a file: --experiment {shlex.quote(here[0])}"
    if project:
        remedy = f"for the default one: cd {shlex.quote(os.path.relpath(project))}; or {remedy}"
    reason = "no experiment is named, and only the folder of the project has a default one"
    raise InputError("working directory", str(folder), reason, remedy)


def _is_project(folder: Path) -> bool:
    return all((folder / name).exists() for name in PROJECT)


def _parser() -> Parser:
    parser = raw_parser(
        "Does training a model in parallel pay on my machines, by how much, and why?",
        prog=NAME,
        epilog=TEACHING,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, call=None) -> Parser:
        added = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=EXAMPLES.get(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(call=call)
        if call:
            added.further = f"those of Snakemake stand after --: {added.prog} -- --OPTION"
        return added

    run = command("run", "measure an experiment, or make single results of it", _run)
    report = command("report", "write the report of an experiment", _report)
    predict = command("predict", "predict times of layouts, or classes of your own data", _predict)
    study = command("study", "measure a scaling study, and write the document to hand in", _study)
    study.set_defaults(targets=["study"])
    text = "join the doublings that escala submit --one-per-doubling measured; measure nothing"
    study.add_argument("--doublings", action="store_true", help=text)
    for added, text in (
        (run, "result to make, such as the run.json of one configuration; default: all"),
        (predict, "result to make, results/NAME/predictions/…; with --run, files to classify"),
    ):
        added.add_argument("targets", nargs="*", metavar="TARGET", help=text)
    for added in (run, predict, study):
        text = "cores to use; default: all, or those of the profile"
        added.add_argument("-c", "--cores", metavar="N", help=text)
        text = "Snakemake's profile, such as profiles/slurm"
        added.add_argument("--profile", metavar="FOLDER", help=text)
        text = "show what would run, and run nothing"
        added.add_argument("-n", "--dry-run", action="store_true", help=text)
    for added in (run, report, predict, study):
        experiment = added.add_argument(
            "-e",
            "--experiment",
            metavar="FILE",
            help="file of the experiment; default: config.yaml",
        )
        experiment.completer = lambda **_: experiments()
    predict.add_argument("--run", metavar="RUN", help="the trained run that classifies the files")
    for name, text in SCRIPTS.items():
        command(name, text).add_argument("arguments", nargs=argparse.REMAINDER)
    completion = command("completion", "print the completion of this command for a shell")
    completion.add_argument("shell", choices=SHELLS)
    return parser


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each subcommand."""
    actions = _parser()._actions
    [commands] = (each.choices for each in actions if isinstance(each, argparse._SubParsersAction))
    return {name: _script(name) if name in SCRIPTS else each for name, each in commands.items()}


def _script(name: str) -> argparse.ArgumentParser:
    """Return the parser of a script."""
    return importlib.import_module(f"scripts.{name}").parser()


if __name__ == "__main__":
    raise SystemExit(main())
