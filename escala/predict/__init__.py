"""Classify sequences of a user's with a trained model, and tell those unlike anything seen."""
