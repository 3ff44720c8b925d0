"""Layers, updates and exchanges that are faster than Keras's, with the same updates to rounding.

Training asks `dense`. Models and their optimizers take `lookup` and `rmsprop`.
"""
