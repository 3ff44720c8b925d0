"""Analyse runs: statistics, verdicts, attribution, laws, predictions, advice."""
