"""The processes of a run under JAX: how processes join, sum and agree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from escala.engines.base import Group


class Ranks(Group):
    """One process of a run, and how its ranks exchange arrays of JAX.

    This base class is for the only rank of a run.
    """

    def sum_over_ranks(self, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Return the sums of some arrays over all ranks. Every rank must call this."""
        return arrays

    def broadcast(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the arrays of rank 0 on every rank. Every rank must call this."""
        return arrays


#: How ranks hold a vector: each rank a part, or each rank the whole vector.
_DIVIDED, _WHOLE = PartitionSpec("ranks"), PartitionSpec()


class GlooRanks(Ranks):
    """A rank with one device, the processor."""

    def start(self):
        place, address = self.place, self.place.extra_addresses[0]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            address, place.processes, place.process, coordinator_bind_address=address
        )
        mesh = Mesh(np.array(jax.devices()), ("ranks",))
        self._sharding = NamedSharding(mesh, _DIVIDED)
        total = partial(jax.lax.psum, axis_name="ranks")
        self._total = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=_DIVIDED, out_specs=_WHOLE))
        return [jax.process_index()], jax.process_count()

    def sum_over_ranks(self, arrays):
        # All arrays are summed as one vector; a sum for each array took 2 to 20 times as long.
        local = _join(arrays)
        shape = (self.place.processes * local.size,)
        vectors = jax.make_array_from_single_device_arrays(shape, self._sharding, [local])
        return _split_like(self._total(vectors).addressable_data(0), arrays)

    def collective(self, operation, size):
        values = [jnp.zeros(size // 4)]

        def seconds() -> float:
            began = time.perf_counter()
            jax.block_until_ready(self.sum_over_ranks(values))
            return time.perf_counter() - began

        return seconds

    def broadcast(self, arrays):
        return multihost_utils.broadcast_one_to_all(list(arrays))

    def total(self, values):
        # JAX has 64-bit numbers only if all its numbers have 64 bits, so 32-bit halves are
        # gathered.
        halves = np.ascontiguousarray(values, np.float64).view(np.uint32)
        return np.asarray(multihost_utils.process_allgather(halves)).view(np.float64).sum(axis=0)

    def stop(self):
        jax.distributed.shutdown()


#: A function that returns one vector with all numbers of some arrays.
_join = jax.jit(lambda arrays: jnp.concatenate([array.ravel() for array in arrays]))


@jax.jit
def _split_like(vector, like):
    """Return the arrays in a vector of `_join`, with the shapes of the arrays in `like`."""
    ends = np.cumsum([array.size for array in like])[:-1]
    parts = jnp.split(vector, ends)
    return [part.reshape(array.shape) for part, array in zip(parts, like, strict=True)]
