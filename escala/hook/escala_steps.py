"""Tell Escala of the steps of a training; without Escala this does nothing. Python 3.8 or later.

`for batch in steps(loader)` counts turns, and rows if the loader is PyTorch's or you tell them
(`rows=32`, `rows=len`); so do `begin()` first and `step(rows=32)` each time. Then
`epoch(loss=0.5)`, and at the end `score(f1=0.8)`. Callbacks: `keras()`, `lightning()`, …
Nothing here ends a training: what is no number is left out, and Escala says so.
"""

import functools
import json
import os
import time
from collections.abc import Mapping
from importlib import import_module

_FOLDER = os.environ.get("ESCALA_STEPS")
_TRACE = os.environ.get("ESCALA_TRACE")
#: The file of marks of each process: a fork has one of its own.
_files = {}
#: Marks that could not be written.
_lost = []
#: What is known of the turn that goes on, if a loop is in one.
_open = []


def begin(*unnamed, **named):
    """Tell that an epoch begins."""
    _mark("begin", *unnamed, named)


def step(*unnamed, **named):
    """Tell that a step has ended; its `rows` are those of this process."""
    _open.clear()
    _mark("step", *unnamed, named)


def epoch(*unnamed, **named):
    """Tell that an epoch has ended, with its scores."""
    for turn in _open[:]:
        step(turn, _left=1)
    _mark("epoch", *unnamed, named)


def score(*unnamed, **named):
    """Tell the scores of the whole training."""
    _mark("score", *unnamed, named)


class steps:
    """A loader of which each turn of a loop is a step; it may be looped over again."""

    def __init__(self, loader, rows=None):
        self._loader, self._told, self._turns = loader, rows, None

    def __iter__(self):
        begin()
        for number, batch in enumerate(self._loader):
            turn = {"rows": _rows(self._loader, number, self._told, batch)}
            _open[:] = [turn]
            try:
                yield batch
            except GeneratorExit:  # `break` left the loop
                if _open and _open[0] is turn:
                    step(turn, _left=1)
                raise
            if _open and _open[0] is turn:
                step(turn)

    def __next__(self):
        self._turns = self._turns or iter(self)
        return next(self._turns)

    def __len__(self):
        return len(self._loader)

    def __bool__(self):
        return bool(self._loader)

    def __getattr__(self, name):  # as of the loader: its dataset, its sampler, …
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def _rows(loader, number, told=None, batch=None):
    """Return the rows of a batch; which of its axes are rows only the loader or you know."""
    try:
        if told is len and isinstance(batch, (tuple, Mapping)):
            return ()  # inputs and targets, or columns by name: that is no number of rows
        if told is not None:
            return told(batch) if callable(told) else told
        loader = getattr(loader, "iterable", loader)  # of a bar of tqdm
        rows = min(loader.batch_size, len(loader.sampler) - number * loader.batch_size)
        return rows if rows > 0 else None
    except Exception:
        return None if told is None else ()


def _mark(event, *told):
    """Write a mark with the time and the numbers that are told; never raise."""
    try:
        now = time.monotonic()
        if _FOLDER:
            _write(event, now, [value for value in told if value is not None])
        if _TRACE:
            import escala_trace

            escala_trace.mark(event)
    except Exception:
        _lost.append(event)


def _write(event, now, told):
    values = {}
    if _lost:
        values["_lost"] = len(_lost)
    for named in told:
        values.update(named if isinstance(named, Mapping) else {"a value without a name": ()})
    numbers = {str(name): _number(value) for name, value in values.items() if value is not None}
    process = os.getpid()
    if process not in _files:
        _files[process] = open("%s/%d.jsonl" % (_FOLDER, process), "a", buffering=1)
    _files[process].write(json.dumps([event, now, numbers]) + "\n")


def _number(value):
    """Return a value as a number; None, which Escala tells of, if it is none."""
    try:
        return float(value)
    except Exception:
        return None


def _harmless(method):
    """Let a method of a callback never end the training."""

    @functools.wraps(method)
    def call(*arguments, **named):
        try:
            method(*arguments, **named)
        except Exception:
            _lost.append(method.__name__)

    return call


def keras(module="keras.callbacks"):
    """Return a callback of Keras."""

    class Steps(import_module(module).Callback):
        @_harmless
        def on_epoch_begin(self, number, logs=None):
            begin()

        @_harmless
        def on_train_batch_end(self, batch, logs=None):
            step(step=batch)

        @_harmless
        def on_epoch_end(self, number, logs=None):
            epoch(logs)

    return Steps()


def lightning(module="lightning.pytorch"):
    """Return a callback of Lightning."""

    class Steps(import_module(module).Callback):
        @_harmless
        def on_train_epoch_start(self, trainer, model):
            begin()

        @_harmless
        def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
            step(rows=_rows(trainer.train_dataloader, batch_idx))

        @_harmless
        def on_train_epoch_end(self, trainer, model):
            epoch(trainer.callback_metrics)

    return Steps()


def transformers():
    """Return a callback of the Trainer of Transformers."""

    class Steps(import_module("transformers").TrainerCallback):
        @_harmless
        def on_epoch_begin(self, *_, **__):
            begin()

        @_harmless
        def on_step_end(self, *_, **__):
            step()

        @_harmless
        def on_epoch_end(self, *_, **__):
            epoch()

    return Steps()
