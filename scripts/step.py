"""Make what a rule of data, calibrations or predictions makes: `python -m scripts.step JOB FILES`.

Both are JSON, or `@` and the name of a file with it. A job is the name of the `rule` and settings;
files are those of its `input` and its `output` by name. Each function below is a rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from escala import cli
from escala.cache import code
from escala.core.arguments import raw_parser
from escala.core.errors import InputError
from escala.data import ACQUIRE, DEFAULT_KIND, KINDS
from escala.data.base import DESCRIPTION

#: Keys of a source that name a place or a person and do not affect the data.
PLACES = ("folder", "lock", "email")
#: Classes whose rows are printed.
_MOST = 50

Files = dict[str, Path]


def genomes(files: list[Path], output: Files, given: SimpleNamespace) -> None:
    """Fetch or simulate the genomes of a dataset: a FASTA file per class and a lock file."""

    def make() -> None:
        import pandas as pd

        from escala.data.genomes.acquire import acquire

        partial = Path(given.partial)
        acquire(given.source, given.classes, output["sequences"], output["lock"], partial)
        locked = pd.read_csv(output["lock"], sep="\t", dtype={"class": str}, keep_default_na=False)
        for name, lengths in locked.groupby("class", sort=False)["length"]:
            print(f"{name}: {len(lengths)} records of {lengths.min()} to {lengths.max()} letters")

    cli.serve_or_make(
        "acquire",
        code=KINDS["genomes"].code(ACQUIRE),
        inputs=_numbered(files),
        # The content of folders and lists is an input; their path and the user's address are not.
        parameters={
            "source": {key: value for key, value in given.source.items() if key not in PLACES},
            "classes": given.classes,
            # A mirror of NCBI is another source.
            "server": os.environ.get("ESCALA_EUTILS_URL")
            if given.source.get("type") == "ncbi"
            else None,
        },
        outputs=output,
        make=make,
    )


def source(files: list[Path], output: Files, given: SimpleNamespace) -> None:
    """Acquire the data of all splits of a dataset, with a lock file of digests."""
    kind = KINDS[given.kind]

    def make() -> None:
        from escala.core.files import atomic
        from escala.data.splits import write_lock

        with atomic(output["source"]) as temporary:
            temporary.mkdir()
            kind.load("source").acquire(given.acquisition, files, temporary)
            write_lock(temporary)

    cli.serve_or_make(
        "source",
        code=kind.code(),
        inputs=_numbered(files),
        parameters={"kind": kind.name, "acquisition": given.acquisition},
        outputs=output,
        make=make,
    )


def codes(sequences: Path, output: Files, given: SimpleNamespace) -> None:
    """Encode one FASTA file per class, drop exact duplicates and report each class."""
    settings = vars(given)

    def make() -> None:
        from escala.data.genomes.records import encode_classes

        with cli.stage("encode") as stage:
            report = encode_classes(sequences, output=output["codes"].parent, **settings)
            stage.rows_in, stage.rows_out = report["records"].sum(), report["kept"].sum()
            stage.files = [output["codes"]]
        print(report.to_string(index=False))

    cli.serve_or_make(
        "encode",
        code=KINDS["genomes"].code(),
        inputs={name: sequences / f"{name}.fasta" for name in given.classes},
        parameters=settings,
        outputs=output,
        make=make,
    )


def clusters(sequences: Path, records: Path, output: Files, given: SimpleNamespace) -> None:
    """Sketch the genomes of a dataset and link those of a class that are near-duplicates."""

    def make() -> None:
        from escala.data.genomes import similarity
        from escala.data.genomes.records import read_records

        with cli.stage("clusters") as stage:
            table = read_records(records)
            made = similarity.sketches(sequences, table)
            made.save(output["sketches"])
            labels = table["label"].to_numpy()
            numbers = similarity.clusters(made.matrix(), labels, given.similarity)
            groups = similarity.write_groups(table, numbers, output["clusters"])
            stage.rows_in = stage.rows_out = len(table)
            stage.files = [*output.values()]
        for name, members in groups.groupby("class", sort=False)["group"]:
            sizes = members.value_counts()
            print(f"{name}: {len(members)} genomes in {len(sizes)} clusters, at most {sizes.max()}")

    cli.serve_or_make(
        "clusters",
        code=KINDS["genomes"].code(),
        inputs={"sequences": sequences, "records": records},
        parameters={"similarity": given.similarity},
        outputs=output,
        make=make,
    )


def features(
    source: Path, pictures: Path, weights: Path, output: Files, given: SimpleNamespace
) -> None:
    """Compute the features of a dataset's pictures, which do not depend on their captions."""
    from escala import engines
    from escala.core.engines import DEFAULT, FOLDER
    from escala.core.files import atomic, read_json, sha256_file
    from escala.data.captions.settings import CAPTIONS_FILE
    from escala.data.captions.source import picture_files
    from escala.engines.environments import provide

    provide(DEFAULT)
    listed = picture_files(read_json(source / CAPTIONS_FILE), pictures)

    def make() -> None:
        from escala.data.captions.vgg16 import extract

        with atomic(output["features"]) as temporary:
            temporary.mkdir()
            extract(listed, weights, given.weights_sha256, temporary)

    cli.serve_or_make(
        "features",
        # The code that lists the pictures does not decide their features.
        code=KINDS["captions"].code("vgg16.py"),
        inputs={"weights": weights} | {f"pictures/{name}": path for name, path in listed.items()},
        parameters=vars(given)
        | {"network": sha256_file(FOLDER / DEFAULT / "layers.py")}
        | engines.versions(DEFAULT),
        outputs=output,
        make=make,
    )


def arrays(output: Files, given: SimpleNamespace, **inputs: Path) -> None:
    """Split a dataset and write the arrays of its sides."""
    kind, folder = KINDS[given.kind], output["description"].parent
    outputs = {name: folder / name for name in (*kind.files, DESCRIPTION)}

    def make() -> None:
        with cli.stage("arrays") as stage:
            prepare = kind.load("arrays").prepare
            description = prepare(given.name, given.preparation, given.seed, inputs, folder)
            if description is None:
                reason, remedy = "prepare returned None", "return what write_split returns"
                raise InputError(kind.folder / "arrays.py", None, reason, remedy)
            # Their reader is selected by this kind.
            if (named := description.get("kind", DEFAULT_KIND)) != kind.name:
                reason = f"the dataset is of the kind {kind.name}, and its arrays name another"
                remedy = "use the kind's name in its module arrays"
                raise InputError(folder / DESCRIPTION, named, reason, remedy)
            counts = description.get("counts", {})
            stage.rows_out = sum(filter(None, description["rows"].values()))
            # Without balancing these are all rows.
            stage.rows_in = sum(each.get("kept", 0) for each in counts.values()) or stage.rows_out
            made = [inner for path in outputs.values() for inner in (path, *path.rglob("*"))]
            stage.files = [path for path in made if path.is_file()]
        for name, stages in list(counts.items())[:_MOST]:
            print(name, *(f"{stage_name} {rows}" for stage_name, rows in stages.items()))
        if len(counts) > _MOST:
            print(f"… and {len(counts) - _MOST} more classes, in {DESCRIPTION}")
        for name in description.get("not_separable", ()):
            print(f"{name} has one group: not separable, all its rows are trained on")

    if not kind.files:
        # Files stay where they are: nothing is worth a place in the store.
        make()
        return
    cli.serve_or_make(
        "arrays",
        code=kind.code(),
        inputs=inputs,
        parameters=vars(given),
        outputs=outputs,
        optional=kind.files,
        make=make,
    )


def leakage(dataset: Path, sketches: Path, output: Files, given: SimpleNamespace) -> None:
    """Compute the similarity of each test row's genome to the nearest training genome."""
    split = dataset.parent

    def make() -> None:
        from escala.core.files import write_json
        from escala.data.genomes.similarity import leakage, write_similarity

        similarity, limit = (
            write_similarity(split, sketches, output["similarity"]),
            given.similarity,
        )
        fraction = leakage(similarity, limit)
        write_json(output["report"], {"similarity": limit, "fraction": fraction})
        print(
            f"{fraction:.1%} of {len(similarity)} test rows have a near-duplicate among the "
            f"training genomes: at least {limit:g} of their 21-mers in common"
        )

    rows = {name: split / name for name in ("train_genomes.npy", "test_genomes.npy")}
    cli.serve_or_make(
        "leakage",
        code=KINDS["genomes"].code(),
        inputs=rows | {"sketches": sketches},
        parameters={"similarity": given.similarity},
        outputs=output,
        make=make,
    )


def familiarity(dataset: Path, output: Files, given: SimpleNamespace) -> None:
    """Learn the content of the training rows of a split, to flag unfamiliar items."""
    kind, split = KINDS[given.kind], dataset.parent

    def make() -> None:
        learned = kind.load("familiarity").learn(split, output["familiarity"])
        print(f"{output['familiarity']}: {len(learned.held_out)} held-out rows")

    read = {name: split / name for name in (DESCRIPTION, *kind.files)}
    cli.serve_or_make(
        "familiarity",
        code=kind.code(),
        inputs={name: path for name, path in read.items() if path.exists()},
        parameters={},
        outputs=output,
        make=make,
    )


def length_errors(
    run: Path, split: Path, familiarity: Path, output: Files, given: SimpleNamespace
) -> None:
    """Measure how often the model of a run is wrong about test pieces of each length."""
    from escala.predict import code as predicting_code

    kind = KINDS[given.kind]

    def make() -> None:
        from escala.predict.lengths import measure

        trained = run.parent, split.parent, familiarity
        for entry in measure(kind, *trained, given.false_alarms, output["errors"]):
            print(
                f"{entry.letters} letters: {entry.error:.1%} of {entry.familiar} familiar test "
                "pieces are wrong"
            )

    fragments = kind.load("fragments").inputs(split.parent)
    cli.serve_or_make(
        "length_errors",
        code=predicting_code(kind, given.workload),
        inputs=_model(run) | {"familiarity": familiarity} | fragments,
        parameters={"false_alarms": given.false_alarms},
        outputs=output,
        make=make,
    )


def predict(
    output: Files,
    given: SimpleNamespace,
    query: Path,
    run: Path,
    familiarity: Path | None = None,
    errors: Path | None = None,
) -> None:
    """Classify the items of a user's file with the model of a run.

    Not every kind of data has what tells familiar rows, and errors by length.
    """
    from escala.predict import code as predicting_code

    kind, table = KINDS[given.kind], output["table"]

    def make() -> None:
        from escala.predict.classify import predict
        from escala.predict.lengths import judge, read

        by_length = judge(read(errors), given.error_limit) if errors else None
        predict(kind, query, run.parent, familiarity, given.false_alarms, table, by_length)

    files = {"query": query, "familiarity": familiarity, "errors": errors}
    cli.serve_or_make(
        "predict",
        code=predicting_code(kind, given.workload),
        inputs=_model(run) | {name: path for name, path in files.items() if path},
        parameters={"false_alarms": given.false_alarms, "error_limit": given.error_limit},
        outputs=output,
        make=make,
    )
    from escala.predict.lengths import read, summary

    print(summary(table, read(errors) if errors else [], given.error_limit))


def gradients(split: Path, output: Files, given: SimpleNamespace) -> None:
    """Build a workload's model, and write what a calibration needs to know of its gradients."""
    import subprocess
    import tempfile

    from escala import engines
    from escala.core.files import write_json
    from escala.engines import environments
    from escala.record import key

    engine = engines.engine_name(given.strategy)
    settings = {"workload": given.workload, "training": given.training, "knobs": given.knobs}
    settings |= {"engine": engine}

    def make() -> None:
        python = engines.interpreter(engine)
        with tempfile.TemporaryDirectory() as scratch:
            model = Path(scratch, "model")
            write_json(model, settings | {"split": str(split.parent)}, durable=False)
            words = [python, "-m", "escala.engines.functions", str(model), str(output["gradients"])]
            done = subprocess.run(words, env=environments.variables(python, os.environ))
        if done.returncode:
            # It has told why.
            raise SystemExit(1)

    cli.serve_or_make(
        "gradients",
        code=key.model_code(given.workload, engine),
        inputs={DESCRIPTION: split},
        parameters=settings,
        outputs=output,
        make=make,
    )


def calibrate(files: list[Path], output: Files, given: SimpleNamespace) -> None:
    """Make a calibration from the runs that calibrate."""
    sources = given.sources

    def make() -> None:
        from escala.analysis.cost_model.calibration import parse
        from escala.analysis.cost_model.document import document
        from escala.core.files import write_json

        content, left_out = document(sources)
        parse(content, output["calibration"])
        write_json(output["calibration"], content)
        calibrated = [*content["works"], *content.get("programs", ())]
        print("\n".join([*left_out, f"{output['calibration']}: {', '.join(calibrated)}"]))

    runs = set(sources["collectives"])
    for work in sources["works"].values():
        runs |= {*work["steps"], work["clocks"]}
    for program in sources.get("programs", {}).values():
        runs |= {*program["steps"], *(file for group in program["sums"] for file in group)}
    read = [Path(work["gradients"]) for work in sources["works"].values()]
    for run in map(Path, sorted(runs)):
        steps, clocks = (
            sorted(run.parent.glob(f"ranks/rank*.{of}.csv")) for of in ("steps", "clocks")
        )
        read += [run, *steps, *clocks]
    cli.serve_or_make(
        "calibrate",
        code=code.project(),
        inputs={str(path): path for path in read},
        parameters={"sources": sources},
        outputs=output,
        make=make,
    )


def predict_times(
    calibration: Path, output: Files, given: SimpleNamespace, datasets: Sequence[Path] = ()
) -> None:
    """Predict the times of an experiment's configurations from a calibration."""

    def make() -> None:
        from escala.analysis.cost_model import predictions
        from escala.analysis.cost_model.calibration import read
        from escala.core.files import read_json, write_json
        from escala.runtime.layout import with_layout

        # …/data/{dataset}/split{seed}/dataset.json
        rows = {path.parts[-3]: read_json(path)["rows"]["train"] for path in datasets}
        planned = [*map(with_layout, given.configurations)]
        found = predictions.rows(read(calibration), planned, rows)
        machine = read_json(calibration)["machine"]
        write_json(output["times"], {"machine": machine, "configurations": list(found)})

    cli.serve_or_make(
        "predictions",
        code=code.project(),
        inputs={"calibration": calibration, **{str(path): path for path in datasets}},
        parameters={"configurations": given.configurations},
        outputs=output,
        make=make,
    )


def predictions(times: Path, output: Files, given: SimpleNamespace) -> None:
    """Print predicted times."""
    from escala.analysis.cost_model.predictions import lines
    from escala.core.files import read_json

    print("\n".join(lines(read_json(times)["configurations"])))


STEPS: Mapping[str, Callable[..., None]] = {
    step.__name__: step
    for step in (
        genomes, source, codes, clusters, features, arrays, leakage, familiarity, length_errors,
        predict, gradients, calibrate, predict_times, predictions,
    )
}  # fmt: skip


def _numbered(files: list[Path]) -> Files:
    """Name files by their places, as lists of two classes may have one name."""
    return {f"{place} {path.name}": path for place, path in enumerate(files)}


def _model(run: Path) -> Files:
    from escala.workloads.models import FILES

    return {name: path for name in FILES if (path := run.parent / name).exists()}


def _paths(files: Mapping[str, str | list[str]]) -> dict[str, Any]:
    """Return files by name; one that a rule has not for this kind is left out."""
    return {
        name: Path(of) if isinstance(of, str) else [*map(Path, of)]
        for name, of in files.items()
        if of or name == "files"
    }


def main() -> None:
    parser = raw_parser(__doc__, prog="step")
    parser.add_argument("job", type=cli.json_or_file)
    parser.add_argument("files", type=cli.json_or_file)
    given = parser.parse_args()
    make, settings = STEPS[given.job.pop("rule")], SimpleNamespace(**given.job)
    make(**_paths(given.files["input"]), output=_paths(given.files["output"]), given=settings)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
