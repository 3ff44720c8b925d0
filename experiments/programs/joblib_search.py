"""Choose the settings of a classifier with scikit-learn; joblib divides the fits."""

import argparse

from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import GridSearchCV


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes that fit at a time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    x, y = load_digits(return_X_y=True)
    search = GridSearchCV(
        HistGradientBoostingClassifier(max_iter=15, random_state=args.seed),
        {"learning_rate": [0.1, 0.3], "max_leaf_nodes": [15, 31]},
        cv=3,
        n_jobs=args.jobs,
    )
    search.fit(x[:900], y[:900])
    print("best settings", search.best_params_)
    print("score", search.score(x[900:], y[900:]))


if __name__ == "__main__":
    main()
