"""Build models, and print the memory that a replica of each takes. A dry run calls it."""

from __future__ import annotations

import argparse
import json
import sys

from escala.record.estimate_memory import footprint_of


def main() -> None:
    """Read models from standard input as JSON, and print footprints or errors as the last line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("\n" + json.dumps([footprint_of(model) for model in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
