"""A workload of the tests."""
