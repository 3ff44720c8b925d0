"""Memory that is freed stays with the process, if the knob `keep_memory` is set."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from escala.strategies import STRATEGIES
from escala.strategies.knobs import complete

#: It writes to 64 MiB of new memory 20 times, and prints how often the system cleared a page.
FREEING = """
import resource
import numpy as np
for _ in range(20):
    np.empty(2**26, np.uint8).fill(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
#: Pages of 64 MiB, if the system has large ones for the array or not.
PAGES = 2**26 // os.sysconf("SC_PAGE_SIZE")


def faults(keep_memory: bool) -> int:
    strategy = STRATEGIES["ddp-gloo"]
    knobs = complete({"keep_memory": keep_memory}, "virus-cnn")
    # NumPy asks for large pages, with which there are fewer faults in either case.
    variables = strategy.environment(knobs) | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FREEING],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are those of glibc")
def test_a_page_is_cleared_once_and_not_in_each_step():
    assert faults(keep_memory=False) - faults(keep_memory=True) > 10 * PAGES
