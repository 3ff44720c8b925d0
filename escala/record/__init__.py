"""One run, from its request to run.json, and the values by which two runs are comparable."""
