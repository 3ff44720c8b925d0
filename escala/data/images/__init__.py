"""The kind `images`: pictures of classes."""

from math import prod

from escala.core.errors import InputError
from escala.data.settings import Settings, Size, inputs, require_training_rows, training_rows

#: Training pictures, height, width and colours of the full MNIST and CIFAR-10.
FULL = {"idx": (60000, 28, 28, 1), "cifar": (50000, 32, 32, 3)}
#: Classes of simulated outlines, and height and width in pixels, as in the source work.
OUTLINES, OUTLINE_SIZE = 9, (148, 197)
#: How many numbers a pixel has, by the setting `colour`.
COLOURS = {"grey": 1, "rgb": 3}


def check(settings: Settings) -> None:
    """Refuse fractions that leave no picture to train on."""
    if settings["source"]["type"] not in FULL:
        require_training_rows(settings["split"], "picture")


def size(settings: Settings) -> Size:
    """Return the size by the settings, and by the names of the files in a user's folders."""
    source, split = settings["source"], settings["split"]
    form = (None, None, None)
    if source["type"] == "folders":
        # Imported here, because only these sources need it at the start of the workflow.
        from escala.data.images.pictures import count_pictures

        try:
            pictures = count_pictures(*inputs(settings))
        except (InputError, OSError):
            return Size()
        rows = pictures.pop("train")
        split = split | {f"{side}_fraction": 0 for side in pictures}
    elif source["type"] == "outlines":
        rows, form = OUTLINES * source["per_class"], (*OUTLINE_SIZE, 1)
    else:
        (rows, *form), split = FULL[source["type"]], split | {"test_fraction": 0}
    shape = *(settings["size"] or form[:2]), COLOURS.get(settings["colour"], form[2])
    return Size(training_rows(rows, split), None if None in shape else prod(shape))
