"""Set `description` to JAX's release and the devices that it computes on."""

import jax
import jaxlib

description = f"jax {jax.__version__} for processors, jaxlib {jaxlib.__version__}"
