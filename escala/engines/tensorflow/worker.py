"""A task of the parameter-server strategy: `python -m escala.engines.tensorflow.worker JSON`.

The argument holds TensorFlow's cluster, the task's job and number in it, and its threads.
"""

from __future__ import annotations

import json
import sys

from escala.core.children import die_with_parent

PROTOCOL = "grpc"


def serve(cluster: dict[str, list[str]], job: str, index: int, threads: dict[str, int]):
    """Start TensorFlow's server of a task in this process, and return it."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads["intra_op"],
        # A step waits in this pool for answers that others give from theirs: with a single thread,
        # and that is the default on one core, all wait for ever.
        inter_op_parallelism_threads=threads["inter_op"] + 1,
    )
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster),
        job_name=job,
        task_index=index,
        protocol=PROTOCOL,
        config=config,
    )


def main() -> None:
    die_with_parent()
    cluster, job, index, threads = json.loads(sys.argv[1])
    serve(cluster, job, index, threads).join()


if __name__ == "__main__":
    main()
