"""Classify scikit-learn's digits with Keras's `fit` and Horovod's callbacks."""

import argparse

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits


def network():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a step of a process")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())

    digits = load_digits()
    images, labels = digits.images[..., None] / 16, digits.target
    test = images[1536:], labels[1536:]
    mine = images[:1536][hvd.rank() :: hvd.size()], labels[:1536][hvd.rank() :: hvd.size()]

    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(args.lr * hvd.size()))
    model = network()
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        *mine,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=test,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )


if __name__ == "__main__":
    main()
