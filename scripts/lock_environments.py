"""Write `envs/NAME-requirements.txt` of each engine from `uv.lock`, or check these files.

An environment has the extras and the packages that `engine.yaml` names, and their dependencies.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from escala import cli
from escala.core.arguments import Parser
from escala.core.engines import ENGINES
from escala.core.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = """\
examples:
  python scripts/lock_environments.py              after `uv lock`
  python scripts/lock_environments.py --check
"""


def main() -> None:
    parser = Parser(description=__doc__, prog="lock_environments", epilog=EXAMPLES)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    for engine in ENGINES:
        file, text = ROOT / "envs" / ENGINES[engine].environment.requirements, lock(engine)
        if not check:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            reason, remedy = "differs from uv.lock", "python scripts/lock_environments.py"
            raise InputError(file, None, reason, remedy)


def lock(engine: str) -> str:
    """Return the lines of the packages of an engine's environment, each with its hashes.

    A framework with separate builds for processors and for each CUDA has no hash. Libraries that
    are part of such a build have no line.
    """
    environment = ENGINES[engine].environment
    call = ["uv", "export", "--frozen", "--offline", "--quiet", "--no-annotate", "--no-header"]
    call += ["--no-default-groups", "--no-emit-project"]
    call += [word for extra in environment.extras for word in ("--extra", extra)]
    done = subprocess.run(call, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    needed = list_needed(environment.extras, environment.packages)
    lines = [
        f"# For {ENGINES[engine].title}, written by scripts/lock_environments.py from uv.lock."
    ]
    for package in re.split(r"\n(?=\S)", done.stdout.strip()):
        built = re.match(environment.builds, package)
        if package.partition("==")[0] in needed and not built:
            lines.append(package)
        elif built and built[1]:
            lines.append(built[1].partition(" ")[0])
    return "\n".join(lines) + "\n"


def list_needed(extras: Iterable[str], packages: Iterable[str]) -> set[str]:
    """Return the names of packages, of the packages of extras, and of all dependencies."""
    edges: dict[str, set[str]] = defaultdict(set)
    for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]:
        edges[package["name"]] |= {other["name"] for other in package.get("dependencies", ())}
        if package["name"] == "escala":
            optional = package["optional-dependencies"]
    left = [*packages, *(other["name"] for extra in extras for other in optional[extra])]
    needed: set[str] = set()
    while left:
        if (name := left.pop()) not in needed:
            needed.add(name)
            left += edges[name]
    return needed


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
