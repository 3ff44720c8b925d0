"""Read what a module declares of itself without importing it.

A module declares by constants: names in capitals, assigned once to a literal. Importing it would
load the libraries that it needs to do its work.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any


def constants(path: Path) -> dict[str, Any]:
    """Return the constants of a module whose values are literals, by name."""
    found = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.isupper():
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError:
                    continue
    return found
