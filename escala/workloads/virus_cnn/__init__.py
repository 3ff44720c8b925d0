"""The workload `virus-cnn`: the convolutional virus classifier."""

from collections.abc import Mapping

from escala.core.errors import Unavailable
from escala.workloads import WORKLOADS


def require_plain_layers(knobs: Mapping) -> None:
    """Refuse values of knobs that only TensorFlow's engine has: all but the defaults."""
    for name, plain in WORKLOADS["virus-cnn"].knob_defaults.items():
        if knobs[name] != plain:
            raise Unavailable(f"{name}: {knobs[name]} needs another engine; use {name}: {plain}")
