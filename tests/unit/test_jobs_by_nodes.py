"""An experiment with a job for each number of nodes: which runs each measures, and with what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from escala.core.errors import InputError
from escala.core.files import write_text
from escala.experiment import load
from escala.measure import table
from escala.measure.plan import Plan, by_nodes, plan_session, table_of
from escala.workflow.plans import Jobs, Plans
from escala.workflow.study import Study
from tests.conftest import ROOT
from tests.unit.test_workflow_package import Planned, measured

ONE, TWO, FOUR = "1x1", "2x1", "4x1"


def study_of(**changes: object) -> Study:
    """Return the default experiment with configurations on one, two and four nodes."""
    configurations = [
        {"strategy": "single", "layouts": [ONE], "variants": ["tuned"]},
        {"strategy": "horovod-mpi", "layouts": [TWO, FOUR], "variants": ["tuned"]},
    ]
    alone = {"strategy": "single", "layout": ONE, "variant": "tuned"}
    probes = {name: {"enabled": False} for name in ("resources", "clocks", "timeline")}
    given = {"configurations": configurations, "references": [alone], "jobs_by_nodes": True}
    return Study(ROOT, ROOT, [], given | probes | {"repeats": 2} | changes)


def layouts(plan: Plan) -> list[set[str]]:
    """Return the layouts of each group of a plan."""
    return [{each.run.layout for each in group} for group in plan.groups]


def test_each_number_of_nodes_has_a_job_with_its_references_and_no_more_nodes(monkeypatch):
    monkeypatch.chdir(ROOT)
    study = study_of()
    plans = Plans(study, False, lambda: False, set, set)
    jobs = Jobs(study, plans, lambda: None)
    demo = SimpleNamespace(experiment="demo")
    assert plans.parts_of(demo) == [table_of("demo", nodes) for nodes in (1, 2, 4)]
    for nodes, layout in (("2", TWO), ("4", FOUR)):
        part = SimpleNamespace(experiment="demo", nodes=nodes)
        assert layouts(plans.plan_of(part)) == [{ONE, layout}] * 2
        assert jobs.nodes(part) == int(nodes)
    assert jobs.nodes(demo) == 4


def test_one_node_has_a_job_if_it_has_more_than_references_of_others(monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = plan_session(study_of().default)
    workloads = {run.workload for run in by_nodes(plan)[1]}
    assert len(workloads) == 3
    scaled = tuple(group for group in plan.groups if group[0].run.workload == "virus-cnn")
    assert [*by_nodes(replace(plan, groups=scaled))] == [2, 4]
    sampled = by_nodes(plan_session(study_of(resources={"enabled": True}).default))
    assert {run.instrument for run in sampled[1]} == {None, "resources"}


def test_a_part_is_left_alone_when_a_later_one_measured_its_references_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    house = Planned(study_of())
    measured(Plan.read(house.call(experiment="demo")[1]))
    write_text(table_of("demo", 2), '{"format": 1, "runs": []}\n')
    assert not house.call(experiment="demo", nodes="2")[2]
    # The table of all does not tell of them, and is joined again.
    plan = Plan.read(house.call(experiment="demo")[1])
    assert plan.call
    write_text(table_of("demo"), table.text(plan))
    [across] = {each.file for each in plan.runs if (each.run.layout, each.run.repeat) == (FOUR, 2)}
    Path(across).unlink()
    assert not house.call(experiment="demo", nodes="2")[2]
    plans, file, is_new = house.call(experiment="demo", nodes="4")
    assert (
        is_new
        and across in plans.left
        and plans.left.keys() <= {each.file for each in Plan.read(file).groups[1]}
    )


def test_a_pilot_needs_one_job(tmp_path):
    settings = yaml.safe_load((ROOT / "config.yaml").read_text()) | {"jobs_by_nodes": True}
    settings.pop("repeats", None)
    settings["pilot"] = {"half_width": "5 %", "repeats": 3, "at_most": 9}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(InputError, match="jobs_by_nodes"):
        load(tmp_path / "demo.yaml")
