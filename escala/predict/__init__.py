"""Classify a user's own data with a trained model, and flag unfamiliar items."""

#: The file with the errors by length, alongside a run's model.
LENGTH_ERRORS = "length_errors.json"
