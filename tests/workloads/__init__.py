"""Workloads of tests, in the form of those of the project."""
