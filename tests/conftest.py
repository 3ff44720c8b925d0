"""Shared by all tests: what they need of the machine, how they share it, and a small dataset."""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

from escala.core.engines import DEFAULT, ENGINES
from escala.core.errors import InputError, Unavailable
from escala.core.hardware import available_cores
from escala.core.variables import CALLERS_MODULES, CALLERS_PATH
from escala.engines import environments
from escala.programs import copy as program_copy
from escala.runtime import node
from escala.runtime.layout import Layout
from escala.strategies.knobs import complete
from tests.warm import Warm

# A busy machine is no failure, and the same examples every time: chance turns nothing red.
settings.register_profile("escala", deadline=None, derandomize=True)
settings.load_profile("escala")

ROOT = Path(__file__).resolve().parent.parent
#: The knobs of a run that sets none.
KNOBS = complete({}, "virus-cnn")
CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]
#: Rounds of the fixed kernel. In the process of a test, where hundreds of runs are measured, few
#: tests look at its times, and it has fewer. Nor have runs links to the folders of all tests.
ROUNDS, node.ROUNDS = node.ROUNDS, 2
program_copy.MOST_LINKS = 50
#: What a process of an interpreter is given, before tests change it.
VARIABLES = environments.variables
#: The rules of accessibility, as one script.
AXE = ROOT / "tests" / "browser" / "node_modules" / "axe-core" / "axe.min.js"


def _folder(variable: str) -> str | None:
    named = os.environ.get(variable)
    return None if named and Path(named).is_dir() else f"{variable} does not name a folder"


def _chromium() -> str | None:
    return None if shutil.which("chromedriver") else "no ChromeDriver on the PATH"


def _zensical() -> str | None:
    return None if find_spec("zensical") else "Zensical is not installed"


def _axe() -> str | None:
    return None if AXE.is_file() else "axe-core is not installed"


def _cluster() -> str | None:
    from escala.lab.cluster import require_machine

    return _refusal(require_machine)


def _ssh() -> str | None:
    return None if shutil.which("ssh") and sshd() else "no ssh, or no sshd"


def sshd() -> str | None:
    """Return the path of the server of OpenSSH, which is seldom on the PATH."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _environment(engine: str) -> str | None:
    return _refusal(lambda: environments.python(engine))


def _refusal(require: Callable[[], object]) -> str | None:
    """Return why a check refuses, without a full stop, or None if it does not."""
    try:
        require()
    except (InputError, Unavailable) as error:
        return str(error).rstrip(".")
    return None


# marker -> its name in ESCALA_REQUIRE, what is lacking (or None), the remedy
NEEDS = {
    "real_data": (
        "real-data",
        partial(_folder, "ESCALA_GENOMES"),
        "set it to a folder of CLASS.fasta[.gz] files",
    ),
    "real_pictures": (
        "real-pictures",
        partial(_folder, "ESCALA_PICTURES"),
        "set it to a folder with mnist/ (idx files) and cifar-10/ (binary files)",
    ),
    "cluster": ("cluster", _cluster, "docs/how-to/lab.md says what the lab needs"),
    "browser": (
        "browser",
        _chromium,
        "install both, on Debian: apt-get install chromium chromium-driver",
    ),
    "ssh": ("ssh", _ssh, "install both, on Debian: apt-get install openssh-server"),
    "docs": ("docs", _zensical, "uv sync --group docs"),
    "axe": ("axe", _axe, "install it: npm ci --prefix tests/browser"),
} | {
    engine: (engine, partial(_environment, engine), f"uv run escala install {engine}")
    for engine in ENGINES
}
#: The engines with an environment of their own that are installed, by their environments.
PYTHONS = {
    environments.python(engine): engine for engine in ENGINES if _environment(engine) is None
}
PYTHONS.pop(sys.executable, None)


#: Frameworks that tests import in their own process, and what lets them.
FRAMEWORKS = ("tensorflow", "keras", "horovod")
OWN_FRAMEWORK = "run the tests with Python 3.11: uv run --extra tensorflow --extra horovod pytest"
#: Settings of the user's that tests read; they start without any other.
DECLARED = (
    *("ESCALA_REQUIRE", "ESCALA_GENOMES", "ESCALA_PICTURES", "ESCALA_MPI"),
    *(each.environment.variable for each in ENGINES.values()),
)
#: Folders of tests in the order to start them: what takes long first, so that no worker is left
#: with it while the others have nothing to do.
ORDER = ("cluster", "workflow", "browser", "unit")
#: File in pytest's cache that tests lock while they run: one to run alone for itself.
LOCK = "machine.lock"


def remove_settings(environment: MutableMapping[str, str]) -> None:
    """Remove the user's settings of Escala and key of NCBI, but for those that tests declare."""
    for name in list(environment):
        if name == "NCBI_API_KEY" or (name.startswith("ESCALA_") and name not in DECLARED):
            del environment[name]


def pytest_configure(config: pytest.Config) -> None:
    """Start without the user's settings, and with signals that reach what tests start.

    A suite in the background inherits that SIGINT is ignored, and one under `nohup` SIGHUP. What
    tests start keeps compiled modules: without them every process compiles the project again, a
    call of Snakemake for 0.7 seconds.
    """
    for name, engine in ENGINES.items():
        line = f"{name}: needs the environment of {engine.title}"
        config.addinivalue_line("markers", line)
    remove_settings(os.environ)
    # Workflows of several workers run alongside each other, and disturb each other.
    os.environ["ESCALA_LOCKS"] = tempfile.mkdtemp(prefix="escala-locks-")
    os.environ["ESCALA_MEASURE_DISTURBED"] = "0"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if "PYTEST_XDIST_WORKER" in os.environ:
        # It is the last of what runs at the end, which removes files that TensorFlow wrote. To free
        # what a worker imported would take three seconds more.
        atexit.register(os._exit, 0)
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in handlers.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make the environment of the default experiment's framework once, before workers start."""
    if "PYTEST_XDIST_WORKER" not in os.environ and not session.config.option.collectonly:
        environments.provide_all([DEFAULT])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo) -> None:
    """Skip a test that imports a framework itself, in an environment without it."""
    error = call.excinfo and call.excinfo.value
    if isinstance(error, ModuleNotFoundError) and error.name in FRAMEWORKS:
        try:
            pytest.skip(f"no {error.name} here; {OWN_FRAMEWORK}")
        except pytest.skip.Exception:
            call.excinfo = pytest.ExceptionInfo.from_current()


class _Module(pytest.Module):
    """A module of tests, which is skipped if it needs a framework that this environment lacks."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()
        except self.CollectError as error:
            if match := re.search(rf"No module named '({'|'.join(FRAMEWORKS)})\b", str(error)):
                pytest.skip(f"no {match[1]} here; {OWN_FRAMEWORK}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return _Module.from_parent(parent, path=module_path)


def pytest_xdist_auto_num_workers() -> int:
    """Return a worker for each core, two to four, one more, and one for the lab.

    Tests wait for processes about a fifth of their time, those of the lab most of it.
    """
    return max(2, min(4, len(available_cores()))) + 1 + (_cluster() is None)


def _group(item: pytest.Item) -> str | None:
    """Return the name of the tests that run in one worker, one after the other; None of a single.

    There is one lab on a machine, and the README's call of Snakemake runs once. Elsewhere, tests of
    a module stay together. One to run alone waits for all others, and so would those after it.
    """
    if item.get_closest_marker("alone"):
        return None
    if item.get_closest_marker("cluster"):
        return "cluster"
    if "first_command" in item.fixturenames:
        return "first command"
    return f"{item.path.parent.name}/{item.path.stem}"


@pytest.hookimpl(tryfirst=True)  # xdist's own hook reads the mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the group of every test, and order them: long ones first, those to run alone last."""
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))

    def place(item: pytest.Item) -> tuple[bool, int]:
        folder = item.path.parent.name
        folders = ORDER.index(folder) if folder in ORDER else len(ORDER)
        return item.get_closest_marker("alone") is not None, folders

    items.sort(key=place)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """Keep the collector of garbage from what collecting tests makes and imports, which stays.

    To look at all of it, again and again, takes seconds in every worker. Tests change modules
    faster than Python looks at their times, so that none is kept compiled afterwards.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        sys.dont_write_bytecode = True


def pytest_unconfigure() -> None:
    """Let the modules of extensions be freed, some of which print what is left of them."""
    shutil.rmtree(os.environ["ESCALA_LOCKS"], ignore_errors=True)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        gc.unfreeze()


_ALL_CORES = available_cores()


@contextmanager
def _free_core(folder: Path) -> Iterator[list[int]]:
    """Yield a core that no other worker has, or all cores if there is none or no other worker."""
    with ExitStack() as stack:
        for core in _ALL_CORES if "PYTEST_XDIST_WORKER" in os.environ else ():
            lock = stack.enter_context(open(folder / f"core{core}.lock", "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield [core]
            return
        yield _ALL_CORES


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test on a core of its own; one to run alone on all of them, once the others wait.

    Others that take more than a core say so.

    Tests of the lab mostly wait for its daemons: they have all cores, and keep none from others.
    There is a worker more than cores, whose test uses what the others leave while they wait.
    """
    if not hasattr(item.config, "cache"):  # `-p no:cacheprovider`: there is no place for a lock.
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    whole = alone or any(map(item.get_closest_marker, ("cluster", "all_cores")))
    folder = item.config.cache.mkdir("escala")
    with open(folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        with nullcontext(_ALL_CORES) if whole else _free_core(folder) as cores:
            os.sched_setaffinity(0, cores)
            return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine lacks, with the remedy, or fail where ESCALA_REQUIRE names it."""
    required = os.environ.get("ESCALA_REQUIRE", "").split(",")
    for marker, (name, lacking, remedy) in NEEDS.items():
        if item.get_closest_marker(marker):
            reason = lacking()
            if reason:
                end = pytest.fail if name in required else pytest.skip
                end(f"{reason}; {remedy}", **({"pytrace": False} if name in required else {}))


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this call of pytest, which all its workers have."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def selected(request: pytest.FixtureRequest, name: str) -> set[str]:
    """Return the values of a parameter in those tests of a module that this call runs."""
    cases = (getattr(i, "callspec", None) for i in request.session.items if i.path == request.path)
    return {case.params[name] for case in cases if case and name in case.params}


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return what PYTHONPATH holds of processes that are to be forks; all workers share one."""
    server = Warm(shared_folder(tmp_path_factory) / "warm")
    yield server.folder
    server.close()


@pytest.fixture(scope="session")
def warm_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return a function that returns the same for the interpreter of an engine, once needed."""
    with ExitStack() as started:

        @cache
        def folder(python: str) -> Path:
            name = f"warm-{PYTHONS[python]}"
            server = Warm(shared_folder(tmp_path_factory) / name, python)
            return started.enter_context(closing(server)).folder

        yield folder


@pytest.fixture(scope="module", autouse=True)
def forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make processes of the project forks, but for unit tests and modules marked `cold`.

    Those of engines with an environment of their own are, where the process of a test starts them.
    """
    # A call in the process of a test leaves them.
    for name in (CALLERS_PATH, CALLERS_MODULES):
        os.environ.pop(name, None)
    cold = request.node.get_closest_marker("cold") or request.path.parent.name == "unit"
    with pytest.MonkeyPatch.context() as patch:
        if not cold:
            patch.setenv("PYTHONPATH", str(request.getfixturevalue("warm")))
        if not cold:
            forks = partial(
                _variables_of_forks,
                environments.variables,
                request.getfixturevalue("warm_engines"),
            )
            patch.setattr(environments, "variables", forks)
        yield


def _variables_of_forks(
    variables: Callable[..., dict[str, str]],
    forks: Callable[[str], Path],
    python: str,
    given: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables of a process of an interpreter, which make one of an engine a fork."""
    found = variables(python, given)
    if python not in PYTHONS:
        return found
    return found | {"PYTHONPATH": f"{forks(python)}{os.pathsep}{found['PYTHONPATH']}"}


@pytest.fixture
def as_forks(monkeypatch: pytest.MonkeyPatch, warm: Path) -> None:
    """Let the processes that a unit test starts be forks."""
    monkeypatch.setenv("PYTHONPATH", str(warm))


@pytest.fixture
def whole_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process of a test run the fixed kernel as others do."""
    monkeypatch.setattr(node, "ROUNDS", ROUNDS)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of one test start by themselves."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(environments, "variables", VARIABLES)


def copy_project(folder: Path) -> Path:
    """Copy what a workflow needs of the project into a new folder, and return it."""
    # Compiled modules save every copy the time to compile them; some are just being written. Pytest
    # renames a folder when it makes its cache.
    unwanted = shutil.ignore_patterns(
        ".*", "results", "tests", "docs", "*.pyc.*", "pytest-cache-files-*"
    )
    shutil.copytree(ROOT, folder, ignore=unwanted)
    for name in (each.environment.folder for each in ENGINES.values()):
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    return folder


def reduced(experiment: dict) -> dict:
    """Return an experiment on few small genomes, once, on any core, without its last variant."""
    for dataset in experiment["datasets"].values():
        records = dict.fromkeys(dataset["source"]["records"], 20)
        dataset |= {"length": 300, "source": dataset["source"] | {"records": records}}
        dataset["oversample"] |= {"neighbours": 2}
    for workload in experiment["workloads"].values():
        workload |= {"epochs": 1} if "epochs" in workload else {}
    *variants, left_out = experiment["variants"]
    return experiment | {
        "repeats": 1,
        "oversubscribe": True,
        "variants": {name: experiment["variants"][name] for name in variants},
        "references": [each for each in experiment["references"] if each["variant"] != left_out],
    }


@pytest.fixture(scope="session")
def first_command(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Path:
    """The README's call of Snakemake, in a clone with a small config.yaml; returns its folder.

    What it printed is in `said`. The environment is the one of the tests.
    """
    clone = copy_project(tmp_path_factory.mktemp("first") / "escala")
    settings = reduced(yaml.safe_load((clone / "config.yaml").read_text()))
    (clone / "config.yaml").write_text(yaml.safe_dump(settings))
    readme = (ROOT / "README.md").read_text()
    [command] = re.findall(r"^.*uv run (snakemake .*--report-after-run.*)$", readme, re.MULTILINE)
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [Path(sys.executable).parent / program, *arguments],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(warm)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    (clone / "said").write_text(done.stdout)
    assert done.returncode == 0, done.stdout
    return clone


@pytest.fixture(scope="session")
def small_split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split of small simulated genomes: 5 classes, 300 letters, 161 training rows.

    Batches of 32 leave one row for the last step of an epoch, and none for the second of two ranks.
    """
    from escala.data.genomes.acquire import acquire
    from escala.data.genomes.arrays import encode_classes, prepare

    folder = tmp_path_factory.mktemp("small")
    source = {
        "type": "simulated",
        "seed": 1,
        "difficulty": 0.3,
        "records": dict.fromkeys(CLASSES, 46),
    }
    acquire(source, CLASSES, folder / "sequences", folder / "lock.tsv")
    encode_classes(folder / "sequences", CLASSES, 300, "none", folder)
    preparation = {
        "provenance": "simulated",
        "classes": CLASSES,
        "length": 300,
        "window": {"method": "start", "reverse_complement": False},
        "deduplicate": "none",
        "split": {"by": "random", "test_fraction": 0.3},
        "oversample": {"method": "none", "order": "after-split"},
    }
    prepare("small", preparation, 4, {"codes": folder / "codes.npy"}, folder / "split4")
    return folder / "split4"


@pytest.fixture(scope="session")
def request_for():
    """Build what the workflow hands to a run: a strategy, a layout, and changes to the rest."""

    def build(strategy: str, layout: str, **training: object) -> dict:
        names = ("instrument", "max_steps", "workload")
        knobs = training.pop("knobs", {})
        changes = {k: training.pop(k) for k in list(training) if k in names}
        fits = {"kmer-logreg": {"k": 6, "C": 1.0, "max_iterations": 1000}, "majority": {}}
        return {
            "experiment": "test",
            "dataset": "small",
            "workload": "virus-cnn",
            "strategy": strategy,
            "layout": Layout.parse(layout),
            "variant": "tuned",
            "network": "native",
            "repeat": None if changes.get("instrument") else 1,
            "series": None,
            "instrument": None,
            "training": {"save_model": False}
            | fits.get(
                changes.get("workload"),
                {
                    "epochs": 1,
                    "batch": {"rows": 32, "per": "global"},
                    "learning_rate": {"value": 0.001, "reference_batch": 32, "rule": "constant"},
                    "seed": 0,
                    "validate": False,
                    "tensorboard": False,
                    "checkpoint_epochs": None,
                },
            )
            | training,
            "knobs": KNOBS | knobs,
            "link": {"interface": None, "rate": None},
            "launcher": "auto",
            "oversubscribe": True,
            "max_steps": None,
            "probe_settings": {} if changes.get("instrument") else None,
        } | changes

    return build


@contextmanager
def _registries_restored() -> Iterator[None]:
    """Forget at the end what experiments and tests added: folders outside the project, programs."""
    from escala.core import plugins
    from escala.data import KINDS
    from escala.experiment.folders import PROGRAMS
    from escala.workloads import WORKLOADS

    kept = [(registry, dict(registry)) for registry in (WORKLOADS, KINDS, PROGRAMS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(plugins.VARIABLE, "{}")
        yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)
    packages = tuple(plugins.package(part, "") for part in plugins.DECLARATIONS)
    for name in [name for name in sys.modules if name.startswith(packages)]:
        del sys.modules[name]


@pytest.fixture
def registries() -> Iterator[None]:
    """Restore after a test what is known of workloads and kinds."""
    with _registries_restored():
        yield


@pytest.fixture(scope="module", autouse=True)
def module_registries() -> Iterator[None]:
    """Restore after a module what is known of workloads and kinds."""
    with _registries_restored():
        yield


@pytest.fixture
def own_workload(tmp_path: Path, registries: None) -> Path:
    """A copy of examples/my_workload; its experiment stands alongside it."""
    from tests.folders import copied

    copied(tmp_path, "my_workload", "mine.yaml")
    return tmp_path / "my_workload"
