"""Train a network by Keras's `fit`, and under MultiWorkerMirroredStrategy if it has company.

It begins with the weights that the engines have with `initial_weights: seeded`, takes the same rows
in each step, and has the same optimizer.
"""

import numpy as np
import tensorflow as tf
from escala_steps import keras as escala_keras
from own_way import RANKS, Problem, arguments

from escala.engines.tensorflow import building
from escala.workloads.models import given as form_of


def dataset(problem: Problem) -> tf.data.Dataset:
    """Return the rows of all epochs in batches of (inputs, targets)."""
    orders = [problem.order(number) for number in range(1, problem.given.epochs + 1)]
    rows = tf.data.Dataset.from_tensor_slices(np.concatenate(orders))
    inputs, targets = [*map(tf.constant, problem.inputs)], tf.constant(problem.targets)
    batches = rows.batch(problem.given.rows, drop_remainder=True).map(
        lambda chosen: (
            form_of([tf.gather(each, chosen) for each in inputs]),
            tf.gather(targets, chosen),
        )
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options)


def main() -> None:
    given = arguments()
    tf.config.threading.set_intra_op_parallelism_threads(given.cores)
    tf.config.threading.set_inter_op_parallelism_threads(given.cores)
    distribute = tf.distribute
    strategy = distribute.MultiWorkerMirroredStrategy() if RANKS > 1 else distribute.get_strategy()
    problem = Problem(given, "tensorflow")
    with strategy.scope():
        model = problem.work.build(*problem.form)
        building.begin(model, given.seed)
        model.compile(
            problem.work.optimizer(problem.settings, given.rate, problem.knobs),
            lambda targets, outputs: problem.work.row_losses(
                tf.reshape(targets, [-1]), outputs, problem.settings
            ),
        )
    model.fit(
        dataset(problem),
        epochs=given.epochs,
        steps_per_epoch=len(problem.order(1)) // given.rows,
        callbacks=[escala_keras("tensorflow.keras.callbacks")],
        verbose=2,
    )


if __name__ == "__main__":
    main()
