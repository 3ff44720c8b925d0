"""Tell Escala which files a program reads, modules that it imports among them.

`sitecustomize` imports it. Each process adds lines to the file `PID.files` beside its marks: `r` or
`w`, and the path of a file that it opened to read or to write; at its end `t`, and its number of
threads. What belongs to the system, to the interpreter or to installed packages is left out.
Whatever goes wrong is left out as well: the program goes on. Python 3.8 or later.
"""

import atexit
import os
import sys

_FOLDER = os.environ.get("ESCALA_STEPS")
#: A process that opens more files reads data.
_MOST = 2000
_WRITES = os.O_WRONLY | os.O_RDWR
_seen = set()
_left_out = ["/%s/" % each for each in ("proc", "sys", "dev", "etc", "run", "lib", "lib64", "bin")]
_left_out += ["/usr/%s/" % each for each in ("lib", "lib64", "bin", "share", "local/lib")]
_left_out += [os.path.dirname(os.path.abspath(__file__)) + "/"]
for _prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}:
    _parts = ("lib/", "lib64/", "bin/", "share/", "etc/", "ssl/", "pyvenv.cfg")
    _left_out += ["%s/%s" % (_prefix, each) for each in _parts]
_left_out = tuple(_left_out)


def _write(line):
    file = "%s/%d.files" % (_FOLDER, os.getpid())
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, os.fsencode(line + "\n"))
    finally:
        os.close(descriptor)


def _opened(path, writes):
    if not isinstance(path, (str, bytes)) or (path, writes) in _seen or len(_seen) > _MOST:
        return
    file = os.fsdecode(path)
    if file.startswith(_FOLDER):
        return
    file = os.path.abspath(file)
    if file.endswith(".pyc"):
        try:
            file = sys.modules["_frozen_importlib_external"].source_from_cache(file)
        except ValueError:
            pass
    is_installed = "/site-packages/" in file or "/dist-packages/" in file
    is_installed = is_installed or os.path.basename(file) == "sitecustomize.py"
    if not (file.startswith(_left_out) or is_installed or "\n" in file):
        # Of modules of large packages there may be more.
        _seen.add((path, writes))
        _write("%s %s" % ("w" if writes else "r", file))


def _audit(event, arguments):
    try:
        if event == "open":
            _opened(arguments[0], bool(arguments[2] & _WRITES))
        elif event == "import":
            # Of a compiled module; others are opened.
            _opened(arguments[1], False)
        elif event in ("ctypes.dlopen", "sqlite3.connect"):
            _opened(arguments[0], False)
    except Exception:
        pass


def _end():
    try:
        _write("t " + os.environ.get("OMP_NUM_THREADS", ""))
    except Exception:
        pass


if _FOLDER and hasattr(sys, "addaudithook"):
    sys.addaudithook(_audit)
    atexit.register(_end)
