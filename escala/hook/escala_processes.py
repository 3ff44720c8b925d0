"""Tell Escala what this process does, which rank of how many it is, and which files it reads.

`sitecustomize` imports this module. It writes two files beside the marks. `PID.process` is one line
of numbers, in the order of `_facts`. A line of `PID.files` is `r` or `w` and the path of a file, or
of a module, that was opened to read or to write. Its last line is `t` and the number of threads.
Files of the system, of the interpreter and of installed packages are left out. Errors here are
ignored, so that the training goes on. Python 3.8 or later.
"""

import atexit
import functools
import os
import sys
import time
import zlib

import escala_seen

_FOLDER, _open = os.environ.get("ESCALA_STEPS"), open
#: Seconds after which the line is written again, while modules are imported.
_EVERY = 0.05
#: A module that runs for so many seconds without an import trains.
_LONG = 20.0
#: A time without an import is work if it lasts so many seconds (`escala/programs/processes.py`).
_WORK = 0.5
#: Variables that tell a process its rank or the number of ranks, and beginnings of such names.
_PLACES = frozenset(
    b"RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE NODE_RANK ROLE_RANK "
    b"TF_CONFIG HOROVOD_RANK HOROVOD_SIZE SLURM_PROCID SLURM_LOCALID SLURM_NTASKS".split()
)
_BEGINNINGS = (b"OMPI_COMM_WORLD_", b"PMI_", b"PMIX_")
_facts, _names, _written, _inside = {}, set(), 0.0, None
#: A process that opens more files reads data.
_MOST = 2000
_WRITES = os.O_WRONLY | os.O_RDWR
_opened = set()
_left_out = ["/%s/" % name for name in ("proc", "sys", "dev", "etc", "run", "lib", "lib64", "bin")]
_left_out += ["/usr/%s/" % name for name in ("lib", "lib64", "bin", "share", "local/lib")]
_left_out += [os.path.dirname(os.path.abspath(__file__)) + "/"]
for _prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}:
    _parts = ("lib/", "lib64/", "bin/", "share/", "etc/", "ssl/", "pyvenv.cfg")
    _left_out += ["%s/%s" % (_prefix, part) for part in _parts]
_left_out = tuple(_left_out)


def _begin():
    """Begin the line of this process. The process may be a fork of another process."""
    now = time.monotonic()
    _facts.update(
        parent=os.getppid(), began=now, ended=0.0,
        # The last import, and the core time until then.
        imported=now, imported_cores=time.process_time(),
        # The longest time without an import: its length, the core time before it and in it.
        longest=0.0, longest_after=0.0, longest_cores=0.0,
        # Whether the process has read its rank.
        asked=0,
        # The rank in the largest group that the process joined, and the number of ranks in the
        # group.
        rank=-1, world=0,
        # A number for the words of its command.
        words=0,
        # The time in imports that lie within other imports.
        importing=0.0,
        # The core time in all times of at least `_WORK` seconds without an import.
        worked=0.0,
    )  # fmt: skip
    _write()


def _write():
    global _written
    _written = time.monotonic()
    try:
        words = "\0".join(getattr(sys, "argv", ()))
        _facts["words"] = zlib.crc32(words.encode("utf-8", "replace"))
        with _open("%s/%d.process" % (_FOLDER, os.getpid()), "w") as line:
            line.write("[%s]\n" % ", ".join("%r" % value for value in _facts.values()))
    except Exception:
        pass


def _end_interval():
    """Add the time since the last import to the work if it is long; record the longest time."""
    since, before = time.monotonic() - _facts["imported"], _facts["imported_cores"]
    cores = time.process_time() - before
    if since >= _WORK:
        _facts["worked"] += cores
    if since > _facts["longest"]:
        _facts.update(longest=since, longest_after=before, longest_cores=cores)


def _note_import():
    """Begin a time without an import. Times between imports within one library are left out."""
    global _inside
    before, _inside = _inside, None
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            # The last frame of the loop is the outermost import.
            _inside = frame.f_locals.get("name")
        frame = frame.f_back
    since = time.monotonic() - _facts["imported"]
    if _inside is None or _inside != before or since > _LONG:
        _end_interval()
    else:
        _facts["importing"] += since
    _facts.update(imported=time.monotonic(), imported_cores=time.process_time())
    if _facts["imported"] - _written > _EVERY:
        _write()


def _end():
    try:
        _end_interval()
        with _open("/proc/self/maps") as maps:
            # A library of MPI gives a process its rank without a word in Python.
            _facts["asked"] |= "/libmpi" in maps.read()
        _facts["ended"] = time.monotonic()
        _add_line("t " + os.environ.get("OMP_NUM_THREADS", ""))
    except Exception:
        pass
    _write()


def _note_group(rank, world):
    if world >= _facts["world"]:
        _facts.update(rank=int(rank), world=int(world))
        _write()


def _watch(owner, name, group):
    """Note the rank and the number of ranks, which `group` returns, after a call of a function."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def joins(*arguments, **named):
        result = function(*arguments, **named)
        try:
            _note_group(*group(*arguments))
        except Exception:
            pass
        return result

    setattr(owner, name, joins)


def _mpi(module):
    if module.Is_initialized() and not module.Is_finalized():
        _note_group(module.COMM_WORLD.Get_rank(), module.COMM_WORLD.Get_size())


#: For each module, a function that is called after the import of the module.
_MODULES = {
    **escala_seen.MODULES,
    "torch.distributed.distributed_c10d": lambda module: _watch(
        module, "init_process_group", lambda *_: (module.get_rank(), module.get_world_size())
    ),
    "horovod.common.basics": lambda module: _watch(
        module.HorovodBasics, "init", lambda basics, *_: (basics.rank(), basics.size())
    ),
    "mpi4py.MPI": _mpi,
    "jax._src.distributed": lambda module: _watch(
        module,
        "initialize",
        lambda *_: (module.global_state.process_id, module.global_state.num_processes),
    ),
}


class _Imports:
    """A finder of modules that sees the name of each module first."""

    def find_spec(self, name, path=None, target=None):
        if name not in _names:
            _names.add(name)
            try:
                _note_import()
            except Exception:
                pass
        if name in _MODULES:
            for finder in sys.meta_path:
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find else None
                if spec is not None:
                    _follow(spec.loader, _MODULES[name])
                    return spec
        return None


def _follow(loader, change):
    execute = loader.exec_module

    def exec_module(module):
        execute(module)
        try:
            change(module)
        except Exception:
            pass

    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass


class _Variables(dict):
    """The variables of the process. The class records when a variable is read that tells a rank.

    `os.environ` hides this class from the traceback of a missing name.
    """

    def __getitem__(self, name):
        if not _facts["asked"] and (name in _PLACES or name.startswith(_BEGINNINGS)):
            _facts["asked"] = 1
            _write()
        return dict.__getitem__(self, name)


def _add_line(line):
    file = "%s/%d.files" % (_FOLDER, os.getpid())
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, os.fsencode(line + "\n"))
    finally:
        os.close(descriptor)


def _note_file(path, writes):
    if not isinstance(path, (str, bytes)) or (path, writes) in _opened or len(_opened) > _MOST:
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
        _opened.add((path, writes))
        _add_line("%s %s" % ("w" if writes else "r", file))


def _audit(event, arguments):
    try:
        if event == "open":
            _note_file(arguments[0], bool(arguments[2] & _WRITES))
        elif event == "import":
            # This event has the path of a compiled module. Other modules are opened.
            _note_file(arguments[1], False)
        elif event in ("ctypes.dlopen", "sqlite3.connect"):
            _note_file(arguments[0], False)
    except Exception:
        pass


if _FOLDER:
    _begin()
    atexit.register(_end)
    os.register_at_fork(after_in_child=_begin)
    sys.meta_path.insert(0, _Imports())
    os.environ._data = os.environb._data = _Variables(os.environ._data)
    if hasattr(sys, "addaudithook"):
        sys.addaudithook(_audit)
