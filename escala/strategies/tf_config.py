"""A program with `tf.distribute.MultiWorkerMirroredStrategy`, which reads `TF_CONFIG`."""

from __future__ import annotations

import json

from escala.strategies.shared.programs import ProgramStrategy


class TFConfig(ProgramStrategy):
    name = "tf-config"
    position = 11
    listens = True

    @staticmethod
    def process_variables(place, interface):
        task = {"type": "worker", "index": place.process}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": place.addresses}, "task": task})}
