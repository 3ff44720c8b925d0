"""Train a regression with PyTorch; the script starts its processes itself by `mp.spawn`."""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def made(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 64, generator=generator)
    return x, torch.sin(x).sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1, generator=generator)


def train(rank, port, args):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    torch.manual_seed(args.seed)

    x, y = made(args.rows, args.seed)
    x, y = x[rank :: args.processes], y[rank :: args.processes]
    model = nn.Sequential(
        nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)
    )
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    per_process = args.batch_size // args.processes
    for epoch in range(args.epochs):
        order = torch.randperm(len(x))
        total = 0.0
        for start in range(0, len(x), per_process):
            selected = order[start : start + per_process]
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[selected]), y[selected])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(selected)
        if rank == 0:
            print(f"Epoch {epoch + 1}/{args.epochs} - loss {total / len(x):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256, help="rows of a step of all")
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    mp.spawn(train, (free_port(), arguments), nprocs=arguments.processes)
