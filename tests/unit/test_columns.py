"""The columns of a table are those of its schema: no other is made, and each is made by some row.

A new column needs an experiment here that has it.
"""

from __future__ import annotations

import pytest
import test_study
from fixtures_runs import (
    REFERENCES,
    FakeExperiment,
    changed,
    clocked,
    fair,
    laddered,
    program,
    regression,
    sampled,
    twice,
    with_epoch_scores,
    with_fits,
)
from pages import tabled
from test_calibration import experiment, write_runs
from test_energy_table import MODEL, add_energy, device

from escala.analysis.cost_model import predictions
from escala.analysis.cost_model.calibrating import Calibration
from escala.analysis.cost_model.calibration import parse
from escala.analysis.cost_model.document import document
from escala.analysis.cost_model.works import plan_works
from escala.analysis.tables import dtypes
from escala.core.files import read_json, write_json
from escala.report import pilot, tables
from escala.report.tables import base

pytestmark = pytest.mark.usefixtures("few_resamples")


def predicted(folder, runs, bounds: dict) -> list[dict]:
    """Return predictions for two of some runs, and one with bounds."""
    calibration = Calibration(experiment())
    content = parse(document(write_runs(folder, calibration))[0])
    row = next(
        each
        for each in predictions.rows(content, plan_works(calibration), {"small": 640})
        if each["layout"] == "1x2"
    )
    names = [{name: read_json(run)[name] for name in predictions.CONFIGURATION} for run in runs]
    return [row | names[0] | {"global_batch": 32}, row | names[1] | bounds]


def test_a_key_that_the_schema_lacks_is_refused():
    assert base.frame("pilot", [{"layout": "1x2"}])["layout"].tolist() == ["1x2"]
    with pytest.raises(KeyError, match=r"pilot\.schema\.yaml has no column lay_out"):
        base.frame("pilot", [{"layout": "1x2", "lay_out": "1x2"}])


def test_each_column_of_each_table_is_made_by_some_row(tmp_path, monkeypatch):
    made: dict[str, set[str]] = {}

    def frame(name: str, rows):
        rows = list(rows)
        made.setdefault(name, set()).update(*rows)
        return base.frame(name, rows)

    monkeypatch.setattr(tables, "frame", frame)
    folders = (tmp_path / str(number) for number in range(99))
    scaled = FakeExperiment(next(folders)).add_dataset()
    for layout, seconds in (("1x1", 5.0), ("1x2", 3.0), ("1x4", 2.0)):
        strategy = "single" if layout == "1x1" else "horovod-mpi"
        scaled.add(strategy, layout, seconds, rows=32)
    for file in scaled.dataset_files:
        write_json(file, read_json(file) | {"baselines": {"majority": {"accuracy": 0.2}}})
    epochs = read_json(scaled.runs[0])["epochs"]
    further = {"distinct_rows": 64, "validation_loss": 0.5}
    changed(scaled.runs[:1], epochs=[each | further for each in epochs])
    tabled(scaled)

    energetic = FakeExperiment(next(folders)).add_dataset()
    energetic.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 6.0)
    files = [
        file
        for names in (("single", "1x1"), ("horovod-mpi", "1x2"))
        for file in add_energy(energetic, *names, 10.0, *[[device("package-0", 100.0)]] * 2)
    ]
    tabled(
        energetic,
        probe_files=files,
        probe_settings={"energy": MODEL | {"grams_co2_per_kwh": 200.0}},
    )

    of, probed = clocked(next(folders))
    bounds = {"basis": "bounds", "ratio_low": 0.5, "ratio_high": 0.9}
    machine = read_json(probed[0])["ranks"]["machines"][0]
    content = {"machine": machine, "configurations": predicted(next(folders), probed, bounds)}
    write_json(tmp_path / "predictions.json", content)
    tabled(of, probe_files=probed, predictions_file=tmp_path / "predictions.json")

    of, again = twice(next(folders))
    plan = pilot.plan(tables.Evidence(of.runs), {"half_width": "2 %", "repeats": 4, "at_most": 7})
    write_json(tmp_path / "pilot.json", plan)
    tabled(of, series_files=again, pilot_file=tmp_path / "pilot.json")

    of, files, rungs = laddered(next(folders))
    tabled(of, series_files=files, rungs=rungs)
    tabled(test_study.experiment(next(folders)), scaling=test_study.settings())
    tabled(fair(next(folders), 5.6, 4.6, 3.9), references=REFERENCES)
    folder = next(folders)
    tabled(
        FakeExperiment(folder).add_dataset().add("single", "1x1", 5.0), probe_files=sampled(folder)
    )
    for make in (regression, with_epoch_scores, with_fits, program):
        tabled(make(next(folders)))

    missing = {name: sorted(dtypes(name).keys() - made.get(name, ())) for name in tables.TABLES}
    assert not {name: columns for name, columns in missing.items() if columns}
