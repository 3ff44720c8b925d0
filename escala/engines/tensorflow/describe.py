"""Print what ranks import, with versions, and the devices that TensorFlow computes on."""

import os
import platform
from importlib import import_module
from importlib.metadata import version

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy
import tensorflow

# Ranks import them, too.
for name in ("horovod.tensorflow", "psutil", "yaml"):
    import_module(name)
gpus = len(tensorflow.config.list_physical_devices("GPU"))
cuda = f"CUDA, GPUs: {gpus}"
print(
    f"tensorflow {tensorflow.__version__} for "
    f"{cuda if tensorflow.test.is_built_with_cuda() else 'processors'}, "
    f"horovod {version('horovod')}, numpy {numpy.__version__}, Python {platform.python_version()}"
)
