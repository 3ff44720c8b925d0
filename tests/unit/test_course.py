"""The course: its pages, its experiments, and the arithmetic of its solutions."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from escala.analysis.cost_model import collectives
from escala.core.rates import bits_per_second
from escala.experiment import load
from escala.report import tables
from escala.report.tables import amdahl
from escala.report.tables.base import dtypes
from escala.runtime.layout import Layout
from escala.strategies import costs
from escala.training.shards import balanced_shares
from tests.conftest import ROOT
from tests.unit.fixtures_runs import FakeExperiment

COURSE = ROOT / "docs" / "course"
EXERCISES = sorted(COURSE.glob("[0-9]-*.md"))
SOLUTIONS = [COURSE / "solutions" / path.name for path in EXERCISES]
EXPERIMENTS = sorted((ROOT / "experiments" / "course").glob("*.yaml"))
WEIGHTS = 264_941
#: The share of a rate that iperf3 measures in the lab: docs/how-to/lab.md.
OF_RATE = 0.956
#: Of a sum in shared memory, as the course tells it: docs/decisions/033-sharded-update.md.
BYTES_PER_SECOND = 8.3e6 / 3.5e-3


def blocks(page: Path, language: str = "bash") -> str:
    """Return the blocks of a page in a language, one after the other."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return "".join(text for name, text in found if name == language)


def computed(page: Path) -> dict[str, float]:
    """Return the results of the lines `name = expression = value` of a page, and check each.

    An expression may use the names before it, with their exact values.
    """
    values: dict[str, float] = {}
    for line in blocks(page, "text").splitlines():
        name, expression, printed = line.strip().split(" = ")
        values[name] = eval(expression, {"__builtins__": {}, "max": max}, values)
        decimals = len(printed.partition(".")[2])
        assert values[name] == pytest.approx(float(printed), abs=0.501 * 10**-decimals), line
    assert values, page
    return values


def solution(number: int) -> dict[str, float]:
    [page] = [path for path in SOLUTIONS if path.name.startswith(f"{number}-")]
    return computed(page)


def of_course(name: str):
    return load(ROOT / "experiments" / "course" / f"course-{name}.yaml")


def rows(name: str) -> tuple[int, int]:
    """Return the training rows and the test rows of an experiment of genomes, one dataset."""
    [settings] = of_course(name).datasets.values()
    genomes = sum(settings["source"]["records"].values())
    test = round(genomes * settings["split"]["test_fraction"])
    of_each = settings["window"]["per_genome"] if settings["window"]["method"] == "random" else 1
    return (genomes - test) * of_each, test * of_each


def test_every_exercise_has_the_same_parts_and_a_solution():
    assert len(EXERCISES) == 6
    index = (COURSE / "index.md").read_text()
    for exercise, solved in zip(EXERCISES, SOLUTIONS, strict=True):
        text = exercise.read_text()
        parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert parts == ["What you learn", "Before", "Predict", "Measure", "Compare"]
        assert f"[Solution](solutions/{exercise.name})" in text
        parts = re.findall(r"^## (.*)$", solved.read_text(), re.MULTILINE)
        assert parts == ["Prediction", "Measurement", "Why they differ"]
        assert f"]({exercise.name})" in index
        # A solution measures as its exercise does.
        assert set(measuring(solved)) <= set(measuring(exercise))


def measuring(page: Path) -> list[str]:
    """Return the commands of a page that call Escala, each as one line."""
    joined = blocks(page).replace("\\\n", " ")
    commands = re.findall(r"^uv run (?:snakemake|python scripts/).*$", joined, re.MULTILINE)
    return [" ".join(command.split()) for command in commands]


def test_every_experiment_belongs_to_one_exercise_and_is_named_by_its_commands():
    named = [
        set(re.findall(r"experiments/course/[\w-]+\.yaml", " ".join(measuring(page))))
        for page in EXERCISES
    ]
    assert all(len(files) == 1 for files in named)
    assert sorted(set().union(*named)) == [str(path.relative_to(ROOT)) for path in EXPERIMENTS]


@pytest.mark.parametrize("page", EXERCISES, ids=lambda path: path.stem)
def test_tables_and_runs_that_a_page_names_exist(page):
    text = page.read_text()
    experiment = load(ROOT / re.search(r"experiments/course/[\w-]+\.yaml", text)[0])
    for name in re.findall(r"results/([\w-]+)/", text):
        assert name == experiment.name
    for table, columns in re.findall(r"tables/(\w+)\.csv'\)\n(.*?)\"$", text, re.M | re.S):
        # A value that a column is compared with is no column.
        names = re.sub(r"[!=]= '[^']*'", "", columns)
        assert set(re.findall(r"'(\w+)'", names)) <= set(dtypes(table))
    for path in re.findall(r"runs/([^*\s]*)/(?:run|timeline)\.json", text):
        *configuration, probe = path.split("/")
        assert experiment.run(*configuration, None, probe)


@pytest.mark.parametrize(
    "page", [COURSE / "index.md", *EXERCISES, *SOLUTIONS], ids=lambda path: str(path.name)
)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_amdahl():
    found = solution(1)
    train, test = rows("amdahl")
    [workload] = of_course("amdahl").settings["workloads"].values()
    assert (train, test) == (640, 640)
    assert found["training"] == 3 * train * workload["epochs"]
    assert found["evaluation"] == test * (workload["epochs"] + 1)
    serial = found["s_whole"]
    assert found["ratio_whole"] == pytest.approx(amdahl.amdahl(serial, 2))
    assert amdahl.karp_flatt(found["speedup_whole"], 2) == pytest.approx(serial)
    assert found["speedup_divided"] == 1 / amdahl.amdahl(0, 2)
    for processes in (16, 1000):
        expected = 1 / amdahl.amdahl(serial, processes)
        assert found[f"speedup_whole_{processes}"] == pytest.approx(expected)
    of_training = found["serial_fraction_training"]
    assert of_training == pytest.approx(amdahl.karp_flatt(1 / 0.61, 2))
    assert found["speedup_training_16"] == pytest.approx(1 / amdahl.amdahl(of_training, 16))


def test_the_weights_that_the_exercises_count():
    from escala.workloads.virus_cnn.model import network

    short, long = network(120, 5), network(1000, 5)
    assert (short.count_params(), long.count_params()) == (WEIGHTS, 2_067_181)
    largest = [max((w.shape for w in model.weights), key=np.prod) for model in (short, long)]
    assert largest == [(1856, 128), (15_936, 128)]


def test_bandwidth():
    found = solution(2)
    assert rows("bandwidth")[0] == 20 * 64
    for ranks, name in ((2, "bytes"), (4, "bytes_of_4")):
        gradient = costs.Product(WEIGHTS, 1, 64)
        assert found[name] == costs.received_bytes(costs.ALLREDUCE, gradient, ranks)
        counted = collectives.traffic("mpi", "allreduce", Layout.parse(f"{ranks}x1"), 4 * WEIGHTS)
        assert found[name] == pytest.approx(counted.link_bytes)
    # The time of one process is 12 ms.
    for network, settings in of_course("bandwidth").settings["networks"].items():
        if settings["rate"] is None:
            continue
        rate = OF_RATE * bits_per_second(settings["rate"]) / 8
        assert found[f"link_{network}"] == pytest.approx(found["bytes"] / rate)
        assert found[f"step_{network}"] == pytest.approx(0.006 + found["bytes"] / rate)
    needed = found["bytes"] / (OF_RATE * found["needed_rate"] / 8)
    assert 0.006 + needed == pytest.approx(0.012)
    layer = costs.Product(1856, 128, 64)
    for exchange, name in ((costs.ALLREDUCE, "summed"), (costs.FACTORS, "factors")):
        assert 4 * found[f"numbers_{name}"] == costs.received_bytes(exchange, layer, 2)


def test_batch():
    found = solution(3)
    line = np.polynomial.Polynomial.fit([32, 64], [13.3, 19.0], 1).convert()
    assert (found["a"], found["b"]) == pytest.approx(tuple(line.coef))
    of_a_sum = 8.3e6 / BYTES_PER_SECOND * 1e3
    train = rows("batch")[0]
    for variant, settings in of_course("batch").settings["variants"].items():
        batch = settings["batch"]["rows"]
        assert variant == f"rows-{batch}"
        one, two = line(batch), line(batch / 2) + of_a_sum
        assert found[f"epoch_{batch}"] == pytest.approx(train / batch * one)
        assert found[f"T2_{batch}"] == pytest.approx(two)
        assert found[f"ratio_{batch}"] == pytest.approx(two / one)
    enough = found["rows_that_pay"]
    assert line(enough / 2) + of_a_sum == pytest.approx(line(enough))
    assert found["same_updates"] == pytest.approx(found["ratio_64"])
    assert found["reported"] == pytest.approx(found["T2_64"] / 13.3 / 2)


def test_stragglers():
    """The shares are those of `hybrid` for ranks whose step takes no time without rows."""
    found = solution(4)
    seconds = np.array([[8.0, 16.0], [16.0, 32.0]])
    shares = balanced_shares([8, 16], seconds, 64)
    assert (found["share_0"], found["share_1"]) == pytest.approx(tuple(shares))
    speeds = 8 / seconds[:, 0]
    assert found["by_speed"] == pytest.approx(max(shares / (speeds / speeds[0])))
    assert found["half_speed"] == found["busy"] == max(0.5 / (speeds / speeds[0]))
    variants = of_course("straggler").settings["variants"]
    assert variants["half-speed"]["slowdown"] == [1, 2]
    assert variants["busy"]["busy_neighbours"] == [1]


def test_energy(tmp_path):
    """The table has the ratios of the solution if the runs have the times of the prediction."""
    found = solution(5)
    made = FakeExperiment(tmp_path).add_dataset()
    made.add("single", "1x1", 10.0, repeats=1).add("horovod-mpi", "1x2", 6.1, repeats=1)
    settings = of_course("energy").probe_settings["energy"]
    watts = settings["power_model"]
    assert watts == {"node_watts": 60, "core_watts": 8}
    [of_all, above] = [
        ratios_of_energy(made, settings).loc["horovod-mpi", basis]
        for basis in ("all devices", "above idle")
    ]
    assert of_all["energy_ratio"] == pytest.approx(found["energy_ratio"], rel=0.02)
    assert of_all["edp_ratio"] == pytest.approx(found["edp_ratio"], rel=0.04)
    assert above["energy_ratio"] == pytest.approx(found["above_idle_ratio"], rel=0.02)
    equal = settings | {"power_model": watts | {"node_watts": found["equal_idle_watts"]}}
    same = ratios_of_energy(made, equal).loc["horovod-mpi", "all devices"]
    assert same["energy_ratio"] == pytest.approx(1, rel=0.02)
    with_grams = ratios_of_energy(made, settings | {"grams_co2_per_kwh": 200})
    row = with_grams.loc["single", "all devices"]
    grams = row["joules_per_epoch"] / found["joules_of_1_gram"]
    assert row["grams_co2_per_epoch"] == pytest.approx(grams)


def ratios_of_energy(of: FakeExperiment, settings: dict):
    found = tables.tables(
        of.runs, of.dataset_files, of.class_files, [], probe_settings={"energy": settings}
    )
    return found["energy"].set_index(["strategy", "basis"])


def test_timeline():
    found = solution(6)
    assert found["kernel_bytes"] == 4 * costs.Product(15_936, 128, 64).weights
    expected = found["kernel_bytes"] / BYTES_PER_SECOND * 1e3
    assert found["kernel_ms"] == pytest.approx(expected)
    settings = yaml.safe_load(EXPERIMENTS[-1].read_text())
    assert settings["variants"]["half-speed"] == {"slowdown": [1, 2]}
    # Every step of the only epoch is captured.
    batch = settings["workloads"]["virus-cnn"]["batch"]["rows"]
    assert settings["timeline"]["steps"] * batch == rows("timeline")[0]
