"""The engine of PyTorch, and its description for `escala check`. Only ranks import its modules."""


def describe() -> str:
    """Return the release of PyTorch, and the devices that it computes on."""
    import torch

    cuda = f"CUDA {torch.version.cuda}, GPUs: {torch.cuda.device_count()}"
    return f"torch {torch.__version__} for {cuda if torch.version.cuda else 'processors'}"
