"""Forget the failed runs of an experiment, so that the next call of Snakemake repeats them."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.errors import InputError
from escala.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", type=Path, help="its folder, results/NAME")
    folder = parser.parse_args().experiment
    if not (folder / "runs").is_dir():
        raise InputError(folder, str(folder), "holds no runs", "name a folder results/NAME")
    paths = sorted(folder.glob("runs/**/run.json"))
    failed = [path for path in paths if read_json(path)["status"] != "ok"]
    for path in failed:
        path.unlink()
        print(f"removed {path}")
    print(f"{len(failed)} of {len(paths)} runs will be repeated by the next call of Snakemake.")


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
