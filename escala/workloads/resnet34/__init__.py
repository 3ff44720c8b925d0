"""The workload `resnet34`: a residual network for pictures."""

#: Blocks of each stage, by depth.
BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
#: Fraction of the old value that a moving mean keeps. PyTorch's momentum, 0.1, is the fraction of
#: the new value.
MOMENTUM, EPSILON = 0.9, 1e-5
