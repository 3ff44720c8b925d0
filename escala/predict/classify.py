"""FASTA to a table: the class probabilities of each record, and whether it is familiar."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from escala.acquire.files import records
from escala.errors import InputError
from escala.files import atomic, read_json
from escala.predict.familiarity import Familiarity
from escala.prepare import windows
from escala.prepare.encode import encode
from escala.prepare.fasta import nucleotides
from escala.workloads import Classifier, load
from escala.workloads.models import DESCRIPTION

#: How rows can have been cut, as `window.method` of a dataset allows.
WINDOW_METHODS = ("start", "random", "tiles")
#: Most windows a record is cut into; longer records are sampled evenly.
WINDOWS = 64


def predict(
    fasta: Path, run: Path, familiarity: Path, false_alarms: float, output: Path
) -> pd.DataFrame:
    """Classify every record of a FASTA file and write the table, a TSV.

    A record is cut as the model's rows were, and the probabilities of its pieces are averaged. A
    model of rows that begin where genomes do (`window.method: start`) is given the beginning of
    each record and no other part of it; others are given tiles of the whole record.

    Parameters
    ----------
    fasta : plain or gzipped, letters in either case; either strand, if the model knows both. For a
        model of `start`, whole genomes, or their beginnings.
    run : folder of the trained run.
    familiarity : what `learn` wrote for the split of that run.
    false_alarms : share of held-out rows that may be flagged, from 0 to below 1.

    Returns
    -------
    A row per record: `accession`, `letters`, `windows`, `predicted`, `probability_CLASS` for each
    class, `familiar_share` (of the k-mers of what was cut into pieces; NaN if it has none),
    `threshold`, `false_alarm_rate` (measured on held-out rows) and `unlike_anything_seen`.

    Raises
    ------
    InputError : the run did not end ok or kept no model, the file is no nucleotide FASTA, or
        `false_alarms` is no share.
    """
    classifier, known = _model(run), Familiarity.load(familiarity)
    [codes], window = classifier.inputs, classifier.description["data"]["window"]
    [length] = codes.shape
    threshold = known.threshold(false_alarms)
    rows = []
    found = tqdm(records(fasta), desc=fasta.name, unit=" records", disable=None)
    for accession, sequence in nucleotides(found, fasta):
        codes = np.frombuffer(encode(sequence), np.uint8)
        if window["method"] == "start":
            codes = codes[:length]
        pieces = _pieces(codes, length, window)
        probabilities = classifier.probabilities(pieces).mean(axis=0, dtype=np.float64)
        share = known.share(codes)
        rows.append(
            {
                "accession": accession,
                "letters": len(sequence),
                "windows": len(pieces),
                "predicted": classifier.classes[int(np.argmax(probabilities))],
                **{
                    f"probability_{name}": probability
                    for name, probability in zip(classifier.classes, probabilities, strict=True)
                },
                "familiar_share": share,
                "threshold": threshold,
                "false_alarm_rate": known.false_alarm_rate(threshold),
                # A record without a single k-mer is like nothing either.
                "unlike_anything_seen": not share >= threshold,
            }
        )
    table = pd.DataFrame(rows)
    with atomic(output) as temporary:
        table.to_csv(temporary, sep="\t", index=False, float_format="%.6g")
    return table


def _model(run: Path) -> Classifier:
    result = read_json(run / "run.json")
    if result["status"] != "ok":
        raise InputError(
            run / "run.json",
            result["status"],
            "the run has no trained model",
            "predict with a run that ended ok",
        )
    classifier = load(run)
    window = classifier.description["data"].get("window")
    if not isinstance(window, dict) or window.get("method") not in WINDOW_METHODS:
        raise _refused(run, "data.window.method", f"none of {', '.join(WINDOW_METHODS)}")
    if type(window.get("reverse_complement")) is not bool:
        raise _refused(run, "data.window.reverse_complement", "no bool")
    return classifier


def _refused(run: Path, key: str, wrong: str) -> InputError:
    return InputError(
        run / DESCRIPTION,
        key,
        f"is missing, or {wrong}",
        "have the model sent again, or train it again",
    )


def _pieces(codes: np.ndarray, length: int, window: dict) -> np.ndarray:
    """Return the rows that a model of a dataset's `window` is given of a sequence.

    Of `start` they are its rows, the other strand included if it was trained on. Random windows and
    tiles begin anywhere, so tiles that meet show all of the sequence, on the strand it is given on.

    Returns
    -------
    uint8 of shape (pieces, length), at most `WINDOWS` of them.
    """
    letters = np.array([len(codes)])
    if window["method"] != "start":
        window = {"method": "tiles", "stride": length, "reverse_complement": False}
    cut = windows.windows(np.array([0]), letters, length, window, seed=0)
    if len(cut) > WINDOWS:
        cut = cut[np.linspace(0, len(cut) - 1, WINDOWS).astype(int)]
    return np.concatenate(list(windows.blocks(codes, np.array([0]), letters, cut, length)))
