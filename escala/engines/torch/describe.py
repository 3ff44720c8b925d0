"""Set `description` to PyTorch's release and the devices that it computes on."""

import torch

cuda = f"CUDA {torch.version.cuda}, GPUs: {torch.cuda.device_count()}"
description = f"torch {torch.__version__} for {cuda if torch.version.cuda else 'processors'}"
