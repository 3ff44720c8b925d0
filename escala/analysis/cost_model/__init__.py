"""Predict the time of a step, an epoch and a run from a calibration of one node and a network.

    step = compute(rows, cores, contention) + exposed exchange + update + skew

A prediction takes step times of one process, the sizes of the gradients and times of collectives.
It needs no run of the layout that it predicts, and no knowledge of the framework.

| module | content |
|---|---|
| `works` | what one process computes, and each configuration as the model needs it |
| `calibrating` | the runs that calibrate |
| `document` | a calibration's document, from the runs of `calibrating` |
| `calibration` | the measured times, read from JSON |
| `resample` | resamples of the measured times |
| `transfers` | time of a collective, fitted to measured times, also on other networks |
| `exchange` | what ranks exchange in a step, and the part of it that computing does not hide |
| `predict` | the terms of a step with their intervals, an epoch, a run |
| `predictions` | the configurations of an experiment, predicted |
| `programs` | bounds of a program's step |
"""
