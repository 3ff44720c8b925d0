"""The workload `cifar-cnn`: a convolutional network for small colour pictures."""
