"""Classify scikit-learn's digits with MultiWorkerMirroredStrategy, which reads TF_CONFIG."""

import argparse

import tensorflow as tf
from escala_steps import keras as escala_keras
from sklearn.datasets import load_digits


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a step of all workers")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(args.seed)

    digits = load_digits()
    images, labels = digits.images[..., None].astype("float32") / 16, digits.target
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA

    def dataset(part):
        rows = tf.data.Dataset.from_tensor_slices((images[part], labels[part]))
        return rows.batch(args.batch_size, drop_remainder=True).with_options(options)

    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Conv2D(64, 3, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        dataset(slice(None, 1536)),
        epochs=args.epochs,
        validation_data=dataset(slice(1536, None)),
        callbacks=[escala_keras()],
        verbose=2,
    )


if __name__ == "__main__":
    main()
