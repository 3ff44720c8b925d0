"""`tf.distribute.MirroredStrategy`: all ranks of one node in one process, each on its device.

The devices are the node's GPUs where it has any, and logical CPU devices otherwise.
"""

from __future__ import annotations

from escala.strategies.base import Layouts
from escala.strategies.distribute import Distribute


class Mirrored(Distribute):
    position = 5
    engine = "tensorflow.mirrored"
    layouts = Layouts(one_node=True, process_per_node=True)
