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

from escala import command, compare
from escala.commands import measure
from escala.commands.report import SUMMARY
from escala.core import children, console, environment
from escala.core.engines import ENGINES
from escala.core.errors import InputError
from escala.core.files import write_json
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
        (f"run -e {LADDER} --again -c 2",
         f"snakemake --cores 2 --forcerun measure --configfile {LADDER}"),
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


def test_elsewhere_files_are_those_of_the_project_and_there_is_no_default_experiment(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT / "docs" / "how-to")
    with pytest.raises(InputError, match=r"no experiment is named.*cd ../.."):
        call_of(["run"])
    monkeypatch.chdir(tmp_path)
    for subcommand in ("run", "predict", "report"):
        with pytest.raises(InputError, match=r"no experiment is named.*escala try -- python train"):
            call_of([subcommand])
    Path("mine.yaml").write_text("experiment: mine\n")
    Path("config.yaml").write_text("learning_rate: 0.1\n")
    with pytest.raises(InputError, match=r"--experiment mine\.yaml"):
        call_of(["run"])
    begin = f"snakemake --snakefile {ROOT}/Snakefile"
    call = f"{begin} --cores 2 --configfile {ROOT}/{LADDER}"
    assert shlex.join(call_of(f"run -e {LADDER} -c 2".split())) == call
    Path("folder/profiles/default").mkdir(parents=True)
    monkeypatch.chdir("folder")
    profiles = f"--workflow-profile {ROOT}/profiles/default --profile {ROOT}/profiles/slurm"
    assert (
        shlex.join(call_of(["run", "--profile", "profiles/slurm", "-e", "../mine.yaml"]))
        == f"{begin} {profiles} --configfile ../mine.yaml"
    )


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


def test_only_a_job_of_a_call_has_its_session_and_its_environment(monkeypatch):
    """A name of a session that a user exported is none of a call, and changes nothing."""
    prepared, sessions, paths = [], [], []
    monkeypatch.setattr(environment, "drop_shadowing_paths", lambda root: None)
    monkeypatch.setattr(environment, "prepare", prepared.append)

    def run(arguments):
        sessions.append(environment.session())
        paths.append(os.environ["PYTHONPATH"].split(os.pathsep))

    monkeypatch.setattr(measure, "run", run)
    for option in ("--lost", "--in-call"):
        monkeypatch.setenv(environment.SESSION_VARIABLE, "exported")
        monkeypatch.setenv("PYTHONPATH", "/modules")
        monkeypatch.setattr(sys, "argv", ["escala", "measure", "plan.json", option])
        assert command._main() is None
    assert len(prepared) == 1
    assert sessions[0] != sessions[1] == "exported"
    # The ranks of the job run the code of this clone, whatever another environment holds.
    assert paths == [["/modules"], [str(ROOT), "/modules"]]


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


def test_files_are_classified_by_naming_a_run_and_the_files(project, monkeypatch):
    monkeypatch.chdir(project)
    runs = Path("results/ladder/runs/demo-1000/virus-cnn/single/1x1/tuned/native")
    for repeat, status in ((1, "ok"), (2, "failed")):
        (runs / f"rep{repeat}").mkdir(parents=True)
        record = {"format": FORMAT, "status": status, "layout": "1x1"}
        (runs / f"rep{repeat}" / "run.json").write_text(json.dumps(record))
        (runs / f"rep{repeat}" / "model.json").write_text("{}")
    run = runs / "rep1"
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
    other = Path(shutil.copytree(run, runs / "rep3"))
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
        if not {"--command", "--sizes"} & set(words):
            parser.parse_args(words[:place])


def test_a_threshold_is_a_percentage_or_a_fraction():
    for text, fraction in (("5%", 0.05), ("0.05", 0.05), ("150 %", 1.5), ("0", 0)):
        arguments = command.parse(["guard", "main", "HEAD", "--threshold", text])[1]
        assert arguments.threshold == fraction


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("rnu", ["perhaps it is run"]),
        ("install foo", ["ENGINE: 'foo'", *ENGINES, "operations", "`escala install --help`"]),
        ("completion csh", ["shell: 'csh'", "perhaps it is zsh", "`escala completion --help`"]),
        ("run --croes 2", ["'--croes': is not an option of escala run", "perhaps it is --cores"]),
        ("new --comm train.py", ["'--comm': is not an option of escala new", "it is --command"]),
        ("report results", ["the call: 'results': is one word too many"]),
        ("store", ["the following arguments are required: COMMAND"]),
        ("advise results/demo --goal tme", ["--goal: 'tme'", "perhaps it is time"]),
        ("guard main HEAD --threshold 5", ["--threshold: 5 has no percent sign", "write 5%"]),
        ("check mine --settings {1", ["--settings: {1 is not JSON", "`escala check --help`"]),
        ("check mine --settings @none", ["--settings: @none is not JSON", "No such file"]),
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


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("", {*command.COMMANDS}),
        (f"run --experiment {LADDER[:-5]}", {LADDER}),
        ("run --prof", {"--profile"}),
        ("advise results/demo --goal core", {"core-hours"}),
        ("store prune --older", {"--older-than"}),
    ],
)
def test_bash_completes_subcommands_options_values_and_experiments(tmp_path, line, offered):
    """Call the completion as readline does when Tab is pressed."""
    (tmp_path / "escala").write_text(f'#!/bin/sh\nexec {sys.executable} -m escala.command "$@"\n')
    (tmp_path / "escala").chmod(0o755)
    script = (
        'eval "$(escala completion bash)"\ncomplete -p escala >&2\n'
        f"COMP_LINE={shlex.quote(f'escala {line}')}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9\n"
        "$(complete -p escala | sed 's/.*-F \\([^ ]*\\).*/\\1/') escala 2>/dev/null\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=ROOT, env=os.environ | path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert re.match(r"complete .*-F \S+ escala\n", done.stderr), done.stderr
    assert {word.strip() for word in done.stdout.splitlines()} >= offered


def test_options_from_python_are_those_of_the_command(monkeypatch):
    def answer(*words):
        _, arguments = command.parse(words)
        write_json(arguments.json, {name: vars(arguments)[name] for name in ("extra", *options)})
        return console.DONE

    monkeypatch.setattr(children, "call_escala", answer)
    options = {"name": None, "in_place": False, "terminal": True, "repeats": 2, "data": ["a=b"]}
    content = compare("python a.py --x 1", ["python", "b.py"], **options)
    assert content == {"extra": ["python a.py --x 1", "---", "python", "b.py"]} | options
