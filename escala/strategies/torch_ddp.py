"""PyTorch's DistributedDataParallel in a program that reads its place from the environment."""

from __future__ import annotations

from escala.strategies.shared.programs import ProgramStrategy, torchrun_variables


class TorchDDP(ProgramStrategy):
    name = "torch-ddp"
    position = 8

    @staticmethod
    def process_variables(place, interface):
        # Otherwise both libraries choose an interface by the name of the host.
        return torchrun_variables(place, interface) | {
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
        }
