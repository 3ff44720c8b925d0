"""Ranks of `tf.distribute`. The optimizer sums gradients, or a coordinator schedules steps.

`python -m escala.engines.tensorflow.distribute JSON` serves one task of a cluster with a parameter
server. JSON holds the arguments of `start_server`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.tsl.protobuf.coordination_config_pb2 import CoordinatedJob

from escala.core import children
from escala.core.errors import Unavailable
from escala.engines.tensorflow.layers import as_graph
from escala.engines.tensorflow.ranks import Ranks


class DistributeRanks(Ranks):
    """Ranks that are replicas of a `tf.distribute` strategy, in one or more processes."""

    gathers = False
    reads_clock = False
    #: Set by `start`: the `tf.distribute.Strategy`.
    tf_strategy = None

    @contextmanager
    def scope(self):
        with self.tf_strategy.scope(), tf.variable_creator_scope(_read_from_first_replica):
            yield

    def compile(self, step, signature):
        @as_graph(reduce_retracing=True)
        def on_all_replicas(*arguments):
            summed = []
            for values in self.tf_strategy.run(step, args=arguments):
                local = self.tf_strategy.experimental_local_results(values)
                summed.append(tf.add_n([tf.cast(value, tf.float32) for value in local]))
            return summed

        def distribute_values(values):
            # A process holds consecutive ranks. Its first rank is its first replica.
            first = self.place.ranks[0]
            return self.tf_strategy.experimental_distribute_values_from_function(
                lambda replica: tf.constant(values[replica.replica_id_in_sync_group - first])
            )

        def run(arguments):
            by_argument = zip(*arguments, strict=True)
            return [float(total) for total in on_all_replicas(*map(distribute_values, by_argument))]

        return run

    def exchange(self, gradients, variables):
        if self.knobs["sparse_as_dense"]:
            return [tf.convert_to_tensor(gradient) for gradient in gradients]
        return list(gradients)

    def sum_over_ranks(self, values, name):
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, values)

    def gather(self, values, name):
        return tf.distribute.get_replica_context().all_gather(values, axis=0)

    def _collective(self, operation, values, name):
        # `tf.distribute` sums only tensors on a device. A copy is on the replica's device.
        run = super()._collective
        result = self.tf_strategy.run(lambda: run(operation, tf.identity(values), name))
        return self.tf_strategy.experimental_local_results(result)[0]

    def broadcast(self, variables):
        """Do nothing: variables created in the scope start equal on all replicas."""

    def total(self, values):
        # In each process, the first replica adds the values, and the other replicas add zeros.
        zeros = np.zeros_like(values)
        values_of_replicas = self.tf_strategy.experimental_distribute_values_from_function(
            lambda replica: tf.constant(
                values if replica.replica_id_in_sync_group == self.place.ranks[0] else zeros
            )
        )
        return self._sum(values_of_replicas).numpy()

    @cached_property
    def _sum(self):
        return as_graph(reduce_retracing=True)(
            lambda value: self.tf_strategy.reduce("SUM", value, axis=None)
        )

    def weights(self, variables):
        copies = [self.tf_strategy.experimental_local_results(variable) for variable in variables]
        return [[copy.numpy() for copy in of_rank] for of_rank in zip(*copies, strict=True)]


def _read_from_first_replica(create, **options):
    """Create a variable. If replicas update it separately, reads are from the first replica.

    An example is moving statistics. By default, a read outside a step would aggregate them over all
    replicas, and all processes would have to read at the same time.
    """
    if options.get("synchronization") == tf.VariableSynchronization.ON_READ:
        options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return create(**options)


class MirroredRanks(DistributeRanks):
    """All ranks of one node in one process, each on a device of its own."""

    def start(self):
        ranks = self.place.ranks
        if gpus := tf.config.list_physical_devices("GPU"):
            if len(gpus) < len(ranks):
                raise Unavailable(
                    f"mirrored needs a GPU for each of {len(ranks)} ranks, and the node has "
                    f"{len(gpus)}. `device: cpu` computes on cores"
                )
            devices = tf.config.list_logical_devices("GPU")
        else:
            [processor] = tf.config.list_physical_devices("CPU")
            logical = [tf.config.LogicalDeviceConfiguration() for _ in ranks]
            tf.config.set_logical_device_configuration(processor, logical)
            devices = tf.config.list_logical_devices("CPU")
        self.tf_strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
        return ranks, self.tf_strategy.num_replicas_in_sync


#: By default, TensorFlow ends training after ten seconds without a heartbeat of a rank. On a link
#: of 10 Mbit/s, a heartbeat waits longer behind gradients. A launcher notices the end of a rank at
#: once, so a long time does no harm.
HEARTBEAT_SECONDS = 600


class MultiWorkerMirroredRanks(DistributeRanks):
    """A rank that is a process of its own."""

    def start(self):
        method = self.knobs["communication"]
        # Without this check, TensorFlow would silently use another method.
        if method == "nccl" and not tf.config.list_physical_devices("GPU"):
            raise Unavailable(f"communication: {method} needs GPUs, and TensorFlow finds no GPU")
        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": self.place.addresses},
                "task": {"type": "worker", "index": self.place.process},
            }
        )
        # `MultiWorkerMirroredStrategy` has no option for this time. It leaves a configured service
        # as it is.
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader="/job:worker/replica:0/task:0",
            heartbeat_timeout_in_ms=1000 * HEARTBEAT_SECONDS,
            coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=len(self.place.addresses))],
        )
        communication = tf.distribute.experimental.CommunicationImplementation
        self.tf_strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=communication[method.upper()]
            )
        )
        return [self.place.process], self.tf_strategy.num_replicas_in_sync


PROTOCOL = "grpc"
_POLL_SECONDS = 0.2


class ParameterServerRanks(Ranks):
    """The first process, the coordinator, drives all ranks. Other processes serve as workers.

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
        # A step waits in this pool for answers of other tasks, which come from the other tasks'
        # pools. With a single thread, the default on one core, all tasks would wait for ever.
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
