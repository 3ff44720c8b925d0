"""What determines a measurement: the code of a run does, and additions to the project do not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from escala.core import hardware
from escala.engines import environments
from escala.engines.tensorflow.strategies import Horovod
from escala.probes import PROBES
from escala.record import key
from escala.strategies import STRATEGIES
from escala.strategies.base import Numbered, Strategy
from escala.strategies.knobs import all_knobs, complete, model_knobs, read_by_run, read_by_strategy
from tests.calls import python
from tests.conftest import ROOT, copy_project
from tests.folders import add_kind, add_reader, add_workload
from tests.workflow.conftest import SIMULATED, experiment_of

#: Print what each run of an experiment is known by, in a process of the copy's own.
KNOWN_BY = """
import json
from escala.experiment import load
from escala.probes import PROBES
from escala.record import key

experiment = load("experiment.yaml")
print(json.dumps({
    run.file: [
        experiment.request(run), key.code_sha256(run.workload, run.strategy, run.instrument)
    ]
    for run in [*experiment.runs, *(run for p in PROBES for run in experiment.probe_runs(p))]
}))
"""
#: What the guide adds: a strategy, and a knob that it reads.
GUIDE = (ROOT / "docs/how-to/extend.md").read_text(encoding="utf-8")
STRATEGY, KNOB = (
    re.search(f"```{kind}\n(.*?)```", GUIDE, re.DOTALL)[1] for kind in ("python", "yaml")
)
PROBE = """
from escala.probes.base import Probe, section

class Late(Probe):
    settings = section("Late.", enabled=False)
"""
#: Print the code of a timing run of each strategy, of a run of each probe, and of other workloads:
#: as it is, and after a line was added to each of the files that are the arguments.
DIGESTS = """
import json
import sys
from pathlib import Path

from escala.probes import PROBES
from escala.record import key
from escala.strategies import STRATEGIES

runs = {name: ("virus-cnn", name, None) for name, each in STRATEGIES.items() if each.engine}
runs |= {name: ("virus-cnn", "horovod-mpi", name) for name in PROBES}
runs |= {"a fit": ("majority", "single", None), "a program": ("heat", "mpi", None)}
found = {None: {name: key.code_sha256(*run) for name, run in runs.items()}}
for file in map(Path, sys.argv[1:]):
    before = file.read_bytes()
    file.write_bytes(before + (b"\\nadded: 1\\n" if file.suffix == ".yaml" else b"\\nA = 1\\n"))
    found[str(file)] = {name: key.code_sha256(*run) for name, run in runs.items()}
    file.write_bytes(before)
print(json.dumps(found))
"""
TABLE = "def rows(evidence):\n    return []\n"
FIGURE = "CATEGORY = 'Time'\nCAPTION = 'More.'\n\ndef draw(tables):\n    return None\n"
#: The strategies of workloads that are trained by steps.
BY_STEPS = [name for name, strategy in STRATEGIES.items() if strategy.engine]
TRAINED = {*BY_STEPS}


def experiment(*strategies: str) -> dict:
    names = (*BY_STEPS, *strategies)
    several = {name for name in BY_STEPS if not STRATEGIES[name].layouts.one_rank}
    settings = experiment_of("known", SIMULATED) | {
        name: {"enabled": True} for name in ("collectives", "resources", "timeline")
    }
    return settings | {
        "clocks": {"enabled": True, "repeats": 1},
        "workloads": {"virus-cnn": {"epochs": 1}, "kmer-logreg": {}},
        "energy": {"enabled": True, "repeats": 1},
        "variants": {"plain": {}, "other": {"compression": "fp16"}},
        "configurations": [
            {"strategy": name, "layouts": ["1x2" if name in several else "1x1"]} for name in names
        ],
    }


def known_by(project: Path, settings: dict) -> dict[str, list]:
    (project / "experiment.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    return printed(project, KNOWN_BY)


def printed(project: Path, script: str, *arguments: str) -> dict:
    """Return what a script prints in a process of the copy's own, as JSON."""
    environment = {"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"}
    done = python("-c", script, *arguments, cwd=project, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_additions_measure_nothing_again(tmp_path):
    """A strategy, probe, kind of dataset, workload, table and figure."""
    project = copy_project(tmp_path / "project")
    before = known_by(project, experiment())
    with (project / "escala/engines/tensorflow/strategies.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{STRATEGY}")
    with (project / "escala/engines/tensorflow/knobs.yaml").open("a", encoding="utf-8") as knobs:
        knobs.write(KNOB)
    (project / "escala/probes/late.py").write_text(PROBE)
    workloads = project / "escala/workloads"
    shutil.copytree(workloads / "majority", workloads / "constant")
    add_kind(project)
    (project / "schemas/tables/more.schema.yaml").write_text("properties: {}\n")
    (project / "escala/report/tables/more.py").write_text(TABLE)
    (project / "escala/report/figures/more.py").write_text(FIGURE)
    last = {file.split("/")[-2].removesuffix(".rep1") for file in before}
    # No configuration is of PyTorch.
    assert last == {"rep1", *PROBES} - {"torch-trace"}
    found = known_by(project, experiment("horovod-quiet") | {"late": {"enabled": True}})
    assert {file: found[file] for file in before} == before
    added = {file for file in found if file not in before and "horovod-quiet" not in file}
    assert added == {
        file.replace("/rep1/", "/late/")
        for file in before
        if "virus-cnn" in file and "/rep1/" in file
    }
    reads = {file for file, (request, _) in found.items() if "precision" in request["knobs"]}
    assert reads and reads == {file for file in found if "/virus-cnn/horovod-quiet/1x1/" in file}
    # A kind counts for workloads of that kind only.
    add_workload(project)
    code_of = (
        "import json; from escala.record.key import code_sha256 as code\n"
        "print(json.dumps({name: code(name, 'single', None) for name in ('virus-cnn', 'dense')}))"
    )
    before = printed(project, code_of)
    add_reader(project)
    after = printed(project, code_of)
    assert after["virus-cnn"] == before["virus-cnn"] and after["dense"] != before["dense"]


OF_TENSORFLOW = {name for name in TRAINED if STRATEGIES[name].engine.startswith("tensorflow.")}
OF_TORCH = {name for name in TRAINED if STRATEGIES[name].engine.startswith("torch.")}
FIT, PROGRAM = "a fit", "a program"


def derived(base: type[Strategy]) -> set[str]:
    """Return the strategies that are a class or are derived from it."""
    return {name for name, each in STRATEGIES.items() if issubclass(each, base)}


#: The runs that a change of a file voids.
VOIDED = {
    "training/train.py": TRAINED | {*PROBES, FIT},
    "data/genomes/arrays.py": TRAINED | {*PROBES, FIT},
    "data/genomes/acquire/simulate.py": set(),
    "engines/tensorflow/layers.py": OF_TENSORFLOW | {*PROBES},
    "workloads/virus_cnn/workload.yaml": TRAINED | {*PROBES},
    "workloads/majority/model_fit.py": {FIT},
    "engines/tensorflow/fast/lookup.cc": OF_TENSORFLOW | {*PROBES},
    "engines/torch/ranks.py": OF_TORCH,
    "engines/tensorflow/strategies.py": set(),
    "engines/costs.py": TRAINED | {*PROBES},
    "probes/clocks.py": {"clocks"},
    "runtime/launch.py": set(),
    "report/tables/runs.py": set(),
}


def test_code_voids_the_runs_that_declare_it_and_no_others(tmp_path):
    project = copy_project(tmp_path / "project")
    found = printed(project, DIGESTS, *(f"escala/{file}" for file in VOIDED))
    before = found["null"]
    assert {*before} == TRAINED | {*PROBES, FIT, PROGRAM}
    for file, voided in VOIDED.items():
        after = found[f"escala/{file}"]
        assert {name for name in before if after[name] != before[name]} == voided, file


def test_the_entry_of_a_strategy_voids_its_runs_wherever_it_stands(tmp_path):
    """Base classes are a part of it; its words for people and its comments are none."""
    project = copy_project(tmp_path / "project")
    before = printed(project, DIGESTS)["null"]

    def voided(*changes: tuple[str, str, str]) -> set[str]:
        """Return the runs that changes void, each to the file of a name."""
        for name, old, new in changes:
            file = project / "escala" / name
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))
        after = printed(project, DIGESTS)["null"]
        return {name for name in before if after[name] != before[name]}

    tensorflow = "engines/tensorflow/strategies.py"
    assert not voided(
        (tensorflow, "class Horovod(", "# Elsewhere in its file.\n\n\nclass Horovod("),
        (tensorflow, 'title = "Horovod over MPI"', 'title = "Horovod"'),
        (tensorflow, "# With a filled", "# For with a filled"),
        ("engines/torch/strategies.py", "position = 22", "position = 2200"),
    )
    number = '"RANK": str(place.process)', '"RANK": str(place.process + 1)'
    numbered = derived(Numbered) & TRAINED
    assert voided(("strategies/base.py", *number)) == numbered
    autotune = '"HOROVOD_AUTOTUNE": "1"', '"HOROVOD_AUTOTUNE": "2"'
    assert voided((tensorflow, *autotune)) == {*derived(Horovod), *PROBES, *numbered}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("engines/torch/strategies.py", '"ddp-gloo"', '"single"',
         "escala/engines/torch/strategies.py: 'single': is also the name of another strategy"),
        ("engines/torch/strategies.py", '"torch.ranks.DDPRanks"', '"torch.joins.DDPRanks"',
         "and there is no joins.py of ranks. Remedy: write it in escala/engines/torch/"),
        ("strategies/knobs.yaml", "[OpenMPI]", "[OpenMPI, Later]",
         "knobs.yaml: yield_when_idle.read_by: 'Later': is the class of no strategy"),
    ],
)  # fmt: skip
def test_a_declaration_that_names_nothing_or_two_is_refused(tmp_path, file, old, new, message):
    project = copy_project(tmp_path / "project")
    declared = project / "escala" / file
    declared.write_text(declared.read_text().replace(old, new))
    environment = {"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"}
    script = "from escala.strategies import knobs; knobs.all_knobs()"
    done = python("-c", script, cwd=project, env=environment)
    assert done.returncode and message in done.stderr, done.stderr


def test_a_new_meaning_of_what_is_measured_voids_everything(monkeypatch):
    runs = [("virus-cnn", "single", None), ("majority", "single", None), ("heat", "mpi", "energy")]
    before = [key.code_sha256(*run) for run in runs]
    monkeypatch.setattr(key, "RECORD", key.RECORD + 1)
    assert not {*before} & {key.code_sha256(*run) for run in runs}


def test_machines_are_known_by_their_processor_and_not_by_its_name(monkeypatch):
    described = hardware.describe()
    before = key.machine()
    sold_as = described | {"cpu": "Another Name"}
    monkeypatch.setattr(hardware, "describe", lambda: dict(sold_as))
    assert key.machine() == before
    other = described | {"processor": described["processor"] | {"stepping": "99"}}
    monkeypatch.setattr(hardware, "describe", lambda: dict(other))
    assert key.machine() != before


def test_the_versions_of_an_engine_decide_its_own_runs(monkeypatch, request_for):
    found = environments.versions

    def digests(versions: dict[str, dict[str, str]]) -> tuple:
        monkeypatch.setattr(
            environments, "versions", lambda engine, _: versions.get(engine) or found(engine)
        )
        requests = (request_for(name, "1x1") for name in ("single", "torch-single"))
        return tuple(key.code(r["workload"], r["strategy"]) for r in requests)

    tensorflow, before = digests({"torch": {"python": "3.11", "torch": "2.13", "numpy": "2.4"}})
    unchanged, after = digests({"torch": {"python": "3.11", "torch": "2.14", "numpy": "2.4"}})
    assert tensorflow == unchanged and before != after
    assert before.versions == {"python": "3.11", "torch": "2.13", "numpy": "2.4"}
    assert {"keras", "openmpi", "horovod", "numpy"} < tensorflow.versions.keys()
    fit = key.code("majority", "single")
    assert "scikit-learn" in fit.versions and "keras" not in fit.versions
    # The compiler decides the runs for which it compiles.
    requests = {
        "TensorFlow": request_for("single", "1x1"),
        "PyTorch": request_for("torch-single", "1x1"),
        "compiled PyTorch": request_for("torch-single", "1x1", knobs={"torch_compile": True}),
    }
    monkeypatch.setattr(key, "_compiler", lambda: "g++ 12.2")
    before = {name: key.parameters(request) for name, request in requests.items()}
    monkeypatch.setattr(key, "_compiler", lambda: "g++ 14.1")
    changed = {name for name in requests if key.parameters(requests[name]) != before[name]}
    assert changed == {"TensorFlow", "compiled PyTorch"}


def test_a_request_holds_the_knobs_that_its_run_reads():
    knobs = {name: knob.default for name, knob in all_knobs().items()}
    mpi = set(read_by_run(knobs, "horovod-mpi", "virus-cnn"))
    assert mpi - set(read_by_run(knobs, "horovod-gloo", "virus-cnn")) >= {"eager_limit_mib"}
    assert mpi - set(read_by_run(knobs, "horovod-mpi", "mlp")) == {"convolution", "optimizer"}
    assert "communication" in read_by_run(knobs, "multiworker-mirrored", "virus-cnn")
    assert not {"communication", "compression"} & set(read_by_run(knobs, "single", "virus-cnn"))
    fit = set(read_by_run(knobs, "single", "kmer-logreg"))
    assert {"cores_per_process", "threads"} <= fit < mpi
    for name, knob in all_knobs().items():
        assert Draft202012Validator(knob.value_schema).is_valid(knob.default), name
    knobs = complete({"compression": "fp16"}, "virus-cnn")
    assert read_by_strategy(knobs, "horovod-gloo")["compression"] == "fp16"
    assert not {"compression", "eager_limit_mib", "optimizer"} & set(
        read_by_strategy(knobs, "single")
    )
    assert model_knobs(knobs, "virus-cnn") == {"convolution": "layers", "optimizer": "keras"}
    with pytest.raises(KeyError):
        read_by_run({"unheard_of": 1}, "single", "virus-cnn")
