"""Default Entrez queries of some classes; an experiment may give its own instead.

Taxids are those of NCBI's taxonomy; the help of NCBI's sequence databases (NBK49540) describes the
fields of a query. The bounds on the length, in letters, lie around the reference genomes: they
exclude fragments that are titled complete, and assemblies with long additions.
"""

from __future__ import annotations


def _complete(organisms: str, shortest: int, longest: int) -> str:
    """Return a query for complete genomes, without patented and synthetic sequences."""
    return (
        f'({organisms}) AND "complete genome"[Title] AND {shortest}:{longest}[SLEN] '
        "NOT gbdiv_pat[PROP] NOT gbdiv_syn[PROP]"
    )


def _any_of(*taxids: int) -> str:
    return " OR ".join(f"txid{taxid}[Organism:exp]" for taxid in taxids)


QUERIES = {
    # SARS-CoV-2; reference NC_045512, 29 903 letters.
    "COVID": _complete(_any_of(2697049), 29_000, 30_500),
    # Dengue virus 1 to 4; references NC_001477, NC_001474, NC_001475, NC_002640, 10 649 to 10 735.
    "DENGUE": _complete(_any_of(11053, 11060, 11069, 11070), 10_000, 11_500),
    # Zaire, Sudan, Reston, Tai Forest, Bundibugyo, Bombali; reference NC_002549, 18 959 letters.
    "EBOLA": _complete(_any_of(186538, 186540, 186539, 186541, 565995, 2010960), 18_000, 19_500),
    # MERS-CoV; reference NC_019843, 30 119 letters.
    "MERS": _complete(_any_of(1335626), 29_000, 31_000),
    # The species of SARS-CoV without its descendants in the taxonomy, such as SARS-CoV-2. Related
    # viruses of bats may be included. Reference NC_004718, 29 751 letters.
    "SARS": _complete("txid694009[Organism:noexp] NOT txid2697049[Organism:exp]", 29_000, 30_500),
}
