"""Training inside the process of a run: its arrays, steps, epochs and checkpoints."""
