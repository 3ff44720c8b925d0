"""Which measurements may be set against each other, and what is said of those that may not."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import MACHINE, FakeExperiment, rewritten
from pages import epoch_rows, table_of, tabled

from escala.analysis import comparable
from escala.analysis.comparable import match_runs, refusal
from escala.analysis.measurements import read_run
from escala.core import hardware
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.record import key
from escala.record.schema import FORMAT, read_result, validate_run
from escala.runtime.layout import Layout

pytestmark = pytest.mark.usefixtures("few_resamples")

MIB = 2**20


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, dict]:
    """One run of one process, and one over two nodes."""
    experiment = FakeExperiment(tmp_path_factory.mktemp("runs")).add_dataset()
    experiment.add("single", "1x1", 5.0, repeats=1).add("horovod-mpi", "2x1", 4.0, repeats=1)
    single, across = map(read_result, map(Path, experiment.runs))
    across["ranks"] |= {"hosts": ["n1", "n2"], "machines": [MACHINE, MACHINE], "interface": "eth0"}
    across["network"] = "slow"
    across["link"] = {
        "interface": None, "rate": "100mbit", "mbit_per_second": 95.0, "latency_ms": 0.1,
    }  # fmt: skip
    validate_run(across)
    return {"single": single, "across": across}


def changed(run: dict, path: str, value: object) -> dict:
    """Return a copy of a run with another value at a path such as `link.rate`."""
    run = copy.deepcopy(run)
    *parents, last = path.split(".")
    inner = run
    for part in parents:
        inner = inner[int(part) if part.isdigit() else part]
    inner[last] = value
    return run


def test_lines_that_come_in_multiples_may_be_those_of_each_process():
    def told(layout: str, epochs: int, strategy: str = "own-launcher", by: str = "output") -> dict:
        training = {"epochs_done": epochs}
        about = {"strategy": strategy, "layout": Layout.parse(layout), "training": training}
        return about | {"program": {"known_by": by}}

    one, two = told("1x1", 4), told("1x2", 8)
    assert "4 times and 8 times" in comparable.other_lines(one, two)
    assert comparable.other_lines(two, one) == comparable.other_lines(one, two)
    for other in (
        told("1x2", 4), told("1x2", 7), told("2x1", 8), told("1x2", 8, by="hook"),
        told("1x2", 8, "torch-ddp"),
    ):  # fmt: skip
        assert comparable.other_lines(one, other) is None


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("link.rate", "1gbit", "another rate of the network slow: 100mbit and 1gbit"),
        ("ranks.interface", "ib0", "another interface of the network slow: eth0 and ib0"),
        ("link.mbit_per_second", 80.0, "links of different rates: 95 and 80 Mbit/s measured"),
        ("ranks.machines.1.cpu", "Another CPU", "different kinds of machines: 2 × Example CPU"),
        ("ranks.machines.1.gpus", ["Model A"], "2 cores, 8 GiB, Model A"),
        ("ranks.machines.1.cpu_quota", 1.5, "2 cores, 8 GiB, a quota of 1.5 cores"),
        ("ranks.machines.1.memory_bytes", 16 * 2**30, "2 cores, 16 GiB"),
        ("ranks.machines.1.cores_available", 1, "other cores available"),
        ("data.sha256", {}, "other data"),
        ("training.settings", {"epochs": 3}, "other settings"),
        ("knobs.dense_exchange", "factors", "other knobs"),
        ("versions", {}, "other versions"),
        ("source_sha256", "1" * 64, "other source"),
        ("environment", {"variables": {"TF_ENABLE_ONEDNN_OPTS": "0"}, "files": {}},
         "another environment: TF_ENABLE_ONEDNN_OPTS"),
        # Names of nodes, what is rounded, what is not known and results make no difference.
        ("ranks.hosts", ["n7", "n8"], None),
        ("link.mbit_per_second", 103.0, None),
        ("link.mbit_per_second", None, None),
        ("ranks.machines.1.memory_bytes", 8 * 2**30 - 37 * MIB, None),
        ("training.epochs_done", 2, None),
        ("environment", {"variables": {}, "files": {}}, None),
        ("versions.snakemake", "99.0", None),
        ("ranks.machines", [], None),
        ("ranks.transport", {"pml": "ob1", "btl": ["tcp"]}, None),
        ("link", None, None),
        ("program", {"command": ["train"], "files": {}, "known_by": "hook",
                     "variables": {"HIDDEN": "4e07"}}, "another environment: HIDDEN"),
    ],
)  # fmt: skip
def test_measurements_of_one_run_are_pooled_under_the_same_conditions(runs, path, value, said):
    run, other = runs["across"], changed(runs["across"], path, value)
    if path == "program":
        run = changed(run, path, value | {"variables": {"HIDDEN": "9b1c"}})
    reason = refusal(run, other)
    assert reason is None if said is None else said in reason
    if other["link"] and other["ranks"]["machines"]:
        # The columns of a history ask for the same.
        parts = (comparable.series, comparable.machines, comparable.versions)
        rates = [each["link"]["mbit_per_second"] for each in (run, other)]
        same = all(part(run) == part(other) for part in parts) and comparable.are_alike(
            *rates, comparable.RATE
        )
        same &= run["source_sha256"] == other["source_sha256"]
        assert same == (reason is None)


def test_sessions_of_one_run_on_machines_of_other_speeds_are_not_pooled(runs):
    fast, slow = (
        changed(runs["across"], "ranks.machines", [MACHINE | {"speed_seconds": seconds}] * 2)
        for seconds in (0.0024, 0.0048)
    )
    validate_run(fast)
    assert refusal(fast, runs["across"]) is None
    later = changed(slow, "session", "another")
    assert "2.40 and 4.80 ms for the same computation" in refusal(fast, later)
    # Within a session the machines are the same: there it is noise, and no reason.
    assert refusal(fast, slow) is None
    assert refusal(runs["single"], fast) == refusal(runs["single"], slow)


@pytest.mark.parametrize(
    ("managed", "installed"), [((7.47, 7.53), 8), ((15.26, 15.52), 16), ((376.4, 377.5), 384)]
)
def test_the_key_and_comparisons_know_one_kind_of_machine(runs, monkeypatch, managed, installed):
    """Managed by the kernels of two machines with the same memory installed, and the next size."""
    keys, seen = [], []
    for gib in (*managed, installed * 1.25):
        machine = MACHINE | {"memory_bytes": int(gib * 2**30)}
        monkeypatch.setattr(hardware, "describe", lambda machine=machine: dict(machine))
        keys.append(key.machine())
        seen.append(changed(runs["across"], "ranks.machines", [machine, machine]))
    assert [each["memory_gib"] for each in keys[:2]] == [installed] * 2
    assert [each == keys[0] for each in keys] == [True, True, False]
    assert [refusal(seen[0], each) is None for each in seen] == [True, True, False]


@pytest.mark.parametrize(
    ("other", "path", "value", "said"),
    [
        ("single", "session", "another", "another session"),
        ("single", "repeat", 2, "another repeat: 2 and 1"),
        ("single", "instrument", "clocks", "another instrument"),
        ("single", "ranks.machines.1.cpu", "Another CPU", "different kinds of machines"),
        ("single", "data.sha256", {}, "other data"),
        ("single", "wall_seconds", 1.0, None),
        # A scheduler gives a run of one rank one core.
        ("single", "ranks.machines.1.cores_available", 1, None),
        ("single", "ranks.machines.1.cpu_quota", 1.0, "a quota of 1 cores"),
        ("hybrid", "link.rate", "1gbit", "another rate of the network slow"),
        ("hybrid", "ranks.interface", "ib0", "another interface of the network slow"),
        ("hybrid", "link.mbit_per_second", 40.0, "links of different rates"),
        ("hybrid", "network", "fast", None),
    ],
)
def test_two_configurations_are_compared_in_one_session_on_machines_and_links_of_a_kind(
    runs, other, path, value, said
):
    across = runs["across"]
    reference = runs.get(other) or changed(across, "strategy", other)
    assert refusal(across, reference) is refusal(reference, across) is None
    reason = refusal(changed(across, path, value), reference)
    assert reason is None if said is None else said in reason


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (None, None, None), (938, 469, None), (10_000, 10_000, None),
        (938, None, "a window"), (10_000, None, "a window"), (938, 10_000, "known of one only"),
    ],
)  # fmt: skip
def test_windows_and_whole_runs_of_a_program_are_not_compared(runs, one, other, said):
    program = {"command": ["train"], "files": {}, "known_by": "seen"}
    seen = changed(changed(runs["single"], "program", program), "training.steps_per_epoch", one)
    threads = changed(changed(seen, "variant", "threads"), "training.steps_per_epoch", other)
    reason = refusal(seen, threads)
    assert refusal(threads, seen) == reason
    assert reason is None if said is None else said in reason


def test_nodes_of_each_kind_are_counted_and_may_be_far_apart_within_a_session(runs):
    across = changed(runs["across"], "layout", Layout(3, 1))
    fast = MACHINE | {"cpu": "Faster CPU"}
    one = changed(across, "ranks.machines", [MACHINE, MACHINE, fast])
    assert refusal(one, changed(one, "ranks.machines", [fast, MACHINE, MACHINE])) is None
    reason = refusal(one, changed(across, "ranks.machines", [MACHINE, fast, fast]))
    assert "2 × Example CPU" in reason and "2 × Faster CPU" in reason
    # A run with more nodes than its reference is compared node by node.
    across = changed(runs["across"], "ranks.machines.1.cpu", "Another CPU")
    match = match_runs([across], [runs["single"]])
    assert (match.runs, match.references, len(match.refused)) == ([], [], 1)
    across = changed(runs["across"], "link.rate", None)
    other = changed(changed(across, "strategy", "other"), "link.mbit_per_second", 40.0)
    assert refusal(across, other) is refusal(other, across) is None
    same = changed(changed(across, "link.mbit_per_second", 40.0), "session", "another")
    assert "links of different rates" in refusal(across, same)


def test_a_run_of_another_format_is_refused_with_the_remedy(runs, tmp_path):
    path = tmp_path / "demo" / "runs" / "rep1" / "run.json"
    write_json(path, runs["single"] | {"format": FORMAT - 1})
    with pytest.raises(InputError, match=rf"format {FORMAT - 1}.*retry .*demo"):
        read_run(path)


def _over(rate: str):
    link = {"interface": None, "rate": rate, "mbit_per_second": None, "latency_ms": None}

    def change(run: dict) -> None:
        run["link"] = link
        run["ranks"] |= {"hosts": ["n1", "n2"], "machines": [MACHINE, MACHINE]}

    return change


def test_an_old_link_does_not_pass_for_the_new_one_of_its_name(tmp_path):
    """The old session's run over two nodes has a partner there, and it ran over another link."""
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 10.0, session="old")
    experiment.add("horovod-mpi", "2x1", 5.0, session="new", older={"old": 80.0})
    for path in experiment.runs[3:]:
        rewritten([path], _over("1gbit"))
        older = path.parent / "sessions" / "old.json"
        run = read_json(older)
        _over("10mbit")(run)
        write_json(older, run)
    frames = tabled(experiment)
    (row,) = epoch_rows(frames).itertuples()
    assert (row.kind, row.matches) == ("unavailable", 0)
    assert "shares session and repeat" in row.reason
    rates = "another rate of the network native: 10mbit and 1gbit"
    assert rates in row.reason
    across = frames["runs"].query("layout == '2x1'")
    assert across["comparable"].tolist() == [True, False] * 3
    assert across["incomparable_because"].dropna().str.contains(rates[:12]).all()
    (taken,) = frames["configurations"].query("layout == '2x1'").itertuples()
    assert taken.train_seconds_per_epoch < 6


def test_nodes_and_starts_of_the_two_runs_of_a_match_are_tabled(tmp_path):
    """Each repeat begins with another node, one of which is 10 % slower."""
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 10.0).add("horovod-mpi", "2x1", 5.0)
    for number, (one, two) in enumerate(zip(experiment.runs[:3], experiment.runs[3:], strict=True)):
        seconds = 11.0 if number == 1 else 10.0
        hosts = ["n1", "n2", "n3"]
        rewritten([one], partial(_placed, hosts=hosts[number : number + 1], seconds=seconds))
        rewritten([two], partial(_placed, hosts=[*hosts[number:], *hosts][:2], later=20 * number))
    (row,) = epoch_rows(tabled(experiment)).itertuples()
    assert row.same_nodes
    assert row.seconds_apart == 20
    assert row.node_spread == pytest.approx(0.1)
    rewritten(experiment.runs[-1:], partial(_placed, hosts=["n1", "n2"]))
    assert not table_of("speedup", experiment)["same_nodes"].any()
    rewritten(experiment.runs[-1:], partial(_placed, hosts=["n3", "n7"]))
    assert table_of("speedup", experiment)["same_nodes"].all(), "one of them is the other's"
    for path, seconds in zip(experiment.runs[:3], (10.0, 11.0, 12.0), strict=True):
        rewritten([path], partial(_placed, hosts=["n1"], seconds=seconds))
    assert table_of("speedup", experiment)["node_spread"].isna().all(), "one node has no spread"


def _placed(run: dict, hosts: list[str], seconds: float = 5.0, later: int = 0) -> None:
    run["ranks"]["hosts"] = hosts
    run["started"] = f"2026-01-01T00:00:{later:02}+00:00"
    run["seconds"]["train"] = seconds * len(run["epochs"])


def test_a_job_that_was_lost_leaves_the_measurements_of_older_sessions(tmp_path):
    """Such a run has no nodes, and its machine is the one that submitted it."""
    experiment = FakeExperiment(tmp_path).add_dataset()
    experiment.add("single", "1x1", 10.0, session="old")
    experiment.add("horovod-mpi", "1x2", 5.0, session="new", older={"old": 5.0})

    def lost(run: dict) -> None:
        run |= {"status": "failed", "reason": "its job ended without a result"}
        run["machine"] |= {"cpu": "Login CPU", "cores_available": 64}
        run["ranks"] |= {"machines": [], "hosts": [], "interface": None}

    rewritten(experiment.runs[3:], lost)
    (row,) = epoch_rows(tabled(experiment)).itertuples()
    assert (row.kind, row.matches) == ("measured", 3) and pd.isna(row.reason)
