"""Train a regression with a TensorFlow loop of its own and Horovod's gradient tape."""

import argparse

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from escala_steps import begin, epoch, score, step


def made(rows, seed):
    drawn = np.random.default_rng(seed)
    x = drawn.normal(size=(rows, 32)).astype(np.float32)
    return x, (np.sin(x).sum(1, keepdims=True)).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128, help="rows of a step of a process")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    hvd.init()
    tf.random.set_seed(args.seed)
    x, y = made(args.rows, args.seed)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank())
    data = data.shuffle(args.rows, args.seed).batch(args.batch_size, drop_remainder=True)

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Dense(512, "tanh"), layers.Dense(512, "tanh"), layers.Dense(1)]
    )
    model.build((None, 32))
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train(rows, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(rows, training=True) - targets))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    hvd.broadcast_variables(model.variables, root_rank=0)
    for number in range(args.epochs):
        begin()
        for rows, targets in data:
            loss = train(rows, targets).numpy()
            step(rows=len(rows))
        epoch(loss=loss)
        if hvd.rank() == 0:
            print(f"epoch {number + 1}: loss {loss:.4f}")

    x, y = made(1024, args.seed + 1)
    score(test_mse=float(np.mean((model(x).numpy() - y) ** 2)))


if __name__ == "__main__":
    main()
