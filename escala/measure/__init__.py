"""Measure the runs of an experiment in one process: a session. Nothing here knows Snakemake."""
