"""A program reads the user's own files; a change in them is noticed, and a move is none."""

from __future__ import annotations

import json

RUN = "results/own/runs/photos/reads/processes/1x1/plain/native/rep1/run.json"


def test_a_changed_file_is_noticed_and_a_moved_folder_is_not_measured_again(
    tmp_path, snakemake, dry_run
):
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    (photos / "cat" / "1.png").write_text("one")
    (tmp_path / "code").mkdir()
    settings = {
        "experiment": "own",
        "title": "A program that reads files",
        "repeats": 1,
        "oversubscribe": True,
        "datasets": {"photos": {"kind": "files", "paths": {"photos": str(photos)}}},
        "workloads": {
            "reads": {
                "command": ["sh", "-c", "cat {data.photos}/cat/1.png > {output}/read"],
                "directory": str(tmp_path / "code"),
            }
        },
        "variants": {"plain": {}},
        "configurations": [{"strategy": "processes", "layouts": ["1x1"]}],
    }
    served = {"ESCALA_MEASURE_AGAIN": "0"}
    done = snakemake(RUN, experiment=settings, **served)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / RUN).with_name("output").joinpath("read").read_text() == "one"
    first = json.loads((tmp_path / RUN).read_text())
    assert first["status"] == "ok"

    settings["datasets"]["photos"]["paths"]["photos"] = str(photos.rename(tmp_path / "moved"))
    done = snakemake(RUN, experiment=settings, **served)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / RUN).read_text())["started"] == first["started"]
    _, planned = dry_run(RUN, experiment=settings)
    assert "Nothing to be done" in planned

    (tmp_path / "moved" / "cat" / "1.png").write_text("two")
    done = snakemake(RUN, experiment=settings, **served)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / RUN).with_name("output").joinpath("read").read_text() == "two"
