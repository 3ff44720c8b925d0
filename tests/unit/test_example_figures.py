"""Figures of test rows: captions that a run wrote, alongside those that they are compared with."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import text_boxes
from nltk.translate.bleu_score import sentence_bleu
from PIL import Image

from escala.core.files import write_json
from escala.data.captions.words import END, SPECIAL, START
from escala.data.splits import Side, write_split
from escala.report.figures import OfRun, captions, common
from escala.report.steps import figure_of_run

LENGTH, TEST = 34, 15
VOCABULARY = [*SPECIAL, "a", "red", "dog", "runs", "in", "the", "park", "uncharacteristically"]
NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}
WRITTEN = "a red dog in the park"
REFERENCES = ["a red dog runs in the park", "the red dog in a park", ""]
#: As long as a caption can be, of words that are as long as any.
LONGEST = " ".join(["uncharacteristically"] * (LENGTH - 1))
PICTURES = [f"{row}_693b08cb0e.jpg" for row in range(TEST)]
RUN = {
    "strategy": "single", "layout": "1x1", "variant": "tuned", "network": "native",
    "workload": "caption-lstm", "dataset": "few", "status": "ok", "reason": None,
    "data": {"provenance": "flickr8k", "leaky": False},
    "evaluation": {"rows": TEST, "scores": {f"bleu_{n}": 0.9 - n / 10 for n in range(1, 5)}},
}  # fmt: skip


def numbered(*captions: str) -> np.ndarray:
    """Return the numbers of captions and what ends them, uint16 (captions, positions)."""
    found = np.zeros((len(captions), LENGTH), np.uint16)
    for row, caption in enumerate(captions):
        numbers = [NUMBERS[word] for word in caption.split()]
        found[row, : len(numbers) + 1] = [*numbers, END]
    return found


def write(folder: Path, rows: int = TEST, names: list[str] = PICTURES) -> tuple[Path, np.ndarray]:
    """Write a split whose second picture has the longest captions; return it and predictions."""
    targets = np.stack([numbered(*REFERENCES)] * rows)
    targets[1] = numbered(*[LONGEST] * len(REFERENCES))
    inputs = {"features": np.zeros((rows, 2), np.float16), "words": np.full_like(targets, START)}
    side = Side(inputs, targets)
    write_split(
        folder, {"train": side, "test": side}, kind="captions", name="few", seed=0,
        provenance="flickr8k", below={"words": len(VOCABULARY)}, vocabulary=VOCABULARY,
    )  # fmt: skip
    with open(folder / "pictures.tsv", "w", newline="") as handle:
        table = csv.writer(handle, delimiter="\t")
        table.writerow(("side", "row", "name"))
        for name_of in ("train-{}", "{}"):
            side = "test" if name_of == "{}" else "train"
            table.writerows((side, row, name_of.format(names[row])) for row in range(rows))
    return folder, numbered(WRITTEN, LONGEST, *[WRITTEN] * (rows - 3), "")


def drawn(
    run: dict, predictions: np.ndarray | None, split: Path, pictures: Path | None = None
) -> tuple[str, list[np.ndarray]]:
    """Return the words and the pictures of a figure, whose texts neither overlap nor are cut."""
    file = None
    if predictions is not None:
        file = split.with_name("predictions.npy")
        np.save(file, predictions)
    with common.style():
        figure = captions.draw(run, OfRun(file, split, pictures))
        boxes = text_boxes.drawn_texts(figure)
    assert not text_boxes.overlaps(boxes)
    assert not text_boxes.cut_off(figure, boxes)
    shown = figure.axes[0].images if figure.axes else []
    at = [image.get_extent() for image in shown]
    left = [box.corners[:, 0].min() for box in boxes if box.text.startswith(("Run:", "Picture:"))]
    for _, right, *_ in at:
        assert figure.axes[0].transData.transform((right, 0))[0] < min(left)
    words = "\n".join(box.text for box in boxes)
    return words, [np.asarray(image.get_array()) for image in shown]


@pytest.mark.filterwarnings("ignore:\\nThe hypothesis contains 0 counts")
def test_photographs_are_shown_with_their_captions_and_the_bleu_of_each(tmp_path):
    """Eight of fifteen rows: 0, 2, …, 14. Their pictures are of different shapes and colours."""
    split, predictions = write(tmp_path / "split")
    for number, name in enumerate(PICTURES[:-2]):
        size = (400, 300) if number % 4 else (30, 400)
        Image.new("RGB", size, (10 * number, 0, 0)).save(tmp_path / name, "PNG")
    # One that is shown is damaged, and one is missing.
    (tmp_path / PICTURES[2]).write_bytes((tmp_path / PICTURES[2]).read_bytes()[:60])
    words, pictures = drawn(RUN, predictions, split, tmp_path)
    named = [line for line in words.split("\n") if line.startswith("Picture: ")]
    assert named == [f"Picture: {PICTURES[row]}" for row in range(0, TEST, 2)]
    assert [int(picture[0, 0, 0]) for picture in pictures] == [
        10 * row for row in (0, 4, 6, 8, 10, 12)
    ]
    assert words.count(f"Run: {WRITTEN}") == 7 and "Run: (no word)" in words
    # A reference without words is left out.
    assert words.count(f"– {REFERENCES[0]}") == 8 and words.count("–") == 16
    references = [reference.split() for reference in REFERENCES[:2]]
    scores = [sentence_bleu(references, WRITTEN.split(), [1 / n] * n) for n in range(1, 5)]
    listed = "BLEU-1 to BLEU-4: " + ", ".join(f"{score:.2f}" for score in scores)
    assert len({*scores}) > 1 and words.count(listed) == 7
    assert "BLEU-1 to BLEU-4: 0.00, 0.00, 0.00, 0.00" in words
    text = " ".join(words.split())
    assert "8 of 15 test pictures." in text
    assert "of all test pictures: 0.80, 0.70, 0.60, 0.50." in text
    assert "Photographs that are missing or damaged: 2." in text
    assert "few (flickr8k)" in text and "single 1x1 tuned native caption-lstm" in text


def test_scenes_are_shown_by_their_names_and_the_longest_captions_stand_whole(tmp_path):
    split, predictions = write(tmp_path / "split", 4, ["red dog runs in park"] * 4)
    reason = "wall_seconds is no number; run.invalid.json holds what was measured"
    failed = {"status": "failed", "reason": reason, "evaluation": None}
    words, pictures = drawn(RUN | failed, predictions, split)
    assert words.count("Scene: red dog runs in park") == 4 and not pictures
    # The network wrote it once, and it is compared with three.
    assert words.count("uncharacteristically") == 4 * (LENGTH - 1)
    assert "4 of 4 test pictures" in words and "all test pictures" not in words
    assert f"The run ended as failed: {reason}." in " ".join(words.split())


def test_a_run_without_captions_is_named_with_the_reason(tmp_path):
    failed = RUN | {"status": "failed", "reason": "rank 1 was ended", "evaluation": None}
    words, _ = drawn(failed, None, tmp_path / "split")
    why = "the run left no captions. The run ended as failed: rank 1 was ended."
    assert f"Unavailable: {why}" in " ".join(words.split())


def test_predictions_are_captions_only_if_they_are_numbers_of_words(tmp_path):
    split, predictions = write(tmp_path / "split")
    whole, _ = drawn(RUN, predictions, split)
    assert drawn(RUN, predictions.astype(np.int64), split)[0] == whole
    too_large = predictions.copy()
    too_large[1, 0] = len(VOCABULARY)
    for wrong in (
        np.zeros(TEST, np.int64),
        predictions.astype(np.float32),
        predictions.astype(np.int32) - 1,
        too_large,
        predictions[1:],
    ):
        words, _ = drawn(RUN, wrong, split)
        assert "Unavailable: the predictions are not numbers of words." in " ".join(words.split())


def test_the_step_takes_captions_of_the_file_beside_the_run(tmp_path):
    split, predictions = write(tmp_path / "split")
    write_json(tmp_path / "run.json", RUN)
    np.save(tmp_path / "predictions.npy", predictions)
    output = tmp_path / "captions.svg"
    given = SimpleNamespace(figure="captions", run=str(tmp_path / "run.json"), pictures=None)
    figure_of_run({"figure": output}, given, dataset=split / "dataset.json")
    assert f"Run: {WRITTEN}" in output.read_text()
    assert "Scene: " in output.read_text()


def test_a_stored_figure_is_drawn_anew_if_other_photographs_are_in_the_folder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    split, predictions = write(tmp_path / "split")
    write_json(tmp_path / "run.json", RUN)
    np.save(tmp_path / "predictions.npy", predictions)
    photographs, output = tmp_path / "photographs", tmp_path / "captions.svg"
    photographs.mkdir()
    files = {"run": str(tmp_path / "run.json"), "pictures": str(photographs)}
    given = SimpleNamespace(figure="captions", **files)
    draw = partial(figure_of_run, {"figure": output}, given, dataset=split / "dataset.json")
    drawn = []
    for _ in range(2):
        draw()
        assert "served" not in capsys.readouterr().out
        drawn.append(output.read_text().count("<image"))
        Image.new("RGB", (40, 30)).save(photographs / PICTURES[0], "PNG")
    assert drawn == [0, 1]
    draw()
    assert "served" in capsys.readouterr().out
