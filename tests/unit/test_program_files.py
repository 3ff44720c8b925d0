"""Which files of a program enter its key."""

from __future__ import annotations

from escala.programs.environment import digests
from escala.programs.program import Program


def test_files_of_one_name_outside_of_the_directory_are_told_apart(tmp_path):
    directory, *others = (tmp_path / name for name in ("own", "one", "two"))
    for folder in (directory, *others):
        folder.mkdir()
        (folder / "config.yaml").write_text(folder.name)
    command = ("run", *(str(folder / "config.yaml") for folder in others))

    def found() -> dict[str, str]:
        declared = {"command": command, "files": ["config.yaml"]}
        return digests(Program.of(declared, directory, "program"))

    before = found()
    assert len(set(before.values())) == 3
    for folder in others:
        (folder / "config.yaml").write_text("changed")
        assert found() != before
        (folder / "config.yaml").write_text(folder.name)
