"""Measure the time to ask the store, to store, to serve and to maintain: median, least and most.

Everything stands in --folder, a temporary one unless given, and is removed. `cp` of the same bytes
is timed alongside, as what copying alone takes there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common import say, seconds, spread
from escala.cache import store, upkeep

ASKED = """
import time
start = time.perf_counter()
from escala.cache.sources import package_versions, sources
imported = time.perf_counter()
package_versions(sources({module!r}).packages, ["openmpi"])
print(imported - start, time.perf_counter() - imported)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the file system to measure")
    parser.add_argument("--megabytes", type=int, default=256, help="of the large output (256)")
    parser.add_argument("--files", type=int, default=500, help="of 1 kB, in the folder (500)")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for module in ("scripts.encode", "scripts.train", "scripts.figure"):
        _ask(module, arguments.repeats)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        os.environ[store.LOCATION] = f"{folder}/store"
        _file(Path(folder), arguments.megabytes, arguments.repeats)
        _folder(Path(folder), arguments.files, arguments.repeats)
        root = store.location()
        for act in (upkeep.size, upkeep.verify, upkeep.prune):
            say(f"{act.__name__} of the whole store", [seconds(act, root) for _ in range(3)])


def _ask(module: str, repeats: int) -> None:
    """Time what a key takes besides its inputs, each time in a new Python."""
    code = ASKED.format(module=module)
    found = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(repeats)
    ]
    spent = [sum(map(float, done.stdout.split())) for done in found]
    say(f"code and versions of {module}, imports and all", spent)


def _file(folder: Path, megabytes: int, repeats: int) -> None:
    source, target = folder / "source", folder / "model"
    written = np.random.default_rng(0).bytes(megabytes * 1_000_000)
    source.write_bytes(written)
    rates: dict[str, list[float]] = {"cp": [], "store": [], "serve": []}
    for repeat in range(repeats):
        target.unlink(missing_ok=True)
        rates["cp"].append(seconds(shutil.copyfile, source, target))
        with open(target, "r+b") as handle:
            handle.write(b"%d" % repeat)
        rates["store"].append(seconds(_made, repeat, target, "made"))
        rates["serve"].append(seconds(_made, repeat, target, "served"))
        upkeep.prune(store.location(), larger_than_bytes=0)
    for name, spent in rates.items():
        print(f"{name} one file of {megabytes} MB: {spread([megabytes / s for s in spent])} MB/s")


def _folder(folder: Path, files: int, repeats: int) -> None:
    target = folder / "logs"
    stored, served = [], []
    for repeat in range(repeats):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for number in range(files):
            (target / str(number)).write_bytes(b"%d %d " % (repeat, number) * 100)
        stored.append(seconds(_made, repeat, target, "made"))
        served.append(seconds(_made, repeat, target, "served"))
    say(f"store a folder of {files} small files", stored)
    say(f"serve a folder of {files} small files", served)


def _made(number: int, target: Path, expected: str) -> None:
    outcome = store.get_or_compute(
        "benchmark",
        code="scripts.encode",
        inputs={},
        parameters={"number": number, "name": target.name},
        outputs={"output": target},
        make=lambda: None,
    )
    if outcome != expected:
        raise SystemExit(f"{target} was {outcome}, not {expected}")


if __name__ == "__main__":
    main()
