"""The workload `mlp`: a multilayer perceptron."""
