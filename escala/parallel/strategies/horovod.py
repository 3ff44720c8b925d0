"""What the Horovod strategies share: synchronous data parallelism by allreduce."""

from __future__ import annotations

from escala.measure.timeline import GRADIENT
from escala.parallel.strategies.base import Strategy


class Horovod(Strategy):
    writes_timeline = True

    @staticmethod
    def environment(knobs):
        told = {
            "HOROVOD_FUSION_THRESHOLD": _bytes(knobs["fusion_threshold_mib"]),
            "HOROVOD_CYCLE_TIME": knobs["cycle_time_ms"],
            "HOROVOD_AUTOTUNE": int(knobs["autotune"]) or None,
        }
        return {name: str(value) for name, value in told.items() if value is not None}

    @staticmethod
    def timeline_environment(path, negotiation=True):
        details = {
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
            # With a warm response cache Horovod no longer logs who negotiated when.
            "HOROVOD_CACHE_CAPACITY": "0",
        }
        return {"HOROVOD_TIMELINE": str(path)} | (details if negotiation else {})

    def start(self):
        import horovod.tensorflow as hvd

        self._hvd = hvd
        hvd.init()
        return [hvd.rank()], hvd.size()

    def local(self, gradients):
        import tensorflow as tf

        if self.knobs["sparse_as_dense"]:
            return [tf.convert_to_tensor(gradient) for gradient in gradients]
        return list(gradients)

    def exchange(self, gradients, variables):
        compression = getattr(self._hvd.Compression, self.knobs["compression"])
        # Losses are already divided by the global number of rows, so gradients are summed:
        # an average would weigh the rows of a smaller shard more.
        return [
            self._hvd.allreduce(
                gradient,
                op=self._hvd.Sum,
                compression=compression,
                name=f"{GRADIENT}{variable.name.partition(':')[0]}",
            )
            for gradient, variable in zip(self.local(gradients), variables, strict=True)
        ]

    def broadcast(self, variables):
        self._hvd.broadcast_variables(variables, root_rank=0)

    def total(self, values):
        return self._hvd.allreduce(values, op=self._hvd.Sum, name="total").numpy()

    def stop(self):
        self._hvd.shutdown()


def _bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else round(mebibytes * 2**20)
