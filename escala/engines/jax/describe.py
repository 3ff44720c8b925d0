"""Print what ranks import, with versions, and the devices that JAX computes on."""

import platform
from importlib import import_module

import jax
import jaxlib
import numpy

# Ranks import them, too.
for name in ("psutil", "yaml"):
    import_module(name)
print(
    f"jax {jax.__version__} for processors, jaxlib {jaxlib.__version__}, "
    f"numpy {numpy.__version__}, Python {platform.python_version()}"
)
