"""The engine of PyTorch. It has an environment of its own, and only ranks import it."""
