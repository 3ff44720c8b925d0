"""See the steps of a training whose script imports nothing of Escala.

`sitecustomize` imports it. A step is an update of an optimizer of PyTorch, a batch of `fit` of
Keras, or a round of XGBoost or LightGBM. Each process that makes steps writes them to the file
`PID.seen`, a JSON list in each line, with times of the monotonic clock:

- `["begin", time, batches, rows, samples, taken]`: a loop over a loader of PyTorch or an epoch of
  Keras begins; or goes on after another one, as of an evaluation, which has no steps, when it has
  taken some batches. It has so many batches of so many rows, of so many samples in all; null is
  unknown.
- `["step", time, steps, batches, waited]`: a step ended; the steps so far, the batches of this loop
  so far, and the seconds in which all loops waited for batches so far.
- `["steady", time, steps]`: from this step on, step times are steady.
- `["epoch", time, {name: score}]`: an epoch of Keras ended.

Where `ESCALA_WINDOW` holds a number of seconds, all processes of a run end at the same step, once
steps were steady for so long: the file `window.json` beside the folders of marks tells which.
Whatever goes wrong here, the training goes on. Python 3.8 or later.
"""

import atexit
import functools
import json
import os
import time

_FOLDER, _open = os.environ.get("ESCALA_STEPS"), open
_SECONDS = float(os.environ.get("ESCALA_WINDOW") or 0)
_WINDOW = os.path.join(os.path.dirname(_FOLDER or ""), "window.json")
#: Lines are written at most so often.
_EVERY_SECONDS = 0.05
#: Step times are steady if the mean of some differs by at most this part from the mean of as many
#: before them. The first ones never count; after so many seconds all do.
_DIFFERENCE, _COMPARED, _FIRST, _MOST_SECONDS = 0.25, 3, 3, 10.0
#: A window has so many steps at least.
_FEWEST = 5
#: After one process has ended the window, all go on for so many steps.
_AHEAD = 2


class _Steps:
    """The steps of this process."""

    def __init__(self):
        self.made, self.batches, self.waited = 0, 0, 0.0
        #: An iterator of a loader; since when it serves steps, and the batches that were taken from
        #: it until then, if another one was begun since the last step.
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
                os.link(partial, _WINDOW)  # Of several processes, one decides.
            except FileExistsError:
                pass
            os.unlink(partial)
        return False

    def _write(self, line):
        """Keep a line, and write all that were kept, but not at each step."""
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
    """Return a function that raises nothing but the end of the window."""

    @functools.wraps(function)
    def call(*arguments, **named):
        try:
            return function(*arguments, **named)
        except Exception:
            return None

    return call


def _after(owner, name, tell):
    """Call `tell` with the result and the arguments of a method after each call of it."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*arguments, **named):
        result = method(*arguments, **named)
        tell(result, *arguments, **named)
        return result

    setattr(owner, name, call)


# --- PyTorch

#: Optimizers that have stepped since the last step, and how many are in a step, one in another.
_stepped, _depth = set(), [0]


def _optimizers(module):
    def enter(optimizer, *_):
        _depth[0] += 1

    @_harmless
    def leave(optimizer, *_):
        # An optimizer may call another one. Of several that take turns, the first makes the step.
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
    """Tell of the loop that the next step is of, if another was begun since the last one."""
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
        return  # Keras 3 has a module for it alone.

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


#: What is done to a module once it was imported.
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
