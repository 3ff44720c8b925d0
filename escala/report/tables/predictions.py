"""Build the table of predicted times beside measured ones.

The cost model's calibration holds none of the runs that it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from escala.core.files import read_json
from escala.record.comparable import CONFIGURATION, Measurement, alike_machines
from escala.report.tables.base import Evidence, by_configuration, over


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration of the predictions; none without predictions."""
    if evidence.predictions_file is None:
        return
    content = read_json(evidence.predictions_file)
    found = by_configuration(evidence.found)
    for row in content["configurations"]:
        measured = found.get(tuple(row[name] for name in CONFIGURATION), [])
        yield row | _measured(evidence, row, measured, content["machine"])


def _measured(
    evidence: Evidence, row: Mapping, measured: Sequence[Measurement], machine: Mapping
) -> dict:
    """Return the measured times on machines like the calibrated one, and the error."""
    verdicts = [
        (run["file"], alike_machines([machine], run["ranks"]["machines"][:1])) for run in measured
    ]
    files = [file for file, verdict in verdicts if verdict.ok]
    table = evidence.runs
    is_timed = (table["status"] == "ok") & table["comparable"] & (table["resumptions"] == 0)
    timed = table[is_timed & table["file"].isin(files)]
    seconds = over(timed, "train_seconds_per_epoch")
    reasons = [verdict.reason for _, verdict in verdicts if not verdict.ok]
    found = {
        "runs": len(timed),
        **seconds.columns("measured", "_seconds_per_epoch"),
        "uncompared": "; ".join(dict.fromkeys(reasons)) or None,
    }
    predicted = row.get("predicted_seconds_per_epoch")
    if predicted is None or seconds.estimate is None:
        return found
    low, high = (row[f"predicted_{end}_seconds_per_epoch"] for end in ("low", "high"))
    return found | {
        "error": predicted / seconds.estimate - 1,
        "covered": int(timed["train_seconds_per_epoch"].between(low, high).sum()),
    }
