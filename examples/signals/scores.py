import numpy as np


def score(targets, predictions, description):
    return {"rmse": float(np.sqrt(np.mean((targets - predictions) ** 2)))}
