"""Start programs in tests, wait for them, and name what a machine may lack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.conftest import ROOT


def python(
    *words: object, variables: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> subprocess.CompletedProcess:
    """Run Python with some words in the folder of the project; return its end and its output.

    Parameters
    ----------
    variables : alongside those of this process.
    options : of `subprocess.run`, in place of those given here.
    """
    usual = {"cwd": ROOT, "env": os.environ | variables, "timeout": 300}
    usual |= {"capture_output": True, "text": True}
    return subprocess.run([sys.executable, *map(str, words)], **usual | options)


def lacking(problem: str) -> None:
    """Skip a test that takes root, or fail where ESCALA_REQUIRE names `full-disk`."""
    required = "full-disk" in os.environ.get("ESCALA_REQUIRE", "").split(",")
    (pytest.fail if required else pytest.skip)(f"{problem}; run as root, where one may mount")
