"""Workloads and kinds of datasets in folders outside the project."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
import yaml

from escala.core import plugins
from escala.core.errors import InputError
from escala.data import KINDS
from escala.data.base import output_shape, specs
from escala.data.settings import derive
from escala.engines import environments
from escala.experiment import Experiment, folders
from escala.predict.model import load
from escala.programs.program import Program
from escala.record import key
from escala.strategies.knobs import complete, model_knobs
from escala.workloads import WORKLOADS, models, workload
from tests.conftest import CLASSES
from tests.folders import changed, copied
from tests.programs import experiment_on
from tests.workflow.conftest import SIMULATED, experiment_of


def experiment(path: object, name: str = "mine", **settings: object) -> Experiment:
    """An experiment with a workload of its own and one of the project's."""
    workloads = {name: {"path": path, "epochs": 1, **settings}, "virus-cnn": {"epochs": 1}}
    written = experiment_of("own", SIMULATED, workloads=workloads, variants={"plain": {}})
    return Experiment(written, "e.yaml")


def code_of(workload: str) -> dict[str, str]:
    return key.code(workload, "single").files()


def forget(name: str = "mine") -> None:
    """Let a name stand for another folder, as in another call."""
    WORKLOADS.pop(name, None)
    os.environ[plugins.VARIABLE] = "{}"


@pytest.mark.parametrize("written", ["$OWN/my_workload", "~/my_workload", "my_workload"])
def test_a_folder_is_named_by_any_path_and_found_without_its_code(
    own_workload, monkeypatch, written
):
    monkeypatch.setenv("OWN", str(own_workload.parent))
    monkeypatch.setenv("HOME", str(own_workload.parent))
    monkeypatch.chdir(own_workload.parent)
    found = experiment(written)
    assert WORKLOADS["mine"].folder == own_workload
    assert {run.workload for run in found.runs} == {"mine", "virus-cnn"}
    training = found.settings_of(next(r for r in found.runs if r.workload == "mine"))["training"]
    assert training["words"] == 16 and training["batch"], "every default is filled in"
    assert "path" not in training
    assert plugins.package("workloads", "mine") not in sys.modules
    with pytest.raises(InputError, match=r"workloads\.mine\.word: 3: unknown key.*mean words\?"):
        experiment(written, word=3)


#: Knobs that are declared wrongly.
KNOBS = {
    "shard: {description: d., type: integer, default: 1}": "a knob of other values elsewhere",
    "batch: {description: d., type: integer, default: 1}": "is already a setting of every",
    "width: {description: d., type: integer}": "default",
    "width: {description: d., type: integer, default: many}": "default",
}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("workload.yaml", "data_kind: genomes\n", "", "yaml: data_kind: the key is missing"),
        ("workload.yaml", "data_kind", "trained_by: step\ndata_kind", "use one of steps, fit"),
        ("workload.yaml", "additionalProperties: false", "additionalProperties: true", "misspelt"),
        ("workload.yaml", ", default: 16", "", "is not required and has no default"),
        ("workload.yaml", "    words:", "    path:", "names the folder of the workload"),
        ("workload.yaml", "default: 16", "default: many", "words.default: 'many': is not what"),
        ("letters.py", "LETTERS = 5", "LETTERS = = 5", "letters.py, line 5"),
        *(("workload.yaml", "data_kind", f"knobs: {{{knob}}}\ndata_kind", message)
          for knob, message in KNOBS.items()),
    ],
)  # fmt: skip
def test_a_folder_that_declares_wrongly_is_refused_with_its_file(
    own_workload, file, old, new, message
):
    changed(own_workload / file, old, new)
    with pytest.raises(InputError) as refused:
        experiment(str(own_workload))
    assert str(own_workload / file) in str(refused.value) and message in str(refused.value)


def test_the_declarations_of_the_project_are_what_those_of_users_have_to_be():
    for part, package in ((folders.KINDS, "escala.data"), (folders.WORKLOADS, "escala.workloads")):
        known = [each.folder for each in part.known.values() if each.package.startswith(package)]
        assert len(known) > 5
        for folder in known:
            folders.check_declaration(part, folder)


def test_a_workload_declares_knobs_of_its_own(own_workload):
    declared = "knobs:\n  width: {description: Units., type: integer, minimum: 1, default: 4}\n"
    with open(own_workload / "workload.yaml", "a") as file:
        file.write(declared)
    written = experiment(str(own_workload)).settings
    found = Experiment(written | {"variants": {"plain": {}, "wide": {"width": 8}}}, "e.yaml")
    knobs = {(r.workload, r.variant): found.request(r)["knobs"] for r in found.runs}
    assert (knobs["mine", "wide"]["width"], knobs["mine", "plain"]["width"]) == (8, 4)
    assert "width" not in knobs["virus-cnn", "wide"], "another workload does not read it"
    assert model_knobs(complete({}, "mine"), "mine") == {"width": 4}
    with pytest.raises(InputError, match=r"variants.wide.width: 0: is too small"):
        Experiment(written | {"variants": {"wide": {"width": 0}}}, "e.yaml")


def test_a_folder_that_is_no_workload_is_refused_with_its_key(own_workload, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(own_workload, other)
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    shutil.copy(own_workload / "workload.yaml", tmp_path / "half")
    both, torch = (shutil.copytree(own_workload, tmp_path / name) for name in ("both", "torch"))
    shutil.copy(own_workload / "model.py", both / "model_fit.py")
    (torch / "model.py").rename(torch / "model_torch.py")
    experiment(str(own_workload))
    for path, name, message in [
        (str(tmp_path / "no"), "new", f"there is no folder {tmp_path / 'no'}"),
        ("$NO_SUCH_FOLDER/x", "new", "the environment variable NO_SUCH_FOLDER is not set"),
        (str(tmp_path / "empty"), "new", "holds no workload.yaml"),
        (str(tmp_path / "half"), "new", "holds no model.py or model_torch.py"),
        (str(own_workload), "../new", "not allowed as a name"),
        (str(other), "mine", f"is the name of the workload in {own_workload} already"),
        (str(other), "majority", "is the name of the workload in"),
        (str(both), "new", "stands beside model.py"),
        (str(torch), "new", "has no model.py"),
    ]:
        with pytest.raises(InputError) as refused:
            experiment(path, name)
        assert message in str(refused.value)
        assert re.match(rf"e\.yaml: (workloads|configurations)\.|{both}", str(refused.value))
    assert WORKLOADS["mine"].folder == own_workload
    experiment(str(own_workload / ".." / own_workload.name))


def test_a_run_is_known_by_the_content_of_its_folder_wherever_that_stands(own_workload):
    added = ("kernels/sum.cc", "deep/er/__init__.py", "no module.py", ".hidden", "__pycache__/x")
    for file in added:
        (own_workload / file).parent.mkdir(parents=True, exist_ok=True)
        (own_workload / file).write_text("A = 1\n")
    found = experiment(str(own_workload))
    before, others = code_of("mine"), code_of("virus-cnn")
    own = {name for name in before if name.startswith("workload/")}
    assert len(own) == 6
    requests = [found.request(run) for run in found.runs]

    for file, more in [
        ("deep/er/__init__.py", "MORE = 1\n"),
        ("workload.yaml", "  # a comment\n  note: [a, b]\n"),
        ("kernels/sum.cc", "int more;\n"),
        ("new.txt", "new"),
    ]:
        path = own_workload / file
        text = path.read_text() if path.exists() else None
        path.write_text((text or "") + more)
        assert code_of("mine") != before, file
        assert code_of("virus-cnn") == others, file
        path.unlink()
        if text is not None:
            path.write_text(text)
    for file in (".hidden", "__pycache__/x"):
        (own_workload / file).write_text("y")
    assert code_of("mine") == before

    versions = key.code("mine", "single").versions
    moved = own_workload.rename(own_workload.parent / "elsewhere")
    forget()
    again = experiment(str(moved))
    assert code_of("mine") == before
    assert [again.request(run) for run in again.runs] == requests
    # Versions of the packages that it declares count.
    with (moved / "workload.yaml").open("a") as declaration:
        declaration.write("packages: [biopython]\n")
    forget()
    experiment(str(moved))
    assert key.code("mine", "single").versions == versions | {
        "biopython": environments.versions("tensorflow", ["biopython"])["biopython"]
    }


def test_a_kept_model_takes_its_code_from_the_experiment_and_never_from_its_file(
    own_workload, tmp_path
):
    import tensorflow as tf

    experiment(str(own_workload))
    other = shutil.copytree(own_workload, tmp_path / "other")
    trap = tmp_path / "ran"
    (other / "model.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
    data = {
        "inputs": [{"name": "codes", "shape": [300], "dtype": "uint8", "file": "{side}.npy"}],
        "targets": {"name": "labels", "shape": [], "dtype": "int64", "file": "{side}_l.npy"},
        "rows": {"train": 1, "test": 1},
        "classes": CLASSES,
        "sha256": {},
        "path": str(other),  # Nothing reads it.
    }
    settings, run = {"words": 4, "path": str(other)}, tmp_path / "run"
    run.mkdir()
    tf.keras.utils.set_random_seed(1)
    model = workload("mine").build(specs(data), output_shape(data), settings, {})
    np.savez(run / models.WEIGHTS, *model.get_weights())
    models.write_description(run, "mine", {}, settings, data, "0")
    codes = np.random.default_rng(0).integers(5, size=(3, 300)).astype(np.uint8)
    np.testing.assert_allclose(load(run).probabilities(codes), model(codes), rtol=1e-5)
    assert not trap.exists()
    forget()
    with pytest.raises(InputError, match=r"mine.*is not a workload here.*`path`"):
        load(run)


def test_a_kind_in_a_folder_of_its_own_is_checked_and_known_by_its_content(
    own_workload, tmp_path, registries
):
    copied(tmp_path, "blobs")
    folder = (tmp_path / "blobs").rename(tmp_path / "points")
    changed(own_workload / "workload.yaml", "data_kind: genomes", "data_kind: blobs")

    def read(**settings: object) -> Experiment:
        written = yaml.safe_load((tmp_path / "mine.yaml").read_text())
        written["kinds"] = {"blobs": {"path": str(folder)}}
        plane = {"kind": "blobs", "points": 40, "split": {"seeds": [4]}} | settings
        written["workloads"]["words"]["path"] = str(own_workload)
        return Experiment(written | {"datasets": {"plane": plane}}, "e.yaml")

    plane = read().datasets["plane"]
    assert derive("preparation", plane) == {"split": {"test_fraction": 0.25}}
    assert derive("acquisition", plane) == {"points": 40, "spread": 0.5}
    with pytest.raises(InputError, match=r"datasets.plane.spred.*did you mean spread"):
        read(spred=1)
    with pytest.raises(InputError, match=r"datasets.plane.points: 2: leaves no test rows"):
        read(points=2)
    with pytest.raises(InputError, match=r"kinds.genomes.path: 'genomes': is the name of"):
        Experiment({"kinds": {"genomes": {"path": str(folder)}}}, "e.yaml")

    def known() -> tuple[dict, dict]:
        return KINDS["blobs"].code().files(), code_of("words"), code_of("virus-cnn")

    before = known()
    (folder / "draw.cc").write_text("int more;\n")
    after = known()
    assert after[0] != before[0], "its arrays are made again"
    assert after[1] != before[1], "a reader of the kind is among its files"
    assert after[2] == before[2], "other kinds stay"
    changed(folder / "kind.yaml", "points:\n      role: acquired", "points:\n      role: aquired")
    with pytest.raises(InputError, match=r"role: 'aquired'"):
        read()
    changed(folder / "kind.yaml", "role: aquired", "role: path")
    with pytest.raises(InputError, match=r"properties\.points\.type"):
        read()
    changed(folder / "kind.yaml", "role: path", "role: acquired")
    changed(folder / "kind.yaml", "test_fraction:\n", "test_fraction:\n          role: audit\n")
    with pytest.raises(InputError, match=r"properties\.split\.properties\.test_fraction\.role"):
        read()
    changed(folder / "kind.yaml", "          role: audit\n", "")
    changed(folder / "__init__.py", "def check", "def checks")
    del sys.modules[KINDS["blobs"].package]
    with pytest.raises(InputError, match=r"__init__\.py: 'check': is not a function in it"):
        read()


def test_a_variant_replaces_what_it_names_of_a_program(tmp_path, monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, "{}")
    monkeypatch.setenv("ESCALA_TORCH", sys.executable)
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        (folder / "train.sh").write_text(f"echo {folder.name}")
    program = {"command": "sh train.sh 1", "directory": str(tmp_path), "files": ["train.sh"]}
    variants = {
        "plain": {},
        "command": {"command": "sh train.sh {data.more}"},
        "directory": {"directory": str(other)},
        "environment": {"environment": {"engine": "torch"}},
    }
    settings = experiment_on("own", {"train": program}, variants=variants)
    with pytest.raises(InputError, match=r"variants\.command\.command.*data\.more.*no such path"):
        Experiment(settings, "e.yaml")
    variants["command"]["command"] = "sh train.sh 2"
    runs = {run.variant: run for run in Experiment(settings, "e.yaml").runs}
    programs = {name: run.declared.workload.program() for name, run in runs.items()}
    assert programs["command"].command == ("sh", "train.sh", "2")
    assert programs["environment"].python == sys.executable
    # All else is as the workload has it, and where a program is decides nothing.
    requests = {name: Experiment(settings, "e.yaml").request(run) for name, run in runs.items()}
    first = requests["plain"]["program"]
    assert requests["command"]["program"] == first | {"command": ["sh", "train.sh", "2"]}
    content = requests["directory"]["program"]
    assert content["files"] != first["files"]
    assert content | {"files": first["files"]} == first
    assert requests["directory"]["start"]["program"]["directory"] == str(other)
    assert {json.dumps(each["knobs"]) for each in requests.values()} == {
        json.dumps(requests["plain"]["knobs"])
    }
    variants["command"]["command"] = "sh 'train.sh"
    with pytest.raises(InputError, match=r"e\.yaml: variants\.command\.command.*words"):
        Experiment(settings, "e.yaml")


def test_a_variant_replaces_nothing_of_what_is_no_program():
    settings = experiment_of("own", SIMULATED, variants={"plain": {"command": "sh one.sh"}})
    with pytest.raises(InputError, match=r"variants\.plain\.command.*is of a program"):
        Experiment(settings, "e.yaml")


def test_programs_of_two_experiments_may_have_one_name_and_ask_for_an_engines_interpreter(
    own_workload, registries, monkeypatch
):
    def declared(command: str, environment: dict | None = None, **workloads: dict) -> Experiment:
        train = {"command": command, "data_kind": "genomes", "epochs": 1, "batch": {"rows": 8}}
        train |= {"environment": environment or {}}
        changes = {"variants": {"plain": {}}, "workloads": {"train": train} | workloads}
        configurations = [{"strategy": "processes", "layouts": ["1x2"]}]
        settings = experiment_of("own", SIMULATED, configurations=configurations, **changes)
        return Experiment(settings, "e.yaml")

    def program(*words: object) -> Program:
        return declared(*words).runs[0].declared.workload.program()

    both = declared("sh one.sh"), declared("sh two.sh")
    words = [e.runs[0].declared.workload.program().command for e in both]
    assert words == [("sh", "one.sh"), ("sh", "two.sh")]
    with pytest.raises(InputError, match=r"mlp.*is the name of another workload already"):
        declared("sh one.sh", mlp={"command": "sh three.sh"})
    with pytest.raises(InputError, match=r"train.*is the name of the workload in"):
        folders.add(folders.WORKLOADS, "train", str(own_workload), "workloads.train")
    assert program("sh one.sh").python is None
    monkeypatch.setenv("ESCALA_TORCH", sys.executable)
    assert program("python -c ''", {"engine": "torch"}).python == sys.executable
    for environment, reason in (
        ({"engine": "torch", "python": sys.executable}, "name one"),
        ({"engine": "mxnet"}, r"environment\.engine.*torch"),
    ):
        with pytest.raises(InputError, match=reason):
            declared("python -c ''", environment)


def test_a_program_in_a_folder_of_its_own_runs_there(tmp_path):
    (tmp_path / "workload.yaml").write_text("command: python train.py\nfiles: [train.py]\n")
    (tmp_path / "train.py").write_text("pass")
    found = folders.add(folders.WORKLOADS, "mine", str(tmp_path), "workloads.mine")
    assert found.is_program and found.program().directory == tmp_path
