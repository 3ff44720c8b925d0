"""Compute the similarity of each test row's genome to the nearest training genome."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.core.files import write_json
from escala.data import KINDS


def main() -> None:
    given = cli.options(
        __doc__, split=Path, sketches=Path, similarity=float, output=Path, report=Path
    )

    def make() -> None:
        from escala.data.genomes.prepare.similarity import leakage, write_similarity

        similarity = write_similarity(given.split, given.sketches, given.output)
        limit = given.similarity
        fraction = leakage(similarity, limit)
        write_json(given.report, {"similarity": limit, "fraction": fraction})
        print(
            f"{fraction:.1%} of {len(similarity)} test rows have a near-duplicate among the "
            f"training genomes: at least {limit:g} of their 21-mers in common"
        )

    rows = {name: given.split / name for name in ("train_genomes.npy", "test_genomes.npy")}
    cli.serve_or_make(
        "leakage",
        code=KINDS["genomes"].code(),
        inputs=rows | {"sketches": given.sketches},
        parameters={"similarity": given.similarity},
        outputs={"similarity": given.output, "report": given.report},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
