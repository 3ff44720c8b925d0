"""The advice is the least of the predictions, and what would pay pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_cost_model import PLAN, content

from escala.analysis.advice import (
    CORE_HOURS,
    PAYS,
    TIME_WITH_WAIT,
    Limits,
    advise,
    lines,
    rate_that_pays,
    rows_that_pay,
)
from escala.analysis.cost_model.calibration import parse
from escala.analysis.cost_model.networks import Network
from escala.analysis.cost_model.predict import predict
from escala.core.errors import InputError
from escala.runtime.layout import Layout

BASELINE = replace(PLAN, layout=Layout(1, 1))
LAYOUTS = [replace(PLAN, layout=Layout.parse(each)) for each in ("1x2", "2x1")]
LINK = (40e-6, 1e-9)
EXACT = parse(content(link=LINK))
SLOW = replace(EXACT, networks=dict(EXACT.networks) | {"slow": Network("slow", 200e6, LINK[0], "")})
ACROSS = replace(PLAN, network="slow")


def seconds(plan, of=EXACT) -> float:
    return float(np.median(predict(of, plan, draws=1).steps))


def advice(plans=LAYOUTS, of=EXACT, **options):
    return advise(of, plans, BASELINE, 6400, 3, draws=20, **options)


def test_the_option_with_the_least_time_is_advised_with_its_ratio():
    found = advice()
    expected = min([BASELINE, *LAYOUTS], key=seconds)
    assert found.best.plan == expected and found.distribute
    assert found.best.ratio.estimate == pytest.approx(seconds(expected) / seconds(BASELINE))
    assert found.best.seconds.estimate == pytest.approx(300 * seconds(expected))
    assert [each.seconds.estimate for each in found.options] == sorted(
        each.seconds.estimate for each in found.options
    )
    text = list(lines(found))
    assert text[0].startswith(f"Use {expected.layout} with 64 rows")
    assert f"#SBATCH --nodes={expected.layout.nodes}" in text


def test_several_ranks_never_need_fewer_core_hours_here():
    found = advice(goal=CORE_HOURS)
    assert found.best.plan == BASELINE and not found.distribute
    expected = 300 * seconds(BASELINE) / 3600
    assert found.best.amount.estimate == pytest.approx(expected)


def test_a_long_wait_decides():
    waits = {Layout(1, 1): 0.0, Layout(1, 2): 1e4, Layout(2, 1): 2e4}
    found = advice(goal=TIME_WITH_WAIT, waits=lambda plan: waits[plan.layout])
    assert found.best.plan == BASELINE
    assert found.options[1].amount.estimate == pytest.approx(1e4 + 300 * seconds(LAYOUTS[0]))


def test_limits_exclude_layouts():
    one_node = advice(limits=Limits(nodes=1))
    assert (one_node.rate, one_node.rows) == (None, None)
    assert one_node.best.plan.layout == Layout(1, 2)
    assert advice(limits=Limits(cores=1)).best.plan == BASELINE
    between = 300 * (seconds(BASELINE) + seconds(LAYOUTS[0])) / 2
    assert BASELINE not in [each.plan for each in advice(limits=Limits(seconds=between)).options]
    with pytest.raises(InputError, match="limits"):
        advice(limits=Limits(seconds=1e-3))


def test_over_a_slow_link_it_is_advised_against_and_the_rate_that_pays_is_named():
    found = advice([ACROSS], SLOW)
    assert not found.distribute and found.best.plan == BASELINE
    text = "\n".join(lines(found))
    assert text.startswith("Do not distribute this")
    assert f"{found.rate / 1e9:.3g} Gbit/s or more" in text
    assert "#SBATCH --nodes=1" in text


def test_the_rate_that_pays_is_the_least_one():
    found = rate_that_pays(SLOW, ACROSS, BASELINE)

    def ratio(rate: float) -> float:
        networks = dict(EXACT.networks) | {"own": Network("own", rate, LINK[0], "")}
        of = replace(EXACT, networks=networks)
        return seconds(replace(PLAN, network="own"), of) / seconds(BASELINE)

    assert ratio(found) <= PAYS * (1 + 1e-9) < ratio(found / 1.05)
    assert rate_that_pays(SLOW, ACROSS, BASELINE, ratio=0.3) is None


def test_the_rows_that_pay_are_the_least_that_were_calibrated():
    changed = content(link=LINK)
    steps = changed["works"]["cnn"]["steps"]
    for rows in (128, 256, 512, 1024, 2048):
        steps.append(steps[0] | {"rows": rows, "seconds": [[4e-3 + 0.4e-3 * rows]] * 5})
    of = replace(parse(changed), networks=SLOW.networks)
    found = rows_that_pay(of, [ACROSS], BASELINE)

    def ratio(rows: int) -> float:
        return seconds(replace(ACROSS, rows=rows), of) / seconds(replace(BASELINE, rows=rows), of)

    assert found > 64
    assert ratio(found) <= PAYS < ratio(found // 2)
    assert rows_that_pay(SLOW, [ACROSS], BASELINE) is None
