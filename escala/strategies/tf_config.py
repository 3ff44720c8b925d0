"""A program with `tf.distribute.MultiWorkerMirroredStrategy`, which reads `TF_CONFIG`."""

from __future__ import annotations

import json

from escala.strategies.base import SERVERS, UNKNOWN, Strategy


class TFConfig(Strategy):
    position = 11
    programs = UNKNOWN
    meets_by = SERVERS

    @classmethod
    def process_variables(cls, place, interface):
        task = {"type": "worker", "index": place.process}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": place.addresses}, "task": task})}
