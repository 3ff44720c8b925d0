"""Tell Escala of the steps of a training; without Escala this does nothing. Python 3.8 or later.

`for batch in steps(loader)` counts turns and rows, as `begin()` first and `step(rows=32)` each time
do. Then `epoch(loss=0.5)`, and at the end `score(f1=0.8)`. Callbacks: `keras()`, `lightning()`, …
"""

import json
import os
import time
from collections.abc import Mapping

_FOLDER, _TRACE, _files = os.environ.get("ESCALA_STEPS"), os.environ.get("ESCALA_TRACE"), {}


def _mark(event, about):
    now, pid = time.monotonic(), os.getpid()
    if _FOLDER:
        _files[pid] = _files.get(pid) or open("%s/%d.jsonl" % (_FOLDER, pid), "a", buffering=1)
        numbers = {name: float(value) for name, value in about.items() if value is not None}
        _files[pid].write(json.dumps([event, now, numbers]) + "\n")
    if _TRACE:
        __import__("escala_trace").mark(event)


_EVENTS = ("begin", "step", "epoch", "score")
begin, step, epoch, score = (lambda _e=each, **about: _mark(_e, about) for each in _EVENTS)


def _rows(batch):
    while isinstance(batch, (list, tuple, Mapping)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch) if getattr(batch, "shape", ()) else None


def steps(loader):
    begin()
    for batch in loader:
        yield batch
        step(rows=_rows(batch))


def _callback(module, name, names, stepped=lambda *_: step(), ended=lambda *_: epoch()):
    marks = zip(names.split(), (lambda *_: begin(), stepped, ended))
    methods = {key: lambda self, *about, _mark=mark, **_: _mark(*about) for key, mark in marks}
    return type("Steps", (getattr(__import__(module, fromlist=[name]), name),), methods)()


def keras(module="keras.callbacks"):
    names, ended = "on_epoch_begin on_train_batch_end on_epoch_end", lambda _, logs: epoch(**logs)
    return _callback(module, "Callback", names, ended=ended)


def lightning(module="lightning.pytorch"):
    names = "on_train_epoch_start on_train_batch_end on_train_epoch_end"
    marks = (lambda *a: step(rows=_rows(a[3])), lambda t, *_: epoch(**t.callback_metrics))
    return _callback(module, "Callback", names, *marks)


def transformers():
    return _callback("transformers", "TrainerCallback", "on_epoch_begin on_step_end on_epoch_end")
