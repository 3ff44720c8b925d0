"""Arguments, rows, settings and the seed of the weights of both programs of this folder."""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from escala.data import reader
from escala.data.base import output_shape
from escala.training.shards import epoch_order
from escala.workloads import WORKLOADS, workload

#: Processes, and the number of this one.
CLUSTER = json.loads(os.environ.get("TF_CONFIG", "{}"))
RANKS = len(CLUSTER["cluster"]["worker"]) if CLUSTER else int(os.environ.get("WORLD_SIZE", "1"))
RANK = CLUSTER["task"]["index"] if CLUSTER else int(os.environ.get("RANK", "0"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train one of the project's networks.")
    parser.add_argument("network", help="name of its workload")
    parser.add_argument("--split", required=True, help="folder of the prepared arrays")
    parser.add_argument("--rows", type=int, required=True, help="of a step of all processes")
    parser.add_argument("--rate", type=float, required=True, help="of learning")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the workload, as JSON")
    for name in ("epochs", "seed", "cores"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


class Problem:
    """The network of a workload and its rows.

    Attributes
    ----------
    work : the module of the workload for this framework.
    inputs, targets : all training rows.
    form : what `build` takes: forms of inputs and outputs, settings, knobs.
    """

    def __init__(self, given: argparse.Namespace, engine: str):
        declared, data = WORKLOADS[given.network], reader(given.split)
        self.given, self.work = given, workload(given.network, engine)
        self.inputs, self.targets = data.gather("train", np.arange(data.rows("train")))
        self.settings = declared.setting_defaults | given.settings
        self.knobs = declared.knob_defaults
        outputs = output_shape(data.description)
        self.form = data.inputs, outputs, self.settings, self.knobs

    def order(self, epoch: int) -> np.ndarray:
        """Return the order of the rows in an epoch from 1, without a part of a step at the end."""
        rows = epoch_order(len(self.targets), self.given.seed, epoch)
        return rows[: len(rows) // self.given.rows * self.given.rows]
