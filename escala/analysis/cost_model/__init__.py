"""Predict the time of a step, an epoch and a run from a calibration of one node and a network.

    step = compute(rows, cores, contention) + exposed exchange + update + skew

A prediction takes step times of one process, the sizes of the gradients and times of collectives.
It needs no run of the layout that it predicts, and no knowledge of the framework.

| module | content |
|---|---|
| `collectives` | algorithms of allreduce and allgather, and which one a library chooses |
| `networks` | rates of networks that were not calibrated |
| `document` | a calibration's document, from the runs that calibrate |
| `calibration` | the measured times, read from JSON, and resampled |
| `transfers` | time of a collective, fitted to the measured ones |
| `messages` | what ranks exchange in a step |
| `overlap` | the part of an exchange that computing does not hide |
| `predict` | the terms of a step with their intervals, an epoch, a run, the time to a score |
| `predictions` | the configurations of an experiment, predicted |
"""
