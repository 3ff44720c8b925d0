"""Tell Escala of the steps of a training; without Escala this does nothing. Python 3.8 or later.

`for batch in steps(loader)` counts turns, and rows if the loader is PyTorch's or you tell them
(`rows=32`, `rows=len`); so do `begin()` first and `step(rows=32)` each time. Then
`epoch(loss=0.5)`, and at the end `score(f1=0.8)`. Callbacks: `keras()`, `lightning()`, …
Nothing here ends a training: what is no number is left out, and Escala says so.
"""

import json
import os
import time
from collections.abc import Mapping

_FOLDER, _TRACE, _files = os.environ.get("ESCALA_STEPS"), os.environ.get("ESCALA_TRACE"), {}
_lost, _open = [], []  # marks that could not be written; what is known of the turn that goes on


def _number(value):
    try:
        return float(value)
    except Exception:
        return None


def _write(event, now, told):
    values, pid = {"_lost": len(_lost)} if _lost else {}, os.getpid()
    for each in told:
        values.update(each if isinstance(each, Mapping) else {"a value without a name": ()})
    numbers = {str(name): _number(value) for name, value in values.items() if value is not None}
    _files[pid] = _files.get(pid) or open("%s/%d.jsonl" % (_FOLDER, pid), "a", buffering=1)
    _files[pid].write(json.dumps([event, now, numbers]) + "\n")


def _mark(event, *told):
    try:
        now = time.monotonic()
        if _FOLDER:
            _write(event, now, [each for each in told if each is not None])
        if _TRACE:
            __import__("escala_trace").mark(event)
    except Exception:
        _lost.append(event)


def begin(*unnamed, **about):
    _mark("begin", *unnamed, about)


def step(*unnamed, **about):
    _open.clear()
    _mark("step", *unnamed, about)


def epoch(*unnamed, **about):
    for turn in _open[:]:
        step(turn, _left=1)
    _mark("epoch", *unnamed, about)


def score(*unnamed, **about):
    _mark("score", *unnamed, about)


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


def _callback(module, name, names, *marks):
    def method(mark):
        def call(self, *about, **named):
            try:
                mark(*about, *named.values())
            except Exception:
                _lost.append(name)

        return call

    methods = {key: method(mark) for key, mark in zip(names.split(), marks)}
    return type("Steps", (getattr(__import__(module, fromlist=[name]), name),), methods)()


def keras(module="keras.callbacks"):
    names = "on_epoch_begin on_train_batch_end on_epoch_end"
    marks = (lambda *_: begin(), lambda number, *_: step(step=number), lambda *a: epoch(*a[1:2]))
    return _callback(module, "Callback", names, *marks)


def lightning(module="lightning.pytorch"):
    names = "on_train_epoch_start on_train_batch_end on_train_epoch_end"

    def stepped(trainer, _module, _outputs, _batch, number, *_):
        step(rows=_rows(trainer.train_dataloader, number))

    ended = lambda trainer, *_: epoch(trainer.callback_metrics)  # noqa: E731
    return _callback(module, "Callback", names, lambda *_: begin(), stepped, ended)


def transformers():
    names = "on_epoch_begin on_step_end on_epoch_end"
    marks = lambda *_: begin(), lambda *_: step(), lambda *_: epoch()
    return _callback("transformers", "TrainerCallback", names, *marks)
