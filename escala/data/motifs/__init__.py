"""The kind `motifs`: DNA sequences with and without an instance of a motif."""

from escala.data.settings import Settings, Size, require_training_rows

#: Numbers for each letter of a row: one for each of A, C, G and T.
LETTERS = 4


def check(settings: Settings) -> None:
    """Refuse fractions that leave no sequence to train on."""
    if settings["source"]["type"] == "fasta":
        require_training_rows(settings["split"], "sequence")


def size(settings: Settings) -> Size:
    """Return the training rows of a simulation, and the numbers of a row."""
    rows = settings["source"].get("rows", {})
    return Size(rows.get("train"), LETTERS * settings["length"])
