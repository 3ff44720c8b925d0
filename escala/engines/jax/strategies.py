"""Strategies of JAX: one process, and several that sum by Gloo."""

from __future__ import annotations

from escala.strategies.base import EvaluatesInParts, Layouts, Strategy


class JAX(Strategy):
    """Models are of JAX, and computed by processors."""

    @classmethod
    def find_refusals(cls, knobs, checkpoint_epochs):
        if knobs["device"] == "gpu":
            yield "device", "is not of JAX here, which computes on processors", "use auto or cpu"
        if knobs["products"] == "bfloat16":
            yield "products", "is not supported by the engine of JAX", "use float32"
        threads = knobs["threads"]
        if "inter_op" in threads and threads["inter_op"] != threads.get("intra_op"):
            reason = "has two numbers, and XLA has one pool of threads for both"
            yield "threads", reason, "leave inter_op out"


class JAXSingle(JAX):
    """One process of JAX, which has nothing to synchronise."""

    name = "jax-single"
    title = "JAX by itself"
    position = 30
    engine = "jax.ranks.Ranks"
    layouts = Layouts(one_rank=True)


class JAXGloo(JAX, EvaluatesInParts):
    """Processes of `jax.distributed`: gradients are summed by Gloo, in a compiled function.

    jaxlib finds Gloo's address by the name of the host, so they are on one node.
    """

    name = "jax-gloo"
    title = "JAX over Gloo"
    position = 31
    engine = "jax.ranks.GlooRanks"
    library = "jax-gloo"
    layouts = Layouts(one_node=True)
