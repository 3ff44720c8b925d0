"""The form of a run.json, checked before it is written."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "run.schema.yaml"


def validate_run(result: dict) -> None:
    """Check the content of a run.json against its schema.

    Raises
    ------
    ValueError : a key is unknown, missing or holds what the schema does not allow; the message
        names it.
    """
    error = best_match(_validator().iter_errors(result))
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "(top level)"
        raise ValueError(f"run.json: {key}: {error.message}")


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(yaml.safe_load(SCHEMA.read_text()))
