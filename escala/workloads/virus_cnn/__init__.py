"""The workload `virus-cnn`: the convolutional virus classifier."""
