"""See the steps of a training whose script imports nothing of Escala.

`sitecustomize` imports this module. A step is an update of an optimizer of PyTorch, a batch of
`fit` or a `train_on_batch` of Keras, or a round of XGBoost or LightGBM. Each process that makes
steps writes the file `PID.seen`. A line is a JSON list. Times are times of the monotonic clock. The
lines are:

- `["begin", time, batches, rows, samples, taken, workers, *used]`: a loop over a loader of PyTorch,
  or an epoch of Keras, begins. It has this number of batches, rows in a batch, samples in all and
  processes that load; null is unknown. If `taken` is above 0, the loop has already taken so many
  batches and goes on after another loop, such as an evaluation. What was used until `time`: seconds
  in which all loops waited for batches, core seconds of the process, those of them in the kernel,
  and page faults.
- `["step", time, steps, batches, rows, *used]`: a step ended, or several within a millisecond.
  Totals until now: steps of the process, batches of this loop, and what was used. The rows of the
  step, if the script tells them.
- `["steady", time, steps]`: after this step, step times are steady.
- `["epoch", time, {name: score}]`: an epoch of Keras ended.
- `["told", time]`: the script tells of its steps by `escala_steps`; the lines before do not count.

If `ESCALA_WINDOW` is a number of seconds, the *window* is this time of steady steps. After the
window, all processes of a run end at the same step. The file `window.json`, beside the folders of
marks, has the number of this step, and about how many seconds pass until then. If
`ESCALA_LOADER_WORKERS` is a number, each loader of PyTorch has at least so many workers, which a
training may not allow. No other error here ends the training. Python 3.8 or later.
"""

import atexit
import functools
import json
import os
import resource
import time

_FOLDER, _open = os.environ.get("ESCALA_STEPS"), open
_SECONDS = float(os.environ.get("ESCALA_WINDOW") or 0)
_WINDOW = os.path.join(os.path.dirname(_FOLDER or ""), "window.json")
_TRACE = os.environ.get("ESCALA_TRACE")
_WORKERS = int(os.environ.get("ESCALA_LOADER_WORKERS") or 0)
#: The least seconds between two writes, and between two lines on steps: a line costs some µs.
_EVERY_SECONDS, _BETWEEN_LINES = 0.2, 0.001
#: Step times are steady if the mean of three times differs by at most this fraction from the mean
#: of the three times before. After `_MOST_SECONDS`, step times are taken as steady.
_DIFFERENCE, _COMPARED, _MOST_SECONDS = 0.25, 3, 10.0
#: The least steps of a window.
_FEWEST = 5
#: A step that is longer than the usual one by the first factor holds other work. A window with one
#: or two such steps is longer by at most the second factor, to see whether others follow.
_LONG, _LONGEST_WINDOW = 5.0, 3.0
#: When a process has ended the window, all processes make this many further steps.
_AHEAD = 2


class Rule:
    """When step times are steady, and when a window of steady steps is over.

    Escala applies this rule to lines of an output, too.

    Attributes
    ----------
    fewest : the least steps of a window.
    in_all : the least steps until its end.
    steady : the number of the step after which step times are steady; None if they never were.
    began : the time of its end; before that, the time of the first beginning or step.
    """

    def __init__(self, fewest=_FEWEST, in_all=0):
        self.fewest, self.in_all, self.steady, self.began = fewest, in_all, None, None
        self._last, self._times = None, []
        self._usual, self._long = 0.0, 0

    def begin(self, since):
        """Note the time since which the next step runs; None if it is not known."""
        self._last = since
        if self.began is None:
            self.began = since

    def step(self, now, made, total):
        """Note that `made` steps ended, `total` until now; return whether they are steady now."""
        last, self._last = self._last, now
        if self.began is None:
            self.began = now
        if last is None:
            return False
        if self.steady is not None:
            self._long += now - last > _LONG * self._usual * made
            return False
        # The mean of many steps stands for so many times as are compared.
        self._times += [(now - last) / made] * min(made, _COMPARED)
        if len(self._times) < 2 * _COMPARED:
            return False
        before, later = self._times[-2 * _COMPARED : -_COMPARED], self._times[-_COMPARED:]
        is_steady = abs(sum(later) - sum(before)) <= _DIFFERENCE * sum(before)
        if is_steady or now - self.began > _MOST_SECONDS:
            self.steady, self.began, self._usual = total, now, sum(later) / _COMPARED
        return self.steady is not None

    def is_over(self, now, total, seconds):
        return (
            self.steady is not None
            and total >= max(self.steady + self.fewest, self.in_all)
            and now - self.began >= seconds * (_LONGEST_WINDOW if self._long in (1, 2) else 1)
        )


def end_window(path, last, seconds=0.0):
    """Write the file that ends the window, unless another process has ended it.

    `last` is the step at which processes end by themselves, after about so many `seconds`; None:
    Escala ends them.
    """
    # Processes of two nodes may have the same number.
    partial = "%s.%s.%d" % (path, os.uname().nodename, os.getpid())
    with _open(partial, "w") as file:
        json.dump({"last": last, "seconds": seconds}, file)
    try:
        os.link(partial, path)  # The first process decides for all.
    except FileExistsError:
        pass
    try:
        os.unlink(partial)
    except FileNotFoundError:
        pass


class _Steps:
    """The steps of this process."""

    def __init__(self):
        self.made, self.batches, self.waited = 0, 0, 0.0
        #: The time of the last step, and the steps and the time of the last line.
        self._now, self._told, self._told_at = 0.0, 0, 0.0
        #: The steps of an epoch, as the script tells; None if it may tell them later.
        self.length = 0
        #: The iterator of a loader that serves the steps. If a loop has begun since the last step:
        #: the time since which the iterator serves steps, what was used until then, and the batches
        #: taken from it before.
        self.iterator, self.since, self.used, self.taken = None, None, None, 0
        # A trace needs its first steps, those that it records, and one more.
        first, recorded, _ = (_TRACE or "0:0:").split(":", 2)
        self._rule = Rule(in_all=int(first) + int(recorded) + 1)
        # A process that becomes another one by `exec` begins its file again.
        self._lines, self._written, self._process, self._mode = [], 0.0, os.getpid(), "w"

    def begin(self, since, batches=None, rows=None, samples=None, workers=None, taken=0):
        self._tell()
        used, self.since, self.used = self.used or self.use(), None, None
        self._rule.begin(since)
        self._write(["begin", since, batches, rows, samples, taken, workers, *used])

    def use(self):
        """Return what this process has used until now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        cores = used.ru_utime + used.ru_stime
        return [self.waited, cores, used.ru_stime, used.ru_minflt]

    def step(self, made=1, rows=None):
        """Note that steps ended; end the process at the last step of the window."""
        self._now = now = time.monotonic()
        self.made += made
        if rows is not None or now - self._told_at >= _BETWEEN_LINES:
            self._tell(rows)
        if _TRACE:
            import escala_trace

            escala_trace.mark()
        if _SECONDS and self._is_over(now):
            self.flush()
            raise SystemExit(0)

    def _tell(self, rows=None):
        """Write a line on the steps since the last one."""
        made, now = self.made - self._told, self._now
        if made:
            self._told, self._told_at = self.made, now
            self._write(["step", now, self.made, self.batches, rows, *self.use()])
            if self._rule.step(now, made, self.made):
                self._write(["steady", now, self.made])

    def forget(self, now):
        """Forget what was seen, because the script tells of its steps; `now` is the time."""
        self.length = None
        self._write(["told", now])

    def epoch(self, scores):
        self._tell()
        self._write(["epoch", time.monotonic(), scores])

    def _is_over(self, now):
        if os.path.exists(_WINDOW):
            with _open(_WINDOW) as file:
                return self.made >= json.load(file)["last"]
        if self.length is not None and self._rule.is_over(now, self.made, _SECONDS):
            step_seconds = (now - self._rule.began) / (self.made - self._rule.steady)
            end_window(_WINDOW, self.made + _AHEAD, _AHEAD * step_seconds)
        return False

    def _write(self, line):
        """Keep a line. From time to time, write all kept lines."""
        self._lines.append(line)
        if line[1] - self._written > _EVERY_SECONDS:
            self._flush()

    def flush(self):
        self._tell()
        self._flush()

    def _flush(self):
        self._written = time.monotonic()
        if self._lines:
            lines, self._lines = self._lines, []
            try:
                with _open("%s/%d.seen" % (_FOLDER, self._process), self._mode) as file:
                    file.write("".join(json.dumps(line) + "\n" for line in lines))
                self._mode = "a"
            except Exception:  # The training goes on.
                pass


#: The steps of this process, and whether its script tells of them.
_steps, _is_told = _Steps(), False


def _begin_fork():
    global _steps, _is_told
    _steps, _is_told = _Steps(), False


def _harmless(function):
    """Return a function that sees steps, and does nothing once the script tells of them.

    It raises no error, except the `SystemExit` at the end of the window.
    """

    @functools.wraps(function)
    def call(*arguments, **named):
        try:
            return None if _is_told else function(*arguments, **named)
        except Exception:
            return None

    return call


def tell(event, now, values):
    """Take an event of `escala_steps`, for the window; its steps replace those that are seen."""
    global _steps, _is_told
    if not _is_told:
        _steps, _is_told = _Steps(), True
        _steps.forget(now)
    if event == "step":
        _steps.batches += 1
        _steps.step(rows=values.get("rows"))
    elif event == "begin":
        if values.get("steps"):
            _steps.length, _steps.batches = values["steps"], 0
        _steps.begin(now, _steps.length, taken=_steps.batches)
    elif _steps.batches:
        # If the script does not tell how many steps an epoch has, its first epoch tells it.
        _steps.length, _steps.batches = _steps.length or _steps.batches, 0
        _steps.begin(now, _steps.length)


def _after(owner, name, tell):
    """After each call of a method, call `tell` with the result and the arguments of the method."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def call(*arguments, **named):
        result = method(*arguments, **named)
        tell(result, *arguments, **named)
        return result

    setattr(owner, name, call)


#: What has made updates since the last step: optimizers, or models.
_stepped = set()


def _is_step(updater):
    """Return whether an update is a step. If several take turns, the first one makes the step."""
    is_first = not _stepped or id(updater) in _stepped
    if is_first:
        _stepped.clear()
    _stepped.add(id(updater))
    return is_first


# --- PyTorch

#: The outermost optimizer that is making an update, and how often others have begun one within it.
#: After so many, its own has raised an error.
_outermost, _within, _MOST_WITHIN = [None], [0], 8


def _optimizers(module):
    def enter(optimizer, *_):
        _within[0] += 1
        if _outermost[0] is None or _within[0] > _MOST_WITHIN:
            _outermost[0], _within[0] = optimizer, 0

    @_harmless
    def leave(optimizer, *_):
        # An optimizer may call another optimizer.
        if _outermost[0] is not optimizer:
            return
        _outermost[0] = None
        if _is_step(optimizer):
            if _steps.iterator is not None:
                if _steps.since is not None:
                    _begin_loop()
                _steps.batches = _steps.iterator._escala_batches
            _steps.step()

    module.register_optimizer_step_pre_hook(enter)
    module.register_optimizer_step_post_hook(leave)


def _loaders(module):
    @_harmless
    def begin(iterator, loader):
        iterator._escala_begun, iterator._escala_batches = time.monotonic(), 0
        iterator._escala_loader, iterator._escala_used = loader, _steps.use()
        _steps.since, _steps.used, _steps.taken = iterator._escala_begun, iterator._escala_used, 0

    following = module._BaseDataLoaderIter.__next__

    @functools.wraps(following)
    def follow(self):
        is_another = (
            _steps.since is not None
            and self is not _steps.iterator
            and hasattr(self, "_escala_batches")
        )
        before, used = time.monotonic(), _steps.use() if is_another else None
        batch = following(self)
        _steps.waited += time.monotonic() - before
        if is_another:
            _steps.iterator, _steps.taken = self, self._escala_batches
            _steps.since, _steps.used = before, used
            if not self._escala_batches:
                _steps.since, _steps.used = self._escala_begun, self._escala_used
        if hasattr(self, "_escala_batches"):
            self._escala_batches += 1
        return batch

    make, place = module.DataLoader.__init__, 5  # of the number of workers

    @functools.wraps(make)
    def make_with_workers(self, *arguments, **named):
        if len(arguments) > place:
            workers = max(arguments[place] or 0, _WORKERS)
            arguments = (*arguments[:place], workers, *arguments[place + 1 :])
        else:
            named["num_workers"] = max(named.get("num_workers") or 0, _WORKERS)
        make(self, *arguments, **named)

    if _WORKERS:
        module.DataLoader.__init__ = make_with_workers
    module._BaseDataLoaderIter.__next__ = follow
    _after(module.DataLoader, "__iter__", begin)


def _begin_loop():
    """Write the beginning of the loop of the next step, if the loop began after the last step."""
    loader, numbers = _steps.iterator._escala_loader, []
    for number in (
        lambda: len(loader),
        lambda: loader.batch_size,
        lambda: len(loader.sampler),
        lambda: loader.num_workers,
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


def _batches(module):
    @_harmless
    def step(_, model, *__, **___):
        if _is_step(model):
            _steps.step()

    for trainer in vars(module).values():
        if "train_on_batch" in getattr(trainer, "__dict__", ()):  # `fit` does not call it.
            _after(trainer, "train_on_batch", step)


# --- XGBoost and LightGBM


def _rounds(module):
    _after(module.Booster, "update", _harmless(lambda *_, **__: _steps.step()))


#: For each module, a function that is called after the import of the module.
MODULES = {
    "torch.optim.optimizer": _optimizers,
    "torch.utils.data.dataloader": _loaders,
    "keras.src.callbacks.callback_list": _keras,
    "keras.src.callbacks": _keras,
    "keras.src.engine.training": _batches,
    "keras.src.backend.tensorflow.trainer": _batches,
    "keras.src.backend.jax.trainer": _batches,
    "keras.src.backend.torch.trainer": _batches,
    "xgboost.core": _rounds,
    "lightgbm.basic": _rounds,
}

if _FOLDER:
    atexit.register(lambda: _steps.flush())
    os.register_at_fork(after_in_child=_begin_fork)
