"""The engine of JAX, and its description for `escala check`. Only ranks import its modules."""


def describe() -> str:
    """Return the release of JAX, and the devices that it computes on."""
    import jax
    import jaxlib

    return f"jax {jax.__version__} for processors, jaxlib {jaxlib.__version__}"
