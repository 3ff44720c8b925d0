"""Datasets: what training reads."""
