"""Build models, and write the memory that a replica of each takes. A dry run calls it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from escala.record.estimate_memory import footprint_of


def main() -> None:
    """Write `{}`, and then the footprint or the error of each model in a line, once it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="file with a list of models, in JSON")
    parser.add_argument("answers", type=Path, help="file to write the lines to, in JSON")
    arguments = parser.parse_args()
    with open(arguments.answers, "w", buffering=1) as answers:
        print("{}", file=answers)
        for model in json.loads(arguments.models.read_text()):
            print(json.dumps(footprint_of(model)), file=answers)


if __name__ == "__main__":
    main()
