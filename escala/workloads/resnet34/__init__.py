"""The workload `resnet34`: a residual network for pictures."""
