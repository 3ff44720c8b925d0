"""Does training a model in parallel pay on my machines, by how much, and why?

`compare` is for notebooks and other programs; everything else is the command `escala`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def compare(
    first: str | Sequence[str], second: str | Sequence[str], **options: Any
) -> dict[str, Any]:
    """Measure two commands in turns, as `escala compare` does, and return its answer.

    Parameters
    ----------
    first, second : the words of each command, or one text; the first is the reference.
    options : of `escala compare`, with `_` for `-`: `repeats=10`, `in_place=True`, `data=["a=b"]`.
        False and None leave an option out.

    Returns
    -------
    The answer; `schemas/answer.schema.yaml` describes it.

    Raises
    ------
    RuntimeError : there is no answer; the call has printed why.
    """
    import json
    from pathlib import Path

    from escala.core.children import call_escala
    from escala.core.files import temporary_folder

    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not False and value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for one in values for word in (option, str(one))]
    sides = [[side] if isinstance(side, str) else side for side in (first, second)]
    with temporary_folder("escala-compare") as folder:
        file = Path(folder, "answer.json")
        words += ["--json", str(file), "--", *sides[0], "---", *sides[1]]
        code = call_escala("compare", *words)
        if not file.exists():
            raise RuntimeError(f"escala compare ended with exit code {code} and without an answer")
        return json.loads(file.read_bytes())
