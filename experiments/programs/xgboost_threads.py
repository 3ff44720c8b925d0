"""Train boosted trees with XGBoost, on threads of one process."""

import argparse

import numpy as np
import xgboost


def made(rows, seed):
    drawn = np.random.default_rng(seed)
    x = drawn.normal(size=(rows, 40)).astype(np.float32)
    return xgboost.DMatrix(x, (np.sin(x[:, :5]).sum(1) > 0.5 * x[:, 5] ** 2).astype(int))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    train, test = made(args.rows, args.seed), made(args.rows // 10, args.seed + 1)
    settings = {
        "objective": "binary:logistic",
        "eval_metric": "logloss",
        "max_depth": 8,
        "nthread": args.threads,
        "seed": args.seed,
    }
    xgboost.train(settings, train, args.rounds, evals=[(test, "test")])


if __name__ == "__main__":
    main()
