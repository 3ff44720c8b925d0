"""Tell Escala of the steps of a training; without Escala this does nothing. Python 3.8 or later.

`for batch in steps(loader)` counts turns, and rows if the loader is PyTorch's or you tell them
(`rows=32`, `rows=len`); so do `begin()` first and `step(rows=32)` each time. Then
`epoch(loss=0.5)`, and at the end `score(f1=0.8)`. Callbacks: `keras()`, `lightning()`, …
Nothing here ends a training; only Escala's window does, by `SystemExit` at the end of a step.
A value that is no number is left out, and Escala says so.
"""

import json
import os
import time
from collections.abc import Mapping
from importlib import import_module

_FOLDER = os.environ.get("ESCALA_STEPS")
#: Whether steps that are told end a window, or are recorded.
_TELLS = os.environ.get("ESCALA_WINDOW") or os.environ.get("ESCALA_TRACE")
#: The file of marks of each process: a fork has its own file.
_files = {}
#: Marks that could not be written.
_lost = []
#: The numbers of the present turn of a loop; empty outside of a turn.
_open = []


def begin(*unnamed, **named):
    """Tell that an epoch begins."""
    _mark("begin", *unnamed, named)


def step(*unnamed, **named):
    """Tell that a step has ended. Its `rows` are the rows of this process."""
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
    """A loader: each turn of a loop over it is a step. Several loops over it are possible."""

    def __init__(self, loader, rows=None):
        self._loader, self._row_count, self._turns = loader, rows, None

    def __iter__(self):
        begin(steps=_length(self._loader))
        for number, batch in enumerate(self._loader):
            turn = {"rows": _rows(self._loader, number, self._row_count, batch)}
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


def _rows(loader, number, rows=None, batch=None):
    """Return the rows of a batch: only the loader or you know which of its axes are rows."""
    try:
        if rows is len and isinstance(batch, (tuple, Mapping)):
            return ()  # the length of a tuple or a mapping is no number of rows
        if rows is not None:
            return rows(batch) if callable(rows) else rows
        loader = getattr(loader, "iterable", loader)  # of a bar of tqdm
        rows = min(loader.batch_size, len(loader.sampler) - number * loader.batch_size)
        return rows if rows > 0 else None
    except Exception:
        return None if rows is None else ()


def _length(loader):
    """Return how many batches a loader has; None if it does not tell."""
    try:
        return len(loader)
    except Exception:
        return None


def _mark(event, *values):
    """Write a mark with the time and the numbers in `values`; never raise."""
    try:
        now = time.monotonic()
        if _FOLDER:
            _write(event, now, [value for value in values if value is not None])
    except Exception:
        _lost.append(event)


def _write(event, now, arguments):
    values = {}
    if _lost:
        values["_lost"] = len(_lost)
    for argument in arguments:
        unnamed = {"a value without a name": ()}
        values.update(argument if isinstance(argument, Mapping) else unnamed)
    numbers = {str(name): _number(value) for name, value in values.items() if value is not None}
    process = os.getpid()
    if process not in _files:
        _files[process] = open("%s/%d.jsonl" % (_FOLDER, process), "a", buffering=1)
    _files[process].write(json.dumps([event, now, numbers]) + "\n")
    if _TELLS and event != "score":
        import escala_seen

        escala_seen.tell(event, now, numbers)


def _number(value):
    """Return a value as a number; None for any other value. Escala tells the user about it."""
    try:
        return float(value)
    except Exception:
        return None


def _callback(base, **methods):
    """Return a callback with methods that never end the training."""

    def harmless(name, method):
        def call(*arguments, **named):
            try:
                method(*arguments, **named)
            except Exception:
                _lost.append(name)

        return call

    return type(
        "Steps", (base,), {name: harmless(name, method) for name, method in methods.items()}
    )()


def keras(module="keras.callbacks"):
    """Return a callback of Keras."""
    return _callback(
        import_module(module).Callback,
        on_epoch_begin=lambda self, number, logs=None: begin(
            steps=(getattr(self, "params", None) or {}).get("steps")
        ),
        on_train_batch_end=lambda self, batch, logs=None: step(step=batch),
        on_epoch_end=lambda self, number, logs=None: epoch(logs),
    )


def lightning(module="lightning.pytorch"):
    """Return a callback of Lightning."""
    return _callback(
        import_module(module).Callback,
        on_train_epoch_start=lambda self, trainer, model: begin(
            steps=getattr(trainer, "num_training_batches", None)
        ),
        on_train_batch_end=lambda self, trainer, model, outputs, batch, batch_idx: step(
            rows=_rows(trainer.train_dataloader, batch_idx)
        ),
        on_train_epoch_end=lambda self, trainer, model: epoch(trainer.callback_metrics),
    )


def transformers():
    """Return a callback of the Trainer of Transformers."""
    return _callback(
        import_module("transformers").TrainerCallback,
        on_epoch_begin=lambda *_, **__: begin(),
        on_step_end=lambda *_, **__: step(),
        on_epoch_end=lambda *_, **__: epoch(),
    )
