"""Ranks of `tf.distribute.MirroredStrategy`: all in one process, each on its device."""

from __future__ import annotations

import tensorflow as tf

from escala.core.errors import Unavailable
from escala.engines.tensorflow.distribute import Distribute


class Mirrored(Distribute):
    def start(self):
        ranks = self.place.ranks
        if gpus := tf.config.list_physical_devices("GPU"):
            if len(gpus) < len(ranks):
                raise Unavailable(
                    f"mirrored needs a GPU for each of {len(ranks)} ranks, and the node has "
                    f"{len(gpus)}. `device: cpu` computes on cores"
                )
            devices = tf.config.list_logical_devices("GPU")
        else:
            [processor] = tf.config.list_physical_devices("CPU")
            logical = [tf.config.LogicalDeviceConfiguration() for _ in ranks]
            tf.config.set_logical_device_configuration(processor, logical)
            devices = tf.config.list_logical_devices("CPU")
        self.tf_strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
        return ranks, self.tf_strategy.num_replicas_in_sync


RANKS = Mirrored
