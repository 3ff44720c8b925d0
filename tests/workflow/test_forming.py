"""The answer as it forms: after each repeat, what the page would say of those measured so far."""

from __future__ import annotations

import re

import pandas as pd

from tests.workflow.measured import FAKE
from tests.workflow.test_kept_matches import SETTINGS

TABLE = "results/small/tables/speedup.csv"
TWO = [{"strategy": "single", "layouts": ["1x1"]}, {"strategy": "horovod-mpi", "layouts": ["1x2"]}]
BATCH = {"rows": 8, "per": "global"}
WORKLOADS = {"tal1-cnn": {"epochs": 1, "save_model": False, "batch": BATCH}}


def test_each_repeat_is_told_once_with_the_interval_of_the_page(snakemake, tmp_path, imported):
    imported(FAKE)
    experiment = SETTINGS | {"repeats": 3, "configurations": TWO, "workloads": WORKLOADS}
    experiment |= {"clocks": {"enabled": False}}
    alone = {"ESCALA_STORE": "off", "ESCALA_MEASURE_AGAIN": "0"}
    said = snakemake(TABLE, experiment=experiment, **alone).stdout
    told = re.findall(r"^escala: small, after (\d) of 3 repeats(.*)$", said, re.MULTILINE)
    assert [number for number, _ in told] == ["1", "2", "3"], said
    first, second, last = (text for _, text in told)
    assert re.match(r": about .+ of runs left$", first)
    assert re.match(
        r", provisional: horovod-mpi 1x2 takes 0\.\d\d–0\.\d\d of the step time of single 1x1 "
        r"\(range of 2 paired runs, widened\); about .+ of runs left$",
        second,
    )
    row = pd.read_csv(tmp_path / TABLE).set_index("strategy").loc["horovod-mpi"]
    assert f" {row['ratio_low']:.2f}–{row['ratio_high']:.2f} of the step time" in last
    assert last.endswith("(range of 3 paired runs, widened); no run is left")
