"""Shared by all tests: what they need of the machine, and a small dataset."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from escala.errors import InputError

# A busy machine is no failure.
settings.register_profile("escala", deadline=None)
settings.load_profile("escala")

ROOT = Path(__file__).resolve().parent.parent
KNOBS = {
    "cores_per_process": 1,
    "threads": {},
    "bind": True,
    "sparse_as_dense": True,
    "yield_when_idle": True,
    "fusion_threshold_mib": None,
    "eager_limit_mib": None,
    "cycle_time_ms": None,
    "autotune": False,
    "compression": "none",
    "communication": "auto",
    "shard": True,
    "weighting": "rows",
    "timeline": False,
    "busy_neighbours": [],
    "slowdown": [],
    "factors": False,
    "accumulation": 1,
    "stem": "layers",
    "update": "keras",
}
CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]


def _genomes() -> str | None:
    folder = os.environ.get("ESCALA_GENOMES")
    return None if folder and Path(folder).is_dir() else "ESCALA_GENOMES does not name a folder"


def _chromium() -> str | None:
    return None if shutil.which("chromedriver") else "no ChromeDriver on the PATH"


def _cluster() -> str | None:
    from escala.lab.cluster import require_machine

    try:
        require_machine()
    except InputError as error:
        return str(error).rstrip(".")
    return None


# marker -> its name in ESCALA_REQUIRE, what is lacking (or None), the remedy
NEEDS = {
    "real_data": ("real-data", _genomes, "set it to a folder of CLASS.fasta[.gz] files"),
    "cluster": ("cluster", _cluster, "docs/how-to/lab.md tells what the lab takes"),
    "browser": (
        "browser",
        _chromium,
        "install both, on Debian: apt-get install chromium chromium-driver",
    ),
}


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start: a suite in the background inherits that it does not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # xdist's own hook reads the mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, and all those of the lab: there is one on a machine."""
    for item in items:
        one = "cluster" if item.get_closest_marker("cluster") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(one))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine lacks, with the remedy, or fail where ESCALA_REQUIRE names it."""
    required = os.environ.get("ESCALA_REQUIRE", "").split(",")
    for marker, (name, lacking, remedy) in NEEDS.items():
        if item.get_closest_marker(marker):
            reason = lacking()
            if reason:
                end = pytest.fail if name in required else pytest.skip
                end(f"{reason}; {remedy}", **({"pytrace": False} if name in required else {}))


@pytest.fixture(scope="session")
def small_split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split of small simulated genomes: 5 classes, 300 letters, 161 training rows.

    Batches of 32 leave one row for the last step of an epoch, and none for the second of two ranks.
    """
    from escala.acquire import acquire
    from escala.prepare.arrays import write_arrays
    from escala.prepare.fasta import encode_classes

    folder = tmp_path_factory.mktemp("small")
    source = {
        "type": "simulated",
        "seed": 1,
        "difficulty": 0.3,
        "records": dict.fromkeys(CLASSES, 46),
    }
    acquire(source, CLASSES, folder / "sequences", folder / "lock.tsv")
    encode_classes(folder / "sequences", CLASSES, 300, "none", folder)
    preparation = {
        "provenance": "simulated",
        "classes": CLASSES,
        "length": 300,
        "window": {"method": "start", "reverse_complement": False},
        "deduplicate": "none",
        "similarity": 0.95,
        "split": {"by": "random", "test_fraction": 0.3},
        "oversample": {"method": "none", "order": "after-split"},
    }
    write_arrays("small", preparation, 4, folder, folder / "split4")
    return folder / "split4"


@pytest.fixture(scope="session")
def request_for():
    """Build what the workflow hands to a run: a strategy, a layout, and changes to the rest."""

    def build(strategy: str, layout: str, **training: object) -> dict:
        names = ("instrument", "max_steps", "workload")
        knobs = training.pop("knobs", {})
        changes = {k: training.pop(k) for k in list(training) if k in names}
        fits = {"kmer-logreg": {"k": 6, "C": 1.0, "max_iterations": 1000}, "majority": {}}
        return {
            "experiment": "test",
            "dataset": "small",
            "workload": "virus-cnn",
            "strategy": strategy,
            "layout": layout,
            "variant": "tuned",
            "network": "native",
            "repeat": None if changes.get("instrument") else 1,
            "pair": None,
            "instrument": None,
            "training": {"save_model": False}
            | fits.get(
                changes.get("workload"),
                {
                    "epochs": 1,
                    "batch": {"rows": 32, "per": "global"},
                    "learning_rate": {"value": 0.001, "reference_batch": 32, "rule": "constant"},
                    "seed": 0,
                    "validate": False,
                    "tensorboard": False,
                    "checkpoint_epochs": None,
                },
            )
            | training,
            "knobs": KNOBS | knobs,
            "link": {"interface": None, "rate": None},
            "launcher": "auto",
            "oversubscribe": True,
            "max_steps": None,
            "sample_seconds": 0.1 if changes.get("instrument") == "resources" else None,
            "compared_with": [],
        } | changes

    return build
