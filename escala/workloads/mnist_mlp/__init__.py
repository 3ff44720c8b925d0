"""The workload `mnist-mlp`: a dense network for small pictures."""
