"""Group points into clusters with NumPy; each MPI process has a part of them."""

import argparse
import sys

import numpy as np
from mpi4py import MPI


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--clusters", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    world = MPI.COMM_WORLD
    drawn = np.random.default_rng([args.seed, world.rank])
    points = drawn.normal(size=(args.points // world.size, 16))
    centres = world.bcast(points[: args.clusters].copy())

    for iteration in range(args.iterations):
        distances = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)[None]
        nearest = distances.argmin(1)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, points)
        counts = np.bincount(nearest, minlength=args.clusters).astype(float)
        inertia = distances[np.arange(len(points)), nearest].sum()

        world.Allreduce(MPI.IN_PLACE, sums)
        world.Allreduce(MPI.IN_PLACE, counts)
        inertia = world.allreduce(inertia)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        if world.rank == 0:
            print(f"iteration {iteration + 1}: inertia {inertia:.1f}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
