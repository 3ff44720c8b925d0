"""`tf.distribute.MultiWorkerMirroredStrategy`: one process a rank, gradients summed over gRPC."""

from __future__ import annotations

import json
import os

from escala.core.errors import Unavailable
from escala.strategies.distribute import Distribute


class MultiWorkerMirrored(Distribute):
    name = "multiworker-mirrored"
    position = 6
    listens = True

    def start(self):
        import tensorflow as tf

        asked = self.knobs["communication"]
        # TensorFlow would silently use another method.
        if asked == "nccl" and not tf.config.list_physical_devices("GPU"):
            raise Unavailable(f"communication: {asked} takes GPUs, and there are none")
        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": self.place.addresses},
                "task": {"type": "worker", "index": self.place.process},
            }
        )
        communication = tf.distribute.experimental.CommunicationImplementation
        self.tf_strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=communication[asked.upper()]
            )
        )
        return [self.place.process], self.tf_strategy.num_replicas_in_sync
