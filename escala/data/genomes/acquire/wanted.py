"""The records that a source asks NCBI for."""

from __future__ import annotations

from dataclasses import dataclass, field

from escala.core.errors import InputError

REMEDY = "check the query and the connection, then run the same command again"


@dataclass(frozen=True)
class Wanted:
    """The wanted records of a class.

    Attributes
    ----------
    where, value : the key in the config and its value, for messages.
    accessions : records to fetch; None if a search must list them first.
    places : where a list has its accessions, such as `line 3`.
    digests : SHA-256 of sequences, by accession, where they are known.
    limit : maximum number of records from a search.
    """

    where: str
    value: object
    accessions: list[str] | None = None
    places: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    limit: int | None = None

    def error(self, reason: str, remedy: str = REMEDY) -> InputError:
        return InputError(self.where, self.value, reason, remedy)
