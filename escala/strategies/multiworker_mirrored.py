"""`tf.distribute.MultiWorkerMirroredStrategy`: one process a rank, gradients summed over gRPC."""

from __future__ import annotations

from escala.strategies.base import SERVERS
from escala.strategies.distribute import Distribute


class MultiWorkerMirrored(Distribute):
    position = 6
    engine = "tensorflow.multiworker_mirrored"
    meets_by = SERVERS
