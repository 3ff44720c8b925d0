"""The engine of JAX."""
