"""Update a dense layer's kernel faster, equal to TensorFlow's update to rounding.

`rmsprop` updates a kernel by the two factors of its gradient, without their product. `operations`
compiles what it takes from `operations.cc`.
"""
