"""Encode one FASTA file per class, drop exact duplicates and report what each class holds."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.prepare.fasta import encode_classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", required=True, type=Path, help="folder of CLASS.fasta")
    parser.add_argument("--classes", required=True, nargs="+", metavar="CLASS")
    parser.add_argument("--length", required=True, type=int, help="letters kept of each genome")
    parser.add_argument("--margin", default=0, type=int, help="letters kept beyond the length")
    parser.add_argument("--deduplicate", required=True, choices=["none", "genome", "encoded"])
    parser.add_argument("--output", required=True, type=Path, help="folder for the results")
    arguments = parser.parse_args()
    report = encode_classes(
        arguments.sequences,
        arguments.classes,
        arguments.length,
        arguments.deduplicate,
        arguments.output,
        arguments.margin,
    )
    print(report.to_string(index=False))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
