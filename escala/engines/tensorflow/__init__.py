"""The engine of TensorFlow 2.15 with Keras 2 and Horovod, and its description for `escala check`.

Its modules need TensorFlow, so only processes in the engine's environment import them. `strategies`
and `rendezvous` are the exceptions: they import no framework.
"""


def describe() -> str:
    """Return the releases of TensorFlow and Horovod, and the devices of TensorFlow."""
    import os
    from importlib.metadata import version

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import horovod.tensorflow  # noqa: F401
    import tensorflow

    gpus = len(tensorflow.config.list_physical_devices("GPU"))
    on = f"CUDA, GPUs: {gpus}" if tensorflow.test.is_built_with_cuda() else "processors"
    return f"tensorflow {tensorflow.__version__} for {on}, horovod {version('horovod')}"
