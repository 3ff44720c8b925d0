"""Print what ranks import, with versions, and the devices that PyTorch computes on."""

import platform
from importlib import import_module

import numpy
import torch

# Ranks import them, too.
for name in ("psutil", "yaml"):
    import_module(name)
cuda = f"CUDA {torch.version.cuda}, GPUs: {torch.cuda.device_count()}"
print(
    f"torch {torch.__version__} for {cuda if torch.version.cuda else 'processors'}, "
    f"numpy {numpy.__version__}, Python {platform.python_version()}"
)
