"""See the steps of a training whose script imports nothing of Escala.

`sitecustomize` imports this module. A step is an update of an optimizer of PyTorch, a batch of
`fit` of Keras, or a round of XGBoost or LightGBM. Each process that makes steps writes the file
`PID.seen`. A line is a JSON list. Times are times of the monotonic clock. The lines are:

- `["begin", time, batches, rows, samples, taken]`: a loop over a loader of PyTorch, or an epoch of
  Keras, begins. It has this number of batches, rows in a batch, and samples in all; null is
  unknown. If `taken` is above 0, the loop has already taken so many batches and goes on after
  another loop, such as an evaluation.
- `["step", time, steps, batches, waited]`: a step ended. Totals until now: steps of the process,
  batches of this loop, and seconds in which all loops waited for batches.
- `["steady", time, steps]`: after this step, step times are steady.
- `["epoch", time, {name: score}]`: an epoch of Keras ended.

If `ESCALA_WINDOW` is a number of seconds, the *window* is this time of steady steps. After the
window, all processes of a run end at the same step. The file `window.json`, beside the folders of
marks, has the number of this step. Errors here never end the training. Python 3.8 or later.
"""

import atexit
import functools
import json
import os
import time

_FOLDER, _open = os.environ.get("ESCALA_STEPS"), open
_SECONDS = float(os.environ.get("ESCALA_WINDOW") or 0)
_WINDOW = os.path.join(os.path.dirname(_FOLDER or ""), "window.json")
#: The least seconds between two writes.
_EVERY_SECONDS = 0.05
#: Step times are steady if the mean of three times differs by at most this fraction from the mean
#: of the three times before. The first three times are left out. After `_MOST_SECONDS`, step times
#: are taken as steady.
_DIFFERENCE, _COMPARED, _FIRST, _MOST_SECONDS = 0.25, 3, 3, 10.0
#: The least steps of a window.
_FEWEST = 5
#: When a process has ended the window, all processes make this many further steps.
_AHEAD = 2


class _Steps:
    """The steps of this process."""

    def __init__(self):
        self.made, self.batches, self.waited = 0, 0, 0.0
        #: The iterator of a loader that serves the steps. If a loop has begun since the last step:
        #: the time since which the iterator serves steps, and the batches taken from it before.
        self.iterator, self.since, self.taken = None, None, 0
        self._last, self._times, self._began, self._steady = None, [], 0.0, None
        self._lines, self._written, self._process = [], 0.0, os.getpid()

    def begin(self, since, batches=None, rows=None, samples=None, taken=0):
        self._last, self.since = since, None
        self._write(["begin", since, batches, rows, samples, taken])

    def step(self, made=1):
        """Note that steps ended; end the process at the last step of the window."""
        now = time.monotonic()
        self.made += made
        self._write(["step", now, self.made, self.batches, self.waited])
        if self._steady is None:
            self._find_steady(now)
        self._last = now
        if _SECONDS and self._is_over(now):
            self.flush()
            raise SystemExit(0)

    def epoch(self, scores):
        self._write(["epoch", time.monotonic(), scores])

    def _find_steady(self, now):
        if self._last is None:
            self._began = now
            return
        self._times.append(now - self._last)
        if len(self._times) < _FIRST + _COMPARED:
            return
        before, later = self._times[-2 * _COMPARED : -_COMPARED], self._times[-_COMPARED:]
        is_steady = abs(sum(later) / sum(before) - 1) <= _DIFFERENCE
        if is_steady or now - self._began > _MOST_SECONDS:
            self._steady, self._began = self.made, now
            self._write(["steady", now, self.made])

    def _is_over(self, now):
        if os.path.exists(_WINDOW):
            with _open(_WINDOW) as file:
                return self.made >= json.load(file)["last"]
        if self._steady is None or self.made < self._steady + _FEWEST:
            return False
        if now - self._began >= _SECONDS:
            partial = "%s.%d" % (_WINDOW, os.getpid())
            with _open(partial, "w") as file:
                json.dump({"last": self.made + _AHEAD}, file)
            try:
                os.link(partial, _WINDOW)  # The first process decides for all.
            except FileExistsError:
                pass
            os.unlink(partial)
        return False

    def _write(self, line):
        """Keep a line. From time to time, write all kept lines."""
        self._lines.append(line)
        if line[1] - self._written > _EVERY_SECONDS:
            self.flush()

    def flush(self):
        self._written = time.monotonic()
        if self._lines:
            lines, self._lines = self._lines, []
            with _open("%s/%d.seen" % (_FOLDER, self._process), "a") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))


_steps = _Steps()


def _begin_fork():
    global _steps
    _steps = _Steps()


def _harmless(function):
    """Return a function that raises no error, except the `SystemExit` at the end of the window."""

    @functools.wraps(function)
    def call(*arguments, **named):
        try:
            return function(*arguments, **named)
        except Exception:
            return None

    return call


def _after(owner, name, tell):
    """After each call of a method, call `tell` with the result and the arguments of the method."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*arguments, **named):
        result = method(*arguments, **named)
        tell(result, *arguments, **named)
        return result

    setattr(owner, name, call)


# --- PyTorch

#: The optimizers that have made updates since the last step, and the depth of nested updates.
_stepped, _depth = set(), [0]


def _optimizers(module):
    def enter(optimizer, *_):
        _depth[0] += 1

    @_harmless
    def leave(optimizer, *_):
        # An optimizer may call another optimizer. If several take turns, the first one makes the
        # step.
        _depth[0] = max(0, _depth[0] - 1)
        if _depth[0]:
            return
        if not _stepped or id(optimizer) in _stepped:
            _stepped.clear()
            if _steps.iterator is not None:
                if _steps.since is not None:
                    _begin_loop()
                _steps.batches = _steps.iterator._escala_batches
            _steps.step()
        _stepped.add(id(optimizer))

    module.register_optimizer_step_pre_hook(enter)
    module.register_optimizer_step_post_hook(leave)


def _loaders(module):
    @_harmless
    def begin(iterator, loader):
        iterator._escala_begun, iterator._escala_batches = time.monotonic(), 0
        iterator._escala_loader = loader
        _steps.since, _steps.taken = iterator._escala_begun, 0

    following = module._BaseDataLoaderIter.__next__

    @functools.wraps(following)
    def follow(self):
        before = time.monotonic()
        batch = following(self)
        _steps.waited += time.monotonic() - before
        if hasattr(self, "_escala_batches"):
            if _steps.since is not None and self is not _steps.iterator:
                _steps.since = before if self._escala_batches else self._escala_begun
                _steps.iterator, _steps.taken = self, self._escala_batches
            self._escala_batches += 1
        return batch

    module._BaseDataLoaderIter.__next__ = follow
    _after(module.DataLoader, "__iter__", begin)


def _begin_loop():
    """Write the beginning of the loop of the next step, if the loop began after the last step."""
    loader, numbers = _steps.iterator._escala_loader, []
    for number in (
        lambda: len(loader),
        lambda: loader.batch_size,
        lambda: len(loader.sampler),
    ):
        try:
            numbers.append(int(number()))
        except Exception:
            numbers.append(None)
    _steps.begin(_steps.since, *numbers, _steps.taken)


# --- Keras 2 and 3


def _keras(module):
    callbacks, last = module.CallbackList, [-1]
    if callbacks.__module__ != module.__name__:
        return  # Keras 3 has a separate module for this class.

    @_harmless
    def begin(_, callback_list, *__, **___):
        last[0] = -1
        parameters = getattr(callback_list, "params", None) or {}
        _steps.begin(time.monotonic(), parameters.get("steps"))

    @_harmless
    def step(_, __, batch, *___, **____):
        made, last[0], _steps.batches = max(1, batch - last[0]), batch, batch + 1
        _steps.step(made)

    @_harmless
    def end(_, __, epoch, logs=None):
        _steps.epoch({name: float(value) for name, value in (logs or {}).items()})

    _after(callbacks, "on_epoch_begin", begin)
    _after(callbacks, "on_train_batch_end", step)
    _after(callbacks, "on_epoch_end", end)


# --- XGBoost and LightGBM


def _rounds(module):
    _after(module.Booster, "update", _harmless(lambda *_, **__: _steps.step()))


#: For each module, a function that is called after the import of the module.
MODULES = {
    "torch.optim.optimizer": _optimizers,
    "torch.utils.data.dataloader": _loaders,
    "keras.src.callbacks.callback_list": _keras,
    "keras.src.callbacks": _keras,
    "xgboost.core": _rounds,
    "lightgbm.basic": _rounds,
}

if _FOLDER:
    atexit.register(_harmless(lambda: _steps.flush()))
    os.register_at_fork(after_in_child=_begin_fork)
