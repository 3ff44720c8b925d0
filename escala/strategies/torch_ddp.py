"""PyTorch's DistributedDataParallel in a program that reads its place from the environment."""

from __future__ import annotations

from escala.strategies.base import Strategy
from escala.strategies.programs import torchrun_variables


class TorchDDP(Strategy):
    position = 8
    programs = "torch"

    @classmethod
    def process_variables(cls, place, interface):
        # What `torchrun` sets besides. By the run's name Lightning and others know that somebody
        # else starts the processes. There is no agent whose store they could use.
        return torchrun_variables(place, interface) | {
            "ROLE_NAME": "default",
            "ROLE_RANK": str(place.process),
            "ROLE_WORLD_SIZE": str(place.processes),
            "TORCHELASTIC_RUN_ID": "escala",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
