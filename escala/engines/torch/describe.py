"""Print what ranks import, with versions, and the devices that PyTorch computes on."""

import platform

import numpy
import psutil  # noqa: F401
import torch
import yaml  # noqa: F401

cuda = f"CUDA {torch.version.cuda}, GPUs: {torch.cuda.device_count()}"
print(
    f"torch {torch.__version__} for {cuda if torch.version.cuda else 'processors'}, "
    f"numpy {numpy.__version__}, Python {platform.python_version()}"
)
