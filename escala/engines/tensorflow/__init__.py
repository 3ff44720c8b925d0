"""TensorFlow 2.15 with Keras 2, and Horovod: all that imports these frameworks."""
