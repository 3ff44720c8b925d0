"""What determines a measurement: the code of a run does, and additions to the project do not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from escala.experiment import Experiment
from escala.experiment.schema import omitted_values
from escala.probes import PROBES
from escala.record import key
from escala.strategies import STRATEGIES
from escala.strategies.knobs import (
    all_knobs,
    complete,
    of_model,
    of_strategies,
    of_workload,
    readable,
    significant,
)
from tests.conftest import CLASSES, KNOBS, copy_project
from tests.kinds import add_kind, add_reader, add_workload

#: Print what each run of an experiment is known by, in a process of the copy's own.
KNOWN_BY = """
import json
from escala.experiment import load
from escala.record import key
from escala.experiment import Experiment
from escala.experiment.schema import omitted_values
from escala.probes import PROBES

experiment = load("experiment.yaml")
print(json.dumps({
    run.file: [
        experiment.request(run), key.code_sha256(run.workload, run.strategy, run.instrument)
    ]
    for run in [*experiment.runs, *(run for p in PROBES for run in experiment.probed(p))]
}))
"""
#: Print the digest of the code of a run of two workloads.
CODE_OF = """
import json
from escala.record import key

print(json.dumps({name: key.code_sha256(name, "single", None) for name in ("virus-cnn", "dense")}))
"""
STRATEGY = """
from escala.strategies.single import Single

class Late(Single):
    name = "late"
"""
PROBE = """
from escala.probes.base import Probe, section

class Late(Probe):
    scope = "run"
    settings = section("Late.", enabled=False)
"""
KNOB = "knobs: {new: {description: A new one., type: integer, default: 7}}"
TABLE = "def rows(evidence):\n    return []\n"
FIGURE = "CATEGORY = 'Time'\n\ndef draw(tables):\n    return None\n"


#: The strategies of workloads that are trained by steps.
OF_STEPS = [name for name, each in STRATEGIES.items() if "steps" in each.trains_by]


def experiment(*strategies: str, variant: dict | None = None) -> dict:
    layouts = {name: "1x1" if STRATEGIES[name].only_one_rank else "1x2" for name in OF_STEPS}
    return {
        "experiment": "known",
        "title": "What runs are known by",
        "repeats": 1,
        "datasets": {
            "small": {
                "source": {"type": "simulated", "seed": 1, "records": dict.fromkeys(CLASSES, 9)},
                "classes": CLASSES,
                "length": 300,
                "split": {"seeds": [4]},
            }
        },
        "workloads": {"virus-cnn": {"epochs": 1}, "kmer-logreg": {}},
        "clocks": {"enabled": True},
        "energy": {"enabled": True, "repeats": 1},
        "collectives": {"enabled": True},
        "resources": {"enabled": True},
        "variants": {"plain": {}, "other": variant or {"compression": "fp16"}},
        "configurations": [
            {"strategy": name, "layouts": [layouts.get(name, "1x1")]}
            for name in (*OF_STEPS, *strategies)
        ],
    }


def known_by(project: Path, settings: dict) -> dict[str, list]:
    (project / "experiment.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return printed(project, KNOWN_BY)


def printed(project: Path, script: str) -> dict:
    """Return what a script prints in a process of the copy's own, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env={"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, path
    path.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("copy") / "project")


def test_additions_measure_nothing_again(project):
    """A strategy, probe, knob with a default, kind of dataset, workload, table and figure."""
    before = known_by(project, experiment())
    (project / "escala/strategies/late.py").write_text(STRATEGY)
    (project / "escala/probes/late.py").write_text(PROBE)
    (project / "escala/strategies/knobs/new.yaml").write_text(KNOB)
    workloads = project / "escala/workloads"
    shutil.copytree(workloads / "majority", workloads / "constant")
    add_kind(project)
    (project / "schemas/tables/more.schema.yaml").write_text("properties: {}\n")
    (project / "escala/report/tables/more.py").write_text(TABLE)
    (project / "escala/report/figures/more.py").write_text(FIGURE)
    last = {file.split("/")[-2].removesuffix(".rep1") for file in before}
    assert last == {"rep1", *(name for name, probe in PROBES.items() if "steps" in probe.kinds)}
    assert known_by(project, experiment()) == before
    probed = known_by(project, experiment() | {"late": {"enabled": True}})
    assert {file for file in probed if file not in before} == {
        file.replace("/rep1/", "/late/")
        for file in before
        if "virus-cnn" in file and "/rep1/" in file
    }
    found = known_by(project, experiment("late"))
    assert any("/late/1x1/" in file for file in found), "the new strategy is found by its file"
    again = known_by(project, experiment(variant={"new": 8}))
    plain, other = (
        "/virus-cnn/single/1x1/plain/native/rep1/",
        "/virus-cnn/single/1x1/other/native/rep1/",
    )
    knobs = {name: request["knobs"] for name, (request, _) in again.items()}
    assert [v for n, v in knobs.items() if plain in n] == [{}]
    assert [v for n, v in knobs.items() if other in n] == [{"new": 8}]


@pytest.mark.parametrize(
    ("file", "voided"),
    [
        ("escala/training/train.py", set(STRATEGIES)),
        ("escala/data/base.py", set(STRATEGIES)),
        ("escala/data/genomes/arrays.py", set()),
        ("escala/workloads/virus_cnn/workload.yaml", set(STRATEGIES)),
        ("escala/workloads/virus_cnn/lookup.py", set(STRATEGIES)),
        ("escala/workloads/virus_cnn/kernels/added.cc", set(STRATEGIES)),
        ("escala/strategies/mirrored.py", {"mirrored"}),
        ("escala/strategies/distribute.py", {"mirrored", "multiworker-mirrored"}),
        ("escala/strategies/horovod_mpi.py", {"horovod-mpi", "hybrid"}),
        ("escala/record/plan.py", set(STRATEGIES)),
        ("escala/record/supervise.py", set(STRATEGIES)),
        ("escala/record/collect.py", set()),
        ("escala/strategies/knobs/__init__.py", set()),
        ("escala/strategies/knobs/horovod.yaml", set()),
        ("escala/workloads/kmer_logreg/model.py", set()),
        ("escala/lab/network.py", set()),
        ("escala/report/tables/runs.py", set()),
        ("escala/experiment/matrix.py", set()),
    ],
)
def test_code_voids_the_runs_that_reach_it_and_no_others(tmp_path, file, voided):
    project = copy_project(tmp_path / "project")
    before = {name: _code(project, name) for name in STRATEGIES}
    (project / file).parent.mkdir(exist_ok=True)
    with open(project / file, "a") as code:
        code.write("\nadded: 1\n" if file.endswith(".yaml") else "\nADDED = 1\n")
    assert {name for name in STRATEGIES if _code(project, name) != before[name]} == voided


@pytest.mark.parametrize(
    ("file", "voided"),
    [
        ("escala/probes/clocks.py", {"clocks"}),
        ("escala/probes/energy.py", {"energy"}),
        ("escala/probes/_counters.py", {"energy"}),
        ("escala/probes/collectives.py", {"collectives"}),
        ("escala/probes/_threads.py", {"collectives"}),
        ("escala/probes/_turns.py", {"collectives"}),
        ("escala/probes/resources.py", {"resources"}),
        ("escala/probes/timeline.py", {"timeline"}),
        ("escala/probes/base.py", set(PROBES)),
        ("escala/probes/__init__.py", set()),
        ("escala/training/train.py", {None, *PROBES}),
    ],
)
def test_a_probe_voids_its_own_runs_and_no_others(tmp_path, file, voided):
    project = copy_project(tmp_path / "project")
    before = {probe: _code(project, "horovod-mpi", probe) for probe in (None, *PROBES)}
    with open(project / file, "a") as code:
        code.write("\nADDED = 1\n")
    after = {probe: _code(project, "horovod-mpi", probe) for probe in (None, *PROBES)}
    assert {probe for probe in before if after[probe] != before[probe]} == voided


def test_the_reader_of_a_kind_counts_for_workloads_of_that_kind_only(tmp_path):
    project = copy_project(tmp_path / "project")
    add_kind(project)
    add_workload(project)
    before = printed(project, CODE_OF)
    add_reader(project)
    after = printed(project, CODE_OF)
    assert after["virus-cnn"] == before["virus-cnn"]
    assert after["dense"] != before["dense"]


def _code(project: Path, strategy: str, probe: str | None = None) -> str:
    from escala.cache.sources import code_digest

    return code_digest(key.CODE, chosen=key.chosen("virus-cnn", strategy, probe), root=project)


def test_what_nobody_reads_is_no_part_of_a_request():
    knobs = {name: knob.omitted for name, knob in all_knobs().items()}
    knobs |= {"compression": "fp16", "communication": "ring", "convolution": "lookup-table"}
    knobs |= {"cores_per_process": 2, "eager_limit_mib": 1.0}
    own = {"cores_per_process": 2, "convolution": "lookup-table"}
    assert significant(knobs, "single", "virus-cnn") == own
    assert significant(knobs, "single", "mlp") == {"cores_per_process": 2}
    assert significant(knobs, "single", "kmer-logreg") == {"cores_per_process": 2}
    assert significant(knobs, "horovod-gloo", "virus-cnn") == own | {"compression": "fp16"}
    over_mpi = own | {"compression": "fp16", "eager_limit_mib": 1.0}
    assert significant(knobs, "horovod-mpi", "virus-cnn") == over_mpi
    found = significant(knobs, "multiworker-mirrored", "virus-cnn")
    assert found == own | {"communication": "ring"}
    with pytest.raises(KeyError):
        significant({"unheard_of": 1}, "single", "virus-cnn")


def test_a_plug_in_cannot_read_a_knob_that_is_not_declared_for_it():
    knobs = complete({"compression": "fp16"}, "virus-cnn")
    assert readable(knobs, "horovod-gloo")["compression"] == "fp16"
    assert not {"compression", "eager_limit_mib", "optimizer"} & set(readable(knobs, "single"))
    assert "eager_limit_mib" not in readable(knobs, "horovod-gloo")
    assert of_model(knobs, "virus-cnn") == {"convolution": "layers", "optimizer": "keras"}
    assert of_model(knobs, "mlp") == {}


def test_a_run_that_sets_nothing_has_every_knob_as_it_is_omitted():
    found = complete({}, "virus-cnn")
    declared = of_strategies() | of_workload("virus-cnn")
    assert found == {name: knob.omitted for name, knob in declared.items()} == KNOBS
    assert complete({"bind": False}, "mlp")["bind"] is False


def test_every_knob_has_a_default_that_its_schema_allows():
    for name, knob in all_knobs().items():
        for value in (knob.schema["default"], knob.omitted):
            assert not list(Draft202012Validator(knob.value).iter_errors(value)), name
        assert knob.strategies <= set(STRATEGIES)


def test_another_default_keeps_the_results_of_the_old_one(tmp_path):
    """The omitted value of a knob and of a setting stays when its default changes."""
    project = copy_project(tmp_path / "project")
    before = known_by(project, experiment())
    knob, setting = project / "escala/strategies/knobs/steps.yaml", "save_model"
    changed(knob, "    default: rows\n", "    default: ranks\n    omitted: rows\n")
    schema = project / "schemas/config.schema.yaml"
    declared = "`model.npz` and `model.json`.\n        type: boolean\n        default: "
    changed(schema, f"{declared}true", f"{declared}false\n        omitted: true")
    after = known_by(project, experiment())
    assert {name for name, (_, code) in after.items() if before[name][1] != code} == set()
    for name, (request, _) in before.items():
        assert request["knobs"].keys() <= {"compression"}
        if "virus-cnn/" in name:
            assert after[name][0]["knobs"]["weighting"] == "ranks"
            assert after[name][0]["training"][setting] is False
    old = experiment(variant={"compression": "fp16", "weighting": "rows"})
    old["variants"]["plain"] = {"weighting": "rows"}
    old["workloads"]["virus-cnn"][setting] = True
    assert known_by(project, old) == before


def test_a_run_omits_the_settings_that_it_does_not_set_and_is_given_them_all():
    found = Experiment(experiment() | {"clocks": {"enabled": False}}, "e.yaml")
    for run in found.runs:
        request, settings = found.request(run)["training"], found.settings_of(run)["training"]
        assert request == ({} if run.workload == "kmer-logreg" else {"epochs": 1})
        assert omitted_values(run.workload, request) | request == settings
