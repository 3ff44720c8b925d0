"""What is said of the end of a program, from its exit code and its last words."""

from __future__ import annotations

import errno
import signal
import subprocess

import pytest

from escala.programs import child, printed
from escala.record import diagnose
from tests.calls import python

#: Starts programs with a terminal. One writes more than a read gives, which is 4 KiB, and its
#: output is read slowly; one asks for the size of its terminal and for input.
ON_TERMINAL = """
import os, sys, time
from types import SimpleNamespace
from escala.programs import child
class Written:
    data = b""
    def add(self, data, when):
        self.data += data
        time.sleep(0.02)
def said(*command):
    program, written = SimpleNamespace(terminal=True, directory=None), Written()
    child.run(program, command, {**os.environ, "MARK": "1"}, "MARK", written)
    return written.data.decode().split()
says = "import os; os.write(1, b'x' * 50_000 + b'last'); os._exit(0)"
print(said(sys.executable, "-c", says)[-1][-4:])
print(*said("sh", "-c", "stty size; cat; cat; echo end"))
"""


#: Ends itself, while a program that it started holds a lock.
ENDED = """
import os, signal, sys
from types import SimpleNamespace
from escala.programs import child
class Written:
    def add(self, data, when):
        os.kill(os.getpid(), signal.SIGTERM)
    def end_log(self):
        pass
says = "import time\\nopen('lock', 'w').close()\\ntry: print(flush=True); time.sleep(99)\\n"
says += "finally: import os; os.remove('lock')"
program = SimpleNamespace(terminal=False, directory=sys.argv[1])
child.run(program, [sys.executable, "-c", says], {**os.environ, "MARK": "1"}, "MARK", Written())
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "exit code 1"),
        (143, "exit code 143 (of signal 15, Terminated)"),
        (255, "exit code 255"),
        (-11, "signal 11 (Segmentation fault)"),
        (-34, "signal 34 (Real-time signal 0)"),
    ],
)
def test_the_end_is_told_in_words(code, words):
    assert child.how_ended(code, "ValueError: 7") == words


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "environment: {python"),
        ("the input device is not a TTY", "terminal: true"),
        ("OSError: [Errno 25] Inappropriate ioctl for device", "terminal: true"),
        ("RuntimeError: Address already in use", "{port}"),
    ],
)
def test_a_cause_of_which_the_remedy_is_a_key_is_named(last, words):
    early = f"{last}" + "\nloads" * 9
    assert words in child.how_ended(1, last) and words not in child.how_ended(1, early)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("#!/bin/bash\r\n", ["'/bin/bash\\r'", "not there", "sed -i"]),
        ("#!/no/such/python -u\n", ["'/no/such/python',", "not there"]),
        ("echo 1\n", ["names no interpreter", "#!/bin/sh"]),
        (None, ["No such file", "PATH", "sh -c"]),
    ],
)
def test_a_script_that_cannot_start_tells_of_its_first_line(first, words, tmp_path):
    script = tmp_path / "run.sh"
    if first:
        script.write_bytes(first.encode() + b"no-such-program\r\n")
        script.chmod(0o755)
    with pytest.raises(OSError) as refused:
        subprocess.run([script], capture_output=True)
    why = child.why_not_started(script, refused.value)
    assert "Remedy: " in why and all(word in why for word in words), why


def test_a_script_that_may_not_be_executed_is_called_so(tmp_path):
    script = tmp_path / "run.sh"
    script.touch()
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert "chmod +x" in child.why_not_started(script, denied)


@pytest.mark.parametrize(
    "before",
    [
        "Exception ignored in: <function Left.__del__>",
        "Task exception was never retrieved\nfuture: <Task finished coro=<work()>>",
        "Task was destroyed but it is pending!\ntask: <Task pending coro=<work()>>",
        "--- Logging error ---",
    ],
)
def test_an_error_after_which_python_goes_on_is_none(before):
    error = f"{printed.TRACEBACK}\n  File 'train.py'\nValueError: 1\n"
    assert printed.has_failed(error)
    assert not printed.has_failed(f"{before}\n{error}")


def test_the_first_error_is_told_where_a_trace_of_the_stack_hides_it(tmp_path):
    fatal = "F1128 21:10:11.605540   20595 rendezvous.cc:161] Only 1 of 2 threads arrived"
    warned = "W1128 21:09:31.601473   20595 rendezvous.cc:116] Waits"
    frames = [f"    @     0x7f7a4f04063{n}  xla::internal::Await()" for n in range(9)]
    (tmp_path / "rank0.log").write_text("\n".join([warned, fatal, "*** stack trace: ***", *frames]))
    assert f"; its first error: {fatal}; its last lines: " in diagnose.tail(tmp_path, 0)


@pytest.mark.parametrize("rank", ["", "[rank1]: "])
def test_a_program_that_went_on_after_an_error_has_not_failed(rank):
    """A program may log that a service does not answer yet, and ask again."""
    error = f"{rank}Traceback (most recent call last)\n" + f"{rank}  File 'a.py'\n" * 30
    error += f"{rank}TimeoutError: no answer"
    epochs = "\n".join(f"epoch {n}" for n in range(30))
    assert printed.has_failed(error) and printed.has_failed(f"{epochs}\n{error}\nwaits\nends")
    assert printed.has_failed(f"{error}\n{epochs}\n{error}")
    assert not printed.has_failed(f"{error}\n{epochs}") and not printed.has_failed(epochs)


def test_a_program_on_a_terminal_knows_its_size_and_gets_an_empty_input():
    """The output before the end of the program is read."""
    assert python("-c", ON_TERMINAL).stdout.splitlines() == ["last", "24 120 end"]


def test_a_program_that_is_ended_removes_its_locks(tmp_path):
    ended = python("-c", ENDED, tmp_path)
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert not list(tmp_path.iterdir())
