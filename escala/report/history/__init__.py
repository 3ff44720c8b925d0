"""Fill a history with the runs of experiments, and show how a configuration changed in it."""
