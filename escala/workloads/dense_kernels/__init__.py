"""Faster ways to compute with a dense layer's kernel, equal to TensorFlow's to rounding.

`rmsprop` updates a kernel by the two factors of its gradient, without their product. `product`
computes the gradient of the layer's input. `operations` compiles what both take from
`operations.cc`.
"""
