"""Ranks of `tf.distribute.MultiWorkerMirroredStrategy`: a process each, sums over gRPC."""

from __future__ import annotations

import json
import os

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.tsl.protobuf.coordination_config_pb2 import CoordinatedJob

from escala.core.errors import Unavailable
from escala.engines.tensorflow.distribute import Distribute

#: TensorFlow ends training if a rank is not heard for ten seconds. On a link of 10 Mbit/s, a
#: heartbeat waits longer behind gradients. A rank that ends is noticed by its launcher, at once.
HEARTBEAT_SECONDS = 600


class MultiWorkerMirrored(Distribute):
    def start(self):
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
        _wait_for_heartbeats(len(self.place.addresses))
        communication = tf.distribute.experimental.CommunicationImplementation
        self.tf_strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=communication[asked.upper()]
            )
        )
        return [self.place.process], self.tf_strategy.num_replicas_in_sync


def _wait_for_heartbeats(ranks: int) -> None:
    """Let ranks be silent for `HEARTBEAT_SECONDS`.

    `MultiWorkerMirroredStrategy` configures this service only if nobody did, and has no option for
    the time.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=1000 * HEARTBEAT_SECONDS,
        coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=ranks)],
    )


RANKS = MultiWorkerMirrored
