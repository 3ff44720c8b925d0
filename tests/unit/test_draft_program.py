"""The file that is written for a program: its configurations, its files, and what is guessed."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from escala.core import plugins
from escala.core.errors import InputError
from escala.core.variables import CALLERS_PATH
from escala.draft.file import require_place, text
from escala.draft.program import add_files, add_options, draft, file_of, keep_files
from escala.experiment import Experiment
from escala.programs.program import Program
from escala.workloads import WORKLOADS


@pytest.fixture
def drafted(tmp_path, monkeypatch):
    """Return a function from a call's words to its draft, in a folder with scripts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("escala.draft.program.available_cores", lambda: list(range(4)))
    monkeypatch.setattr("escala.draft.program.available_gpus", list)
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv(CALLERS_PATH, path)
    parser = argparse.ArgumentParser()
    add_options(parser)

    def make(call: str):
        options, _, command = call.partition("-- ")
        return draft(shlex.split(command), parser.parse_args(shlex.split(options)))

    return make


def compared(found) -> list[tuple[str, str, str]]:
    """Return strategy, layout and variant of each configuration of a draft, which is valid."""
    experiment = Experiment(found.settings, file_of(found))
    return [run.configuration[:3] for run in experiment.runs if run.repeat == 1]


PYTHON = "python train.py"
ACCELERATE = (
    "accelerate launch --num_processes {ranks} --num_machines {nodes} --machine_rank {node} "
    "--main_process_ip {address} --main_process_port {port} --mixed_precision no train.py"
)
OWN = "torchrun --nproc-per-node {ranks_of_node} train.py"


@pytest.mark.parametrize(
    ("call", "strategy", "command"),
    [
        ("-- 'python train.py --x 1'", "single", "python train.py --x 1"),
        ("-- python train.py {rank} {ranks}", "processes", "python train.py {rank} {ranks}"),
        ("-- python train.py --jobs {ranks_of_node}", "own-launcher",
         f"{PYTHON} --jobs {{ranks_of_node}}"),
        ("--torch -- python train.py", "torch-ddp", PYTHON),
        ("--tf-config -- python train.py", "tf-config", PYTHON),
        ("--strategy horovod-gloo -- python train.py", "horovod-gloo", PYTHON),
        ("-- torchrun --standalone --nproc_per_node=8 train.py x", "torch-ddp", f"{PYTHON} x"),
        ("-- python -m torch.distributed.run --nproc-per-node 2 -m mine.train", "torch-ddp",
         "python -m mine.train"),
        ("-- mpirun -x A=1 -np 4 --bind-to core -x B python train.py", "mpi", f"env A=1 {PYTHON}"),
        ("-- srun -n 4 --mpi=pmix ./simulate", "mpi", "./simulate"),
        ("-- srun -n4 -N1 ./simulate", "mpi", "./simulate"),
        ("-- mpirun.openmpi -np 2 ./simulate", "mpi", "./simulate"),
        ("-- timeout 9 torchrun --nproc_per_node=2 train.py", "torch-ddp", f"timeout 9 {PYTHON}"),
        ("-- horovodrun -np 4 --gloo python train.py", "horovod-gloo", PYTHON),
        (f"-- {OWN}", "own-launcher", OWN),
        ("-- accelerate launch --mixed_precision no train.py --num_processes 4", "own-launcher",
         f"{ACCELERATE} --num_processes 4"),
        ("-- A=1 B=2 ./simulate", "single", "env A=1 B=2 ./simulate"),
        # A launcher that is not the first word, and one that is no launcher but a script's word.
        ("-- A=1 torchrun --nproc_per_node=2 train.py", "torch-ddp", f"env A=1 {PYTHON}"),
        ("-- poetry run torchrun --nproc_per_node=2 train.py", "torch-ddp", f"poetry run {PYTHON}"),
        ("-- nice -n 5 numactl --interleave=all mpirun -np 2 ./simulate", "mpi",
         "nice -n 5 numactl --interleave=all ./simulate"),
        ("-- nohup python -u -m torch.distributed.run --nproc-per-node 2 train.py", "torch-ddp",
         "nohup python -u train.py"),
        ("-- ./on_node.sh torchrun --nproc_per_node=2 train.py", "torch-ddp",
         f"./on_node.sh {PYTHON}"),
        # Options that nobody has heard of are the launcher's, and so are their words.
        ("-- torchrun --unheard-of 3 train.py --unheard-of 3", "torch-ddp",
         f"{PYTHON} --unheard-of 3"),
        ("-- mpirun --mca btl self --new-option 3 env A=1 ./simulate 5", "mpi",
         "env A=1 ./simulate 5"),
        ("-- srun -m block --mpi pmix -l ./simulate 5", "mpi", "./simulate 5"),
        ("-- mpirun -np 4 --oversubscribe ./simulate 5", "mpi", "./simulate 5"),
        ("-- mpirun -np 4 --new-option 3 -- ./simulate 5", "mpi", "./simulate 5"),
        ("-- nice python train.py torchrun", "single", "nice python train.py torchrun"),
        ("-- env A=1 deepspeed --num_gpus {ranks_of_node} train.py", "own-launcher",
         "env A=1 deepspeed --num_gpus {ranks_of_node} train.py"),
        ("-- deepspeed --num_gpus 2 train.py", "single", "deepspeed --num_gpus 2 train.py"),
        # This launcher hands each process its number.
        ("-- python -m torch.distributed.launch --nproc_per_node=2 train.py x", "torch-ddp",
         f"{PYTHON} --local-rank={{local_rank}} x"),
        ("-- python -m torch.distributed.launch --use_env -m mine.train x", "torch-ddp",
         "python -m mine.train x"),
    ],
)  # fmt: skip
def test_a_call_gives_the_configurations_that_answer_it(call, strategy, command, drafted):
    found = drafted(call)
    one, threads = (strategy, "1x1", "tuned"), (strategy, "1x1", "threads")
    processes = [(strategy, "1x4", "tuned")] if strategy != "single" else []
    assert compared(found) == [one, *processes, threads]
    # The reference is the strategy's own one process, and threads stand alongside it.
    assert [tuple(each.values()) for each in found.settings["references"]] == [one, threads]
    [workload] = found.settings["workloads"].values()
    assert workload["command"] == command
    guessed = strategy != "single" and call.startswith("-- ")
    assert any(strategy in each for each in found.sentences) == guessed, "what is guessed is said"


@pytest.mark.parametrize(
    ("gpus", "options", "layouts", "cores"),
    [
        (2, "", ["1x1", "1x2"], (2, 4)),
        (1, "", ["1x1"], (1, 4)),
        (8, "", ["1x1", "1x4"], (1, 4)),
        (2, "--processes 4", ["1x1", "1x4"], (1, 4)),
        (2, "--nodes 2", ["1x1", "1x2", "2x2"], (2, 4)),
        (0, "", ["1x1", "1x4"], (1, 4)),
        (0, "--processes 2", ["1x1", "1x2"], (1, 2)),
    ],
)
def test_each_gpu_has_a_process_and_its_part_of_the_cores(
    gpus, options, layouts, cores, drafted, monkeypatch
):
    monkeypatch.setattr("escala.draft.program.available_gpus", lambda: ["one"] * gpus)
    found = drafted(f"{options} --torch -- python train.py")
    assert compared(found) == [
        *(("torch-ddp", layout, "tuned") for layout in layouts), ("torch-ddp", "1x1", "threads"),
    ]  # fmt: skip
    variants = found.settings["variants"].values()
    assert tuple(each["cores_per_process"] for each in variants) == cores


@pytest.mark.parametrize(
    ("source", "strategy"),
    [
        ("import horovod.tensorflow.keras as hvd", "horovod-mpi"),
        ("from mpi4py import MPI", "mpi"),
        ("import torch.distributed as dist\ndist.init_process_group('gloo')", "torch-ddp"),
        ("import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()", "tf-config"),
        ("import torch", "single"),
        # How many it starts, the script decides.
        ("import torch\ntorch.distributed.init_process_group()\nmp.spawn(main)", "single"),
        ("from mpi4py import MPI\nimport horovod.torch", "single"),
        ("import horovod.torch as hvd\nfor (", "single"),
    ],
)
def test_what_a_script_imports_and_calls_names_its_strategy(source, strategy, drafted, tmp_path):
    (tmp_path / "train.py").write_text(source)
    found = drafted("-- python train.py")
    assert compared(found)[0][0] == strategy
    assert any("train.py" in each and strategy in each for each in found.sentences) == (
        strategy != "single"
    )
    assert found.guessed == (strategy != "single"), "what is compared is not as it is typed"
    if "import horovod" in source and strategy != "single":
        assert compared(drafted("-- mpirun -np 2 python train.py"))[0][0] == "horovod-mpi"
    # What the user says is taken in any case.
    assert compared(drafted("--strategy processes -- python train.py"))[0][0] == "processes"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("-- ", "write it after --"),
        ("-- lone.py", "python lone.py"),
        ("-- mpirun --unheard-of simulate", "not certain which of its words is the program"),
        ("-- mpirun --oversubscribe", "starts no program"),
        ("-- mpirun -n 1 python a.py : -n 1 python b.py", "several programs"),
        ("--launcher -- torchrun --nproc-per-node 4 train.py", "{ranks_of_node}"),
        ("--processes 1 -- python train.py", "at least 2"),
        ("--data reads -- python train.py", "NAME=PATH"),
        ("-- python train.py {row}", "command: '{row}': there is no such placeholder"),
        ("-- python train.py {data.reads}", "--data reads=PATH"),
        ("--regex '(' -- python train.py", "not a regular expression"),
        ("--data reads=none -- python train.py {data.reads}", "none"),
        ("--name 'a b' -- python train.py", "not allowed"),
        ("--python none -- python train.py", "--python: 'none': is not a program"),
        ("--python ./venv -- python train.py", "venv/bin/python"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, said, drafted, tmp_path):
    (tmp_path / "lone.py").touch()
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch()
    with pytest.raises(InputError, match=r"Remedy: ") as refused:
        compared(drafted(call))
    assert said in str(refused.value)


def test_the_file_is_the_draft_and_names_what_the_command_asks_for(drafted, tmp_path):
    (tmp_path / "reads").mkdir()
    (tmp_path / "reads" / "a.txt").write_text("a")
    (tmp_path / "train.py").touch()
    found = drafted(
        "--torch --rows 128 --epochs 5 --repeats 3 --regex 'loss (?P<loss>.*)' --nodes 2 "
        "--processes 3 --data reads=reads --variable CACHE "
        "-- python train.py --batch {rows_of_rank} --epochs {epochs} 'a \"b\"' {data.reads}"
    )
    Experiment(found.settings, file_of(found))
    content = text(found, "escala try")
    assert yaml.safe_load(content) == found.settings
    assert file_of(found).name == "escala-train.yaml" and found.name == "train"
    [workload] = found.settings["workloads"].values()
    assert workload["batch"] == {"rows": 128, "per": "global"} and workload["epochs"] == 5
    assert workload["environment"]["variables"] == ["CACHE"]
    assert found.settings["repeats"] == 3
    assert found.settings["configurations"][0]["layouts"] == ["1x1", "1x3", "2x3"]
    words = Program.of(workload, tmp_path, "here").command
    assert words[-2:] == ('a "b"', "{data.reads}")
    # What is not named is not set.
    [workload] = drafted("-- python train.py").settings["workloads"].values()
    assert not {"batch", "epochs", "epoch_ends"} & workload.keys()


def test_files_are_the_script_and_what_it_imports(drafted, tmp_path):
    for name in ("train.py", "model.py", "notes.txt", "unused.py", "parts/__init__.py",
                 "parts/inner.py", "parts/deep.py", "conf[1].json"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "train.py").write_text("import os, model\nfrom parts import inner\n")
    (tmp_path / "parts" / "inner.py").write_text("from .deep import x\n")
    [workload] = drafted("-- python train.py --conf conf[1].json").settings["workloads"].values()
    assert workload["files"] == [
        "conf[[]1].json", "model.py", "parts/__init__.py", "parts/deep.py", "parts/inner.py",
        "train.py",
    ]  # fmt: skip
    [workload] = drafted("-- python -m parts.inner").settings["workloads"].values()
    assert workload["files"] == ["parts/__init__.py", "parts/deep.py", "parts/inner.py"]


def test_what_has_no_effect_is_said(drafted, tmp_path):
    (tmp_path / "mlp.py").touch()
    found = drafted("--rows 8 --epochs 2 --processes 9 -- python mlp.py")
    for each in ("--rows has no effect", "--epochs has no effect", "this machine has 4 cores"):
        assert each in " ".join(found.sentences)
    # The name of another workload is no obstacle.
    assert found.name == "mlp" and "mlp" in WORKLOADS and compared(found)


def test_one_word_with_a_space_may_be_a_program(drafted, tmp_path):
    (tmp_path / "run it").touch()
    [workload] = drafted("-- './run it'").settings["workloads"].values()
    assert shlex.split(workload["command"]) == ["./run it"]


def test_a_folder_without_write_permission_is_refused_first():
    with pytest.raises(InputError, match="cannot be written to"):
        require_place(Path("/proc/none/escala-train.yaml"), "train", "", False, "--name NAME")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m train", "train"),
        ("python -m examples.train", "train"),
        ("nice python -u -m examples.train.__main__", "train"),
    ],
)
def test_an_experiment_has_the_name_of_its_script_or_module(command, name, drafted):
    assert drafted(f"-- {command}").name == name


def test_a_name_that_is_taken_is_told_with_the_option_for_another(drafted, tmp_path):
    found = drafted("-- python train.py")
    file = Path("own/train.yaml")
    file.parent.mkdir()
    file.touch()
    with pytest.raises(InputError, match=r"exists, and.*--output own/NAME.yaml"):
        found.content(file, False, "escala new", "--output own/NAME.yaml")


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("python prep.py && python train.py", "&&"),
        ("python prep.py; python train.py", ";"),
        ("python prep.py\npython train.py", "\\n"),
        ("python train.py | tee log", "|"),
        ("python train.py > log", ">"),
        ("python train.py 2>&1", "2>"),
        ('python train.py --out "$HOME/x"', "$"),
        ("python train.py `date`", "`"),
        ("~/venv/bin/python train.py", "~"),
        ("python train.py data/*.csv", "*"),
        ("python train.py --seed {1..3}", "{1..3}"),
        ("(python train.py)", "("),
        ("python train.py # the best one", "#"),
    ],
)
def test_a_text_for_a_shell_is_refused_with_a_call_of_it(text, sign, drafted, tmp_path):
    with pytest.raises(InputError) as refused:
        drafted(f"-- {shlex.quote(text)}")
    assert f"'{sign}'" in refused.value.reason
    remedy = refused.value.remedy.partition("let a shell run all: ")[2]
    assert shlex.split(remedy) == ["sh", "-c", text]
    [workload] = drafted(f"-- {remedy}").settings["workloads"].values()
    assert Program.of(workload, tmp_path, "").command == ("sh", "-c", text)
    with pytest.raises(InputError):  # As in the file of an experiment.
        Program.of({"command": text}, tmp_path, "")


def test_signs_that_belong_to_an_argument_stay(drafted, tmp_path):
    words = [
        "python",
        "train.py",
        "--sep",
        "|",
        "--rule",
        "a;b",
        "$x",
        "it's ~",
        "a&b",
        "c\\d",
        "*",
        "{1,2}",
        "#",
    ]
    [workload] = drafted(f"-- {shlex.join(words)}").settings["workloads"].values()
    assert Program.of(workload, tmp_path, "").command == tuple(words)
    [workload] = drafted(f"-- {shlex.quote(shlex.join(words))}").settings["workloads"].values()
    assert Program.of(workload, tmp_path, "").command == tuple(words)
    with pytest.raises(InputError, match="&&"):
        drafted("-- python prep.py '&&' python train.py")
    # As in a README, of which a text has several lines.
    lines = {"command": "python train.py \\\n  --x 1 \\\r\n  --y 2\n"}
    asked = ("python", "train.py", "--x", "1", "--y", "2")
    assert Program.of(lines, tmp_path, "").command == asked


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("OMP_NUM_THREADS=1 A=2 python train.py", ["env", "A=2", "python", "train.py"]),
        ("env MKL_NUM_THREADS=1 GOMP_CPU_AFFINITY=0 python train.py", ["python", "train.py"]),
        ("mpirun -x OMP_NUM_THREADS=4 -n 2 python train.py", ["python", "train.py"]),
    ],
)
def test_an_assignment_of_threads_decides_no_configuration(command, left, drafted):
    found = drafted(f"-- {command}")
    [workload] = found.settings["workloads"].values()
    assert shlex.split(workload["command"]) == left
    assert any("_NUM_THREADS=" in each and "left out" in each for each in found.sentences)


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("taskset -c 0", ""),
        ("taskset -c 0 --", ""),
        ("A=1 /usr/bin/taskset -a 0x3", "env A=1 "),
        ("nice numactl -C 0 --membind 0", "nice "),
        ("numactl --cpunodebind=0 -l", ""),
        ("numactl -i all", "numactl -i all "),
        ("env -u B timeout -s KILL 9 taskset 3", "env -u B timeout -s KILL 9 "),
    ],
)
def test_a_binding_to_cores_decides_no_configuration(before, left, drafted, tmp_path):
    found = drafted(f"-- {before} python train.py --taskset -c 0")
    [workload] = found.settings["workloads"].values()
    assert workload["command"] == f"{left}python train.py --taskset -c 0"
    binds = not before.startswith("numactl -i")
    assert any("cores of its own" in each for each in found.sentences) == binds
    with pytest.raises(InputError, match="the same cores") if binds else nullcontext():
        Program.of({"command": f"env {before} python train.py"}, tmp_path, "")


@pytest.fixture
def two(tmp_path, monkeypatch, drafted):
    """Two interpreters: the first of the user's PATH, and one of an environment elsewhere."""
    for place in ("first", "venv/bin"):
        (tmp_path / place).mkdir(parents=True)
        python = tmp_path / place / "python"
        python.write_text(f"#!/bin/sh\necho {python}\n")
        python.chmod(0o755)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    monkeypatch.setenv(CALLERS_PATH, f"{tmp_path}/first:/usr/bin:/bin")
    # As this project puts its own first for itself.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path / "first" / "python", tmp_path / "venv" / "bin" / "python"


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "A=1 python train.py",
        "env -u B python train.py",
        "nice -n 5 python train.py",
        "nohup python train.py",
        "mpirun -x A=1 -n 2 python train.py",
    ],
)
def test_the_interpreter_is_the_users_whatever_stands_before_it(command, two, drafted):
    found = drafted(f"-- {command}")
    [workload] = found.settings["workloads"].values()
    assert workload["environment"]["python"] == str(two[0])
    assert any(str(two[0]) in each for each in found.sentences)


@pytest.mark.parametrize(
    "first",
    [
        "#!{python}",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''",
        "no first line",
    ],
)
def test_a_launcher_of_an_environment_keeps_its_interpreter(first, two, drafted, tmp_path):
    launcher = tmp_path / "venv" / "bin" / "torchrun"
    launcher.write_text(first.format(python=two[1]) + "\nimport torch\n")
    launcher.chmod(0o755)
    found = drafted(f"-- {launcher} --nproc-per-node 2 train.py")
    [workload] = found.settings["workloads"].values()
    assert workload["environment"]["python"] == str(two[1])
    assert workload["command"] == PYTHON and found.settings["configurations"][0]["strategy"] == (
        "torch-ddp"
    )
    for before in ("A=1", "nice -n 5"):
        found = drafted(f"-- {before} {launcher} --nproc-per-node 2 train.py")
        [workload] = found.settings["workloads"].values()
        assert workload["environment"]["python"] == str(two[1])
    chosen = drafted(f"-- poetry run {launcher} --nproc-per-node 2 train.py")
    [workload] = chosen.settings["workloads"].values()
    assert workload["command"] == f"poetry run {PYTHON}"
    # And where it is found by the PATH, or stays.
    kept = drafted(f"-- {launcher} --nproc-per-node {{ranks_of_node}} train.py")
    [workload] = kept.settings["workloads"].values()
    assert workload["environment"]["python"] == str(two[1])


def test_escalas_own_interpreter_is_told(drafted, monkeypatch):
    monkeypatch.setenv(CALLERS_PATH, f"{Path(sys.executable).parent}:/usr/bin:/bin")
    for command in ("python train.py", "A=1 python train.py", "./train.sh"):
        assert any("Escala's own" in each for each in drafted(f"-- {command}").sentences), command


def test_secrets_that_do_not_reach_a_program_are_named(drafted, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "x")
    assert any("HF_TOKEN" in each for each in drafted("-- python train.py").sentences)
    named = drafted("--variable HF_TOKEN -- python train.py")
    assert not any("HF_TOKEN" in each for each in named.sentences)


def test_files_that_a_trial_saw_are_files_and_data_are_named(drafted, tmp_path):
    for name in ("train.py", "a[1].json", *(f"images/{n}.png" for n in range(30))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(2**25)
    outside = tmp_path.parent / "settings.toml"
    outside.touch()
    found = drafted("-- python train.py")
    read = ["a[1].json", "large.bin", str(outside), *(f"images/{n}.png" for n in range(30))]
    said = list(add_files(found, read))
    [workload] = found.settings["workloads"].values()
    assert workload["files"] == sorted([str(outside), "a[[]1].json", "train.py"])
    assert Program.of(workload, tmp_path, "").files
    assert len(said) == 2 and "images" in said[1] and "large.bin" in said[1]
    # A later call knows of them before its trial, if they are there.
    Experiment(found.settings, file_of(found))
    file_of(found).write_text(text(found, "escala try"))
    later = drafted("-- python train.py")
    keep_files(later, file_of(later))
    assert later.settings == found.settings
    outside.unlink()
    later = drafted("-- python train.py")
    keep_files(later, file_of(later))
    [workload] = later.settings["workloads"].values()
    assert workload["files"] == ["a[[]1].json", "train.py"]
    file_of(found).write_text("workloads: 7")
    keep_files(later, file_of(later))
    assert later.settings["workloads"] == {"train": workload}


def test_a_program_that_chooses_the_interpreter_is_asked_for_it(drafted, tmp_path):
    selected = tmp_path / "bin" / "python"
    selected.parent.mkdir()
    selected.write_text(f"#!/bin/sh\necho {selected}\n")
    runner = tmp_path / "runner"
    runner.write_text(f'#!/bin/sh\n[ "$1" = run ] && shift 2 && exec {selected} "$@"\n')
    for program in (selected, runner):
        program.chmod(0o755)
    [workload] = drafted(f"-- {runner} run python train.py").settings["workloads"].values()
    assert workload["environment"]["python"] == str(selected)
    assert workload["command"] == f"{runner} run python train.py"


@pytest.mark.parametrize("option", ["--local-rank", "--local_rank"])
def test_the_number_of_a_process_has_the_name_that_the_script_reads(option, drafted, tmp_path):
    (tmp_path / "train.py").write_text(f"parser.add_argument('{option}', type=int)")
    found = drafted("-- python -m torch.distributed.launch --nproc_per_node=2 train.py")
    [workload] = found.settings["workloads"].values()
    assert workload["command"] == f"{PYTHON} {option}={{local_rank}}"


def test_a_number_of_ranks_in_the_command_is_for_its_own_launcher(drafted, tmp_path):
    source = "import torch.distributed as dist\ndist.init_process_group('gloo')"
    (tmp_path / "train.py").write_text(source)
    assert compared(drafted("-- ./start {ranks_of_node} train.py"))[0][0] == "own-launcher"
