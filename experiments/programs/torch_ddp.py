"""Classify scikit-learn's digits with PyTorch's DistributedDataParallel, on CPUs or GPUs.

Its processes find each other by the environment: `torchrun --nproc-per-node 2 torch_ddp.py`.
"""

import argparse
import os

import torch
import torch.distributed as dist
from escala_steps import epoch, score, steps
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a step of a process")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(args.seed)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train = TensorDataset(images[:1536], labels[:1536])
    test_images, test_labels = images[1536:].to(device), labels[1536:].to(device)

    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    for number in range(args.epochs):
        sampler.set_epoch(number)
        for x, y in steps(loader):
            optimizer.zero_grad()
            loss = loss_of(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        epoch(loss=loss.item())
        if dist.get_rank() == 0:
            print(f"epoch {number + 1}: loss {loss.item():.4f}")

    with torch.no_grad():
        right = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
    score(test_accuracy=right)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
