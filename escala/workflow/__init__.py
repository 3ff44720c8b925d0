"""Extend Snakemake where the workflow needs it; the only package that knows its inner classes."""
