"""List the computations of one process that a calibration times, and their numbers of rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from escala.experiment.references import NATIVE, ONE_PROCESS
from escala.experiment.runs import Run
from escala.probes.collectives import Collectives

#: The calibrated numbers of rows reach from this fraction of the fewest that are predicted to this
#: fraction of the most.
_LEAST, _MOST, _NUMBERS = 0.75, 1.5, 3
_NAME_LETTERS = 64


class Work(NamedTuple):
    """A computation of one process, timed with several numbers of rows.

    Of a workload that is trained by steps, it is determined by the knobs that the strategy of one
    process reads. So variants that differ only in the exchange of the ranks are one work.

    Attributes
    ----------
    strategy : of its one process: that of the engine, or of a program its own.
    variant : the first of the experiment whose process computes it.
    rows : numbers of rows in a step of one process, in increasing order.
    """

    dataset: str
    workload: str
    strategy: str
    variant: str
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name in a calibration."""
        return " ".join(each for each in self[:4] if each != ONE_PROCESS[0])

    @property
    def middle_variant(self) -> str:
        """The name of the variant with the middle one of its numbers of rows."""
        return variant_name(self.variant, self.rows[len(self.rows) // 2])

    def steps_runs(self, run: Callable[..., Run], repeats: int) -> list[Run]:
        """Return the timing runs of one process, of all numbers of rows and repeats, in turns.

        Parameters
        ----------
        run : returns the run of the calibration with some names.
        """
        return [
            run(*self[:3], ONE_PROCESS[1], variant_name(self.variant, rows), NATIVE, repeat)
            for repeat in range(1, repeats + 1)
            for rows in self.rows
        ]


def calibrated_rows(predicted: Iterable[int], most: float | None = None) -> tuple[int, ...]:
    """Return numbers of rows around the predicted ones, but not these themselves.

    They are in a geometric series, and increase.

    Parameters
    ----------
    most : limit of the largest; a few rows more are possible. None is no limit.
    """
    predicted = set(predicted)
    low, high = max(1.0, _LEAST * min(predicted)), _MOST * max(predicted)
    if most is not None:
        high = min(high, most)
        low = max(1.0, min(low, _LEAST * high))
    found: set[int] = set()
    for number in range(_NUMBERS):
        rows = round(low * (high / low) ** (number / (_NUMBERS - 1)))
        while rows in predicted or rows in found:
            rows += 1
        found.add(rows)
    return tuple(sorted(found))


def variant_name(variant: str, rows: int) -> str:
    """Return the name of a variant with another number of rows of a rank.

    A long one is cut, and ends with a digest of the whole.
    """
    name = f"rows{rows}-{variant}"
    if len(name) <= _NAME_LETTERS:
        return name
    digest = hashlib.sha256(variant.encode()).hexdigest()[:8]
    return f"{name[: _NAME_LETTERS - len(digest) - 1]}-{digest}"


def shared_settings(works: int) -> dict[str, float]:
    """Return the settings of the probe's runs, one for each work, which share its usual time.

    A calibration joins what these runs repeat: rounds of collectives, and collectives after steps.
    Contention is of each work by itself, so a work has fewer rounds of blocks: 4 of 30 steps, if
    there are three works or more.
    """
    probe_settings = Collectives.settings["properties"]
    usual = {name: probe_settings[name]["default"] for name in ("rounds", "seconds", "steps")}
    rounds = max(probe_settings["rounds"]["minimum"], math.ceil(usual["rounds"] / works))
    fraction = rounds / usual["rounds"]
    return {
        "rounds": rounds,
        "seconds": usual["seconds"] * fraction,
        "steps": math.ceil(usual["steps"] * fraction),
    }
