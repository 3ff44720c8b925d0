"""The workload `majority`: the most frequent class, always."""
