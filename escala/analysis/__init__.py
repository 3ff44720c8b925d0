"""Analyse runs: statistics, attribution, ladders, differences, leakage."""
