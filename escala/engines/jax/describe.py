"""Print what ranks import, with versions, and the devices that JAX computes on."""

import platform

import jax
import jaxlib
import numpy
import psutil  # noqa: F401
import yaml  # noqa: F401

print(
    f"jax {jax.__version__} for processors, jaxlib {jaxlib.__version__}, "
    f"numpy {numpy.__version__}, Python {platform.python_version()}"
)
