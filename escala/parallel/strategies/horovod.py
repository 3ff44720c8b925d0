"""What the Horovod strategies share: synchronous data parallelism by allreduce."""

from __future__ import annotations

from escala.parallel.strategies.base import Strategy


class Horovod(Strategy):
    writes_timeline = True

    @staticmethod
    def timeline_environment(path):
        return {
            "HOROVOD_TIMELINE": str(path),
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            # With a warm response cache Horovod no longer logs who negotiated when.
            "HOROVOD_CACHE_CAPACITY": "0",
        }

    def start(self):
        import horovod.tensorflow as hvd

        self._hvd = hvd
        hvd.init()
        return hvd.rank(), hvd.size()

    def tape(self, tape):
        # Losses are already divided by the global number of rows, so gradients are summed:
        # an average would weigh the rows of a smaller shard more.
        return self._hvd.DistributedGradientTape(
            tape, op=self._hvd.Sum, sparse_as_dense=self.knobs["sparse_as_dense"]
        )

    def broadcast(self, variables):
        self._hvd.broadcast_variables(variables, root_rank=0)

    def total(self, values):
        return self._hvd.allreduce(values, op=self._hvd.Sum, name="total").numpy()

    def stop(self):
        self._hvd.shutdown()
