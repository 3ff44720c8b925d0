"""Train with plain Horovod, which each of two ranks runs: `python plain_horovod.py TIMELINE STEPS`.

Rank 0 writes TIMELINE. Rank 1 is killed after the steps, while rank 0 waits for it.
"""

import os
import signal
import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf

timeline, steps = sys.argv[1:]
os.environ["HOROVOD_TIMELINE"] = timeline
tf.config.threading.set_intra_op_parallelism_threads(1)
hvd.init()
kernel = tf.Variable(tf.zeros((512, 256)))
bias = tf.Variable(tf.zeros(256))


@tf.function
def step(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(inputs @ kernel + bias - 1))
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, [kernel, bias])
    for variable, gradient in zip([kernel, bias], gradients, strict=True):
        variable.assign_sub(0.01 * gradient)


hvd.broadcast_variables([kernel, bias], root_rank=0)
for _ in range(int(steps)):
    if hvd.rank() == 1:
        time.sleep(0.02)
    step(tf.ones((8, 512)))
if hvd.rank() == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
step(tf.ones((8, 512)))
