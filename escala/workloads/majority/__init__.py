"""The workload `majority`: it always predicts the most frequent class."""
