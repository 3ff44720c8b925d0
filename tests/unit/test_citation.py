"""CITATION.cff has what the Citation File Format 1.2.0 requires, and agrees with the project.

cffconvert, which has the whole schema, needs a jsonschema below 4 and cannot be installed alongside
the project. After a change of the file run `uvx cffconvert --validate -i CITATION.cff`.
"""

from __future__ import annotations

import tomllib

import yaml

from tests.conftest import ROOT

CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
#: The names of a person or of an entity.
NAMES = {"name", "family-names", "given-names", "alias"}


def test_the_required_keys_are_there():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] in ("software", "dataset")
    for key in ("message", "title", "abstract"):
        assert isinstance(CITATION[key], str) and CITATION[key], key
    for work in (CITATION, *CITATION["references"]):
        assert work["authors"] and all(NAMES & set(author) for author in work["authors"])
    for reference in CITATION["references"]:
        assert reference["title"] and reference["type"]


def test_version_and_licence_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # YAML reads a version such as 0.2 as a number.
    assert isinstance(CITATION["version"], str)
    assert (CITATION["version"], CITATION["license"]) == (project["version"], project["license"])
