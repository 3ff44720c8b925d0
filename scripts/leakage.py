"""Compute the similarity of each test row's genome to the nearest training genome."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", required=True, type=Path, help="folder of the split")
    parser.add_argument("--sketches", required=True, type=Path, help=".npz of the dataset")
    parser.add_argument(
        "--similarity",
        required=True,
        type=float,
        help="smallest share of common 21-mers of near-duplicates",
    )
    parser.add_argument("--output", required=True, type=Path, help=".npy to write")
    parser.add_argument("--report", required=True, type=Path, help="JSON to write")
    arguments = parser.parse_args()

    def make() -> None:
        from escala.data.genomes.prepare.similarity import leakage, write_similarity

        similarity = write_similarity(arguments.split, arguments.sketches, arguments.output)
        limit = arguments.similarity
        share = leakage(similarity, limit)
        write_json(arguments.report, {"similarity": limit, "share": share})
        print(
            f"{share:.1%} of {len(similarity)} test rows have a near-duplicate among the training "
            f"genomes: at least {limit:g} of their 21-mers in common"
        )

    rows = {name: arguments.split / name for name in ("train_genomes.npy", "test_genomes.npy")}
    cli.serve_or_make(
        "leakage",
        code="scripts.leakage",
        inputs=rows | {"sketches": arguments.sketches},
        parameters={"similarity": arguments.similarity},
        outputs={"similarity": arguments.output, "report": arguments.report},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
