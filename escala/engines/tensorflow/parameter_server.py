"""Workers of `tf.distribute.ParameterServerStrategy`, and the coordinator that gives them steps.

`python -m escala.engines.tensorflow.parameter_server JSON` serves a task of the cluster. The
argument holds the arguments of `start_server`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cached_property

import tensorflow as tf

from escala.core import children
from escala.core.errors import Unavailable
from escala.engines.tensorflow.layers import as_graph
from escala.engines.tensorflow.ranks import Ranks

PROTOCOL = "grpc"
_POLL_SECONDS = 0.2


class ParameterServerRanks(Ranks):
    """The first process is the coordinator, which drives all ranks; the others serve as workers.

    The coordinator also starts two tasks: the parameter server, and the worker of rank 0.
    """

    gathers = False
    reads_clock = False

    @property
    def driven(self):
        return range(self.place.processes)

    def start(self):
        if self.place.process:
            threads = self.knobs["threads"]
            self._server = start_server(self._cluster, "worker", self.place.process, threads)
            return self.place.ranks, self.place.processes
        self._tasks = []
        try:
            for job in ("ps", "worker"):
                argument = json.dumps([self._cluster, job, 0, self.knobs["threads"]])
                command = [sys.executable, "-m", __name__, argument]
                self._tasks.append(children.start(command, os.environ, None))
            cluster = tf.train.ClusterSpec(self._cluster)
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                cluster, task_type="chief", task_id=0, rpc_layer=PROTOCOL
            )
            self.tf_strategy = tf.distribute.ParameterServerStrategy(resolver)
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.tf_strategy)
        except BaseException:
            self.stop()
            raise
        return self.place.ranks, len(resolver.cluster_spec().as_dict()["worker"])

    @cached_property
    def _cluster(self):
        chief, server = self.place.extra_addresses
        return {"worker": self.place.addresses, "ps": [server], "chief": [chief]}

    def scope(self):
        return self.tf_strategy.scope()

    def compile(self, step, signature):
        replicas, coordinator = self.tf_strategy, self._coordinator

        @as_graph(input_signature=signature)
        def on_worker(*arguments):
            return tf.stack(replicas.run(step, args=arguments))

        def run(arguments):
            scheduled = [coordinator.schedule(on_worker, args=rows) for rows in arguments]
            [sums] = on_worker.get_concrete_function().structured_outputs.shape
            return [_LazySum(scheduled, index) for index in range(sums)]

        return run

    def sum_over_ranks(self, values, name):
        raise Unavailable("parameter-server has no step that all ranks make together")

    def join(self):
        self._coordinator.join()

    def stop(self):
        if not self.place.process:
            children.stop(self._tasks, grace_seconds=0)

    def serve(self, folder):
        if not self.place.process:
            return False
        end_files = [folder / "rank0.json", folder / "rank0.error.json"]
        while not any(file.exists() for file in end_files):
            time.sleep(_POLL_SECONDS)
        return True


class _LazySum:
    """The sum, over scheduled steps, of the value at one position of their results.

    `float` waits for the steps.
    """

    def __init__(self, scheduled: list, index: int):
        self._scheduled, self._index = scheduled, index

    def __float__(self) -> float:
        return float(sum(value.fetch()[self._index] for value in self._scheduled))


def start_server(cluster: dict[str, list[str]], job: str, index: int, threads: dict[str, int]):
    """Start the server of a task in this process, and return it.

    `cluster` has the addresses of the tasks of each job, and `index` is the number of the task.
    """
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads["intra_op"],
        # A step waits in this pool for answers that other tasks give from theirs. With a single
        # thread, the default on one core, all would wait for ever.
        inter_op_parallelism_threads=threads["inter_op"] + 1,
    )
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster),
        job_name=job,
        task_index=index,
        protocol=PROTOCOL,
        config=config,
    )


if __name__ == "__main__":
    start_server(*json.loads(sys.argv[1])).join()
