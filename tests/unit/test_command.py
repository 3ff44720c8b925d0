"""The command `escala`: the call that it prints is the call that it makes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from escala import command
from escala.commands.completion import SHELLS
from escala.commands.report import SUMMARY
from escala.core import console
from escala.core.errors import InputError
from escala.record.schema import FORMAT
from escala.workflow.call import PROJECT
from tests.calls import python
from tests.conftest import ROOT

# Every other Python process writes down how it was started, and ends.
RECORD = """
import json, os, sys
if "escala.command" not in sys.orig_argv:
    with open({file!r}, "w") as file:
        json.dump([os.getpid(), os.getcwd(), sys.orig_argv], file)
    os._exit(7)
"""
RUN = "results/demo/runs/demo-1000/virus-cnn/horovod-mpi/1x2/tuned/native/rep1/run.json"
LADDER = "experiments/virus/ladder.yaml"


def escala(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    variables = {"PYTHONPATH": str(ROOT)}
    return python("-m", "escala.command", *arguments, variables=variables, cwd=cwd)


def call_of(words: list[str]) -> list[str]:
    """Return the call of Snakemake that a subcommand makes."""
    module, arguments = command.parse(words)
    return module.run(arguments)


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ("run", "snakemake --cores all"),
        (f"run {RUN} -c 2 -n", f"snakemake {RUN} --cores 2 --dry-run"),
        ("run --profile profiles/slurm", "snakemake --profile profiles/slurm"),
        (f"run -e {LADDER} -c 2 -- --forcerun train --config 'title=a b'",
         f"snakemake --cores 2 --forcerun train --config 'title=a b' --configfile {LADDER}"),
        ("predict", "snakemake predictions --cores all"),
        ("predict results/x/predictions/y.tsv",
         "snakemake results/x/predictions/y.tsv --cores all"),
    ],
)  # fmt: skip
def test_a_subcommand_stands_for_a_call(arguments, call, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert shlex.join(call_of(shlex.split(arguments))) == call


def test_the_printed_call_is_made_in_place_of_the_command(tmp_path):
    """The process is the same, so signals and the exit code are those of the call."""
    record = tmp_path / "record"
    (tmp_path / "sitecustomize.py").write_text(RECORD.format(file=str(record)))
    search = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", "escala.command", "run", "-c", "2", "--", "--forcerun", "a b"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": search},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, printed = process.communicate(timeout=100)
    assert (said, printed) == ("", "$ snakemake --cores 2 --forcerun 'a b'\n")
    number, folder, (_, *words) = json.loads(record.read_text())
    module, made = words[:2], words[2:]
    assert (number, process.returncode, folder) == (process.pid, 7, str(ROOT))
    assert module == ["-m", "escala.workflow.called"]
    assert made == ["--cores", "2", "--forcerun", "a b"]


def test_ctrl_c_while_snakemake_is_imported_ends_the_call_without_a_traceback(tmp_path):
    """It may come then: what a trial said of the time that all runs take was just printed."""
    (tmp_path / "snakemake.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
    search = os.pathsep.join([str(tmp_path), str(ROOT)])
    ended = python("-m", "escala.workflow.called", variables={"PYTHONPATH": search})
    assert (ended.returncode, ended.stderr) == (130, "escala: interrupted\n")


@pytest.fixture
def project(tmp_path):
    """Return a folder with the files of the project, and results of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in (*PROJECT, "experiments", "schemas"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize(("file", "name"), [(None, "demo"), (LADDER, "ladder")])
def test_a_report_is_of_results_that_are_there(project, monkeypatch, file, name):
    monkeypatch.chdir(project)
    words = ["report", "-e", file] if file else ["report"]
    with pytest.raises(InputError, match="has no results yet") as refused:
        call_of(words)
    assert refused.value.remedy == "run it first: escala run" + (f" -e {file}" if file else "")
    (project / "results" / name).mkdir(parents=True)
    (project / "results" / name / SUMMARY).write_text("**Yes**")
    options = ["--configfile", file] if file else []
    assert call_of(words) == [
        *("snakemake", "--cores", "1", "--report", f"results/{name}/report.html"), *options
    ]  # fmt: skip


def _trained(project: Path, repeat: str, status: str = "ok") -> Path:
    folder = project / f"results/ladder/runs/demo-1000/virus-cnn/single/1x1/tuned/native/{repeat}"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"format": FORMAT, "status": status, "layout": "1x1"})
    )
    (folder / "model.json").write_text("{}")
    return folder.relative_to(project)


def test_files_are_classified_by_naming_a_run_and_the_files(project, monkeypatch):
    monkeypatch.chdir(project)
    run = _trained(project, "rep1")
    _trained(project, "rep2", "failed")
    (project / "a").mkdir()
    for name in ("reads.fasta.gz", "a/reads.fa", "a/my $x.fa"):
        (project / name).write_text(">x\nACGT\n")
    below = "results/ladder/predictions/demo-1000/virus-cnn/single/1x1/tuned/native/rep1"
    rules = "--allowed-rules predict familiarity length_errors --forcerun predict"
    for named in (f"{run}/run.json", str(run), "results/ladder"):
        call = call_of(["predict", "--run", named, "reads.fasta.gz", "a/my $x.fa", "-c", "1"])
        assert shlex.join(call) == (
            f"snakemake {below}/reads.tsv {below}/my-x.tsv --cores 1 {rules} --config "
            """'predict={"inputs": {"reads": "reads.fasta.gz", "my-x": "a/my $$x.fa"}}' """
            f"--configfile {LADDER}"
        )
    same = call_of(["predict", "--run", str(run), "reads.fasta.gz", "a/reads.fa"])
    assert same[1:3] == [f"{below}/reads.tsv", f"{below}/a-reads.tsv"]
    other = _trained(project, "rep3")
    for words, reasons in (
        (["--run", str(run)], ["FILE: is missing"]),
        (["--run", str(run), "none.fasta"], ["'none.fasta': no such file"]),
        (["--run", "results/none", "reads.fasta.gz"], ["no such run"]),
        (["--run", "experiments", "reads.fasta.gz"], ["no run is here"]),
        (["--run", str(run.with_name("rep2")), "reads.fasta.gz"], ["none ended ok with a model"]),
        (["reads.fasta.gz"], ["escala predict --run RUN reads.fasta.gz"]),
        (["--run", "results/ladder", "reads.fasta.gz"], [str(run), str(other)]),
    ):
        with pytest.raises(InputError) as refused:
            call_of(["predict", *words])
        assert all(reason in str(refused.value) for reason in reasons), refused.value


def test_an_experiment_that_does_not_exist_has_one_message_with_a_near_name(tmp_path):
    done = escala("run", "-e", "experiments/virus/lader.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("escala: --experiment: 'experiments/virus/lader.yaml': no such file.")
    assert LADDER in line
    file = tmp_path / "broken.yaml"
    file.write_text("experiment: broken\nrepeats: [1, 2\ntitle: x\n")
    with pytest.raises(InputError, match=rf"{file}: .*line 3"):
        call_of(["run", "-e", str(file)])


@pytest.mark.parametrize("subcommand", ["run", "predict", "report"])
def test_elsewhere_there_is_no_default_experiment(subcommand, tmp_path, monkeypatch):
    def refused(folder: Path) -> str:
        monkeypatch.chdir(folder)
        with pytest.raises(InputError, match="no experiment is named") as error:
            call_of([subcommand])
        return error.value.remedy

    assert "cd ../.." in refused(ROOT / "docs" / "how-to")
    assert "escala try -- python train.py" in refused(tmp_path)
    (tmp_path / "mine.yaml").write_text("experiment: mine\n")
    (tmp_path / "config.yaml").write_text("learning_rate: 0.1\n")
    assert "--experiment mine.yaml" in refused(tmp_path)


def test_elsewhere_the_workflow_and_its_files_are_those_of_the_project(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("experiment: mine\n")
    folder = tmp_path / "folder"
    (folder / "profiles" / "default").mkdir(parents=True)
    begin = f"snakemake --snakefile {ROOT}/Snakefile"
    default = f"--workflow-profile {ROOT}/profiles/default"
    slurm = f"{default} --profile {ROOT}/profiles/slurm"
    for cwd, arguments, call in (
        (tmp_path, f"run -e {LADDER} -c 2", f"{begin} --cores 2 --configfile {ROOT}/{LADDER}"),
        (folder, "run --profile profiles/slurm -e ../mine.yaml",
         f"{begin} {slurm} --configfile ../mine.yaml"),
    ):  # fmt: skip
        monkeypatch.chdir(cwd)
        assert shlex.join(call_of(arguments.split())) == call


def test_help_teaches_the_most_common_things(tmp_path):
    done, named = (escala(*arguments, cwd=tmp_path) for arguments in ((), ("--help",)))
    assert (done.returncode, done.stdout) == (0, named.stdout)
    for name in command.COMMANDS:
        assert re.search(rf"^    {name}( |$)", done.stdout, re.MULTILINE), name
    for code, meaning in console.MEANINGS.items():
        assert f"  {code:9}{meaning}" in done.stdout


@pytest.mark.parametrize("name", command.COMMANDS)
def test_the_help_of_each_subcommand_has_examples_that_it_reads(name):
    parser = command.parsers()[name]
    assert parser.prog == f"escala {name}"
    lines = re.findall(
        rf"^  (?:.*[ (])?escala ({name}(?: .*)?)$", parser.format_help(), re.MULTILINE
    )
    assert lines and "example" in parser.format_help()
    for line in lines:
        _, *words = shlex.split(re.sub(r'  .*|\)".*| \| .*', "", line))
        place = words.index("--") if "--" in words else len(words)
        for file in (word for word in words if word.startswith("experiments/")):
            assert (ROOT / file).is_file()
        # They are those of another parser.
        if "--command" not in words:
            parser.parse_args(words[:place])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("walk", ["COMMAND: 'walk': is unknown", "`escala --help` lists all"]),
        ("rnu", ["perhaps it is run"]),
        ("completion csh", ["shell: 'csh'", "perhaps it is zsh", "`escala completion --help`"]),
        ("run --croes 2", ["'--croes': is not an option of escala run", "perhaps it is --cores"]),
        ("run --forcerun train", ["`escala run --help` lists all", "escala run -- --OPTION"]),
        ("report results", ["the call: 'results': is one word too many"]),
        ("predict -e", ["the call: argument -e/--experiment: expected one argument"]),
        ("history qurey", ["perhaps it is query", "`escala history --help` lists all"]),
        ("store", ["the following arguments are required: COMMAND"]),
        ("advise results/demo --goal tme", ["--goal: 'tme'", "perhaps it is time"]),
        ("try --torhc -- python train.py", ["perhaps it is --torch"]),
    ],
)
def test_unknown_words_end_with_the_nearest_and_where_all_are(arguments, said, capsys):
    name, *words = arguments.split()
    with pytest.raises(SystemExit) as ended:
        command.parse([name, *words])
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == console.WRONG
    assert line.startswith("escala: ") and " Remedy: " in line
    assert all(each in line for each in said), line


def test_the_project_installs_the_command():
    installed = Path(sys.executable).with_name("escala")
    assert installed.is_file(), "uv sync"
    done = subprocess.run([installed, "--help"], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("usage: escala"), done.stderr


# What readline does when Tab is pressed, and what it would show.
TAB = """
eval "$(escala completion bash)"
complete -p escala >&2
COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
$(complete -p escala | sed 's/.*-F \\([^ ]*\\).*/\\1/') escala 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(folder: Path, line: str) -> list[str]:
    """Return what Tab offers where a folder of the PATH has a program `escala`, this project's."""
    program = folder / "escala"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m escala.command "$@"\n')
    program.chmod(0o755)
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "--norc", "-c", TAB.format(line=shlex.quote(line))],
        cwd=ROOT, env=os.environ | path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert re.match(r"complete .*-F \S+ escala\n", done.stderr), done.stderr
    return [each.strip() for each in done.stdout.splitlines()]


def test_bash_completes_subcommands_and_experiments_that_exist(tmp_path):
    assert set(completed(tmp_path, "escala ")) >= {*command.COMMANDS}
    found = sorted(str(each.relative_to(ROOT)) for each in ROOT.glob("experiments/virus/ladd*"))
    assert LADDER in found
    assert completed(tmp_path, "escala run --experiment experiments/virus/ladd") == found
    assert completed(tmp_path, "escala run --prof") == ["--profile"]
    assert completed(tmp_path, "escala completion f") == ["fish"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("escala advise results/demo --goal core", "core-hours"),
        ("escala lab sta", "status"),
        ("escala history que", "query"),
        ("escala store prune --older", "--older-than"),
    ],
)
def test_bash_completes_the_options_and_values_of_a_script(tmp_path, line, offered):
    assert offered in completed(tmp_path, line)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_completion_that_it_can_read(shell):
    done = escala("completion", shell)
    assert done.returncode == 0 and "escala" in done.stdout
    if program := shutil.which(shell):
        read = subprocess.run([program, "-n"], input=done.stdout, capture_output=True, text=True)
        assert read.returncode == 0, read.stderr
