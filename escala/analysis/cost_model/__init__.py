"""Predict the time of a step, an epoch and a run from a calibration of one node and a network.

    step = compute(rows, cores, contention) + exposed exchange + update + skew

A prediction takes step times of one process, the sizes of the gradients and times of collectives.
It needs no run of the layout that it predicts, and no knowledge of the framework.

| module | content |
|---|---|
| `document` | a calibration's document, from the runs that calibrate (`recorded_steps`) |
| `calibration` | the measured times, read from JSON (`reading`), and resampled (`resample`) |
| `computing` | times of processes that compute at the same time |
| `collectives` | algorithms of allreduce and allgather, and which one a library chooses |
| `transfers` | time of a collective, fitted to the measured ones, also on other `networks` |
| `messages` | what ranks exchange in a step |
| `overlap` | the part of an exchange that computing does not hide |
| `predict` | the terms of a step with their intervals, an epoch, a run |
| `predictions` | the configurations of an experiment, predicted |
| `bounds` | of a program, from `program_costs` |
"""
