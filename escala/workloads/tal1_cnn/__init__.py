"""The workload `tal1-cnn`: a small convolutional network that finds a motif in DNA."""
