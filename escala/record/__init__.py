"""One run, from its request to run.json, and what makes two of them comparable."""
