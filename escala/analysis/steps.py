"""Make the outputs of the rules on predicted times. Each function has the name of its rule."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from escala import cli, engines
from escala.core.files import read_json, write_json, write_text
from escala.record import key


@cli.step(lambda given: key.model_code(given.workload, engines.engine_name(given.strategy)))
def gradients(output: cli.Files, given: SimpleNamespace, split: Path) -> None:
    """Build a workload's model, and write the description of its gradients for a calibration."""
    import subprocess
    import tempfile

    from escala.engines import environments

    engine = engines.engine_name(given.strategy)
    settings = {name: getattr(given, name) for name in ("workload", "training", "knobs")}
    python = engines.interpreter(engine)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        content = settings | {"engine": engine, "split": str(split.parent)}
        write_json(model, content, durable=False)
        command = [python, "-m", "escala.engines.functions", str(model), str(output["gradients"])]
        process = subprocess.run(command, env=environments.variables(python, os.environ))
    if process.returncode:
        # The failed process has printed the reason.
        raise SystemExit(1)


def calibrate(output: cli.Files, given: SimpleNamespace, files: list[Path]) -> None:
    """Make a calibration from the runs that calibrate."""
    from escala.analysis.cost_model.calibration import parse
    from escala.analysis.cost_model.document import document

    content, left_out = document(given.sources)
    parse(content, output["calibration"])
    write_json(output["calibration"], content)
    calibrated = [*content["works"], *content.get("programs", ())]
    print("\n".join([*left_out, f"{output['calibration']}: {', '.join(calibrated)}"]))


def predict_times(
    output: cli.Files, given: SimpleNamespace, calibration: Path, datasets: Sequence[Path] = ()
) -> None:
    """Predict the times of an experiment's configurations from a calibration."""
    from escala.analysis.cost_model import predictions
    from escala.analysis.cost_model.calibration import read
    from escala.runtime.layout import with_layout

    # …/data/{dataset}/split{seed}/dataset.json
    rows = {path.parts[-3]: read_json(path)["rows"]["train"] for path in datasets}
    planned = [*map(with_layout, given.configurations)]
    times = predictions.predict_rows(read(calibration), planned, rows)
    machine = read_json(calibration)["machine"]
    write_json(output["times"], {"machine": machine, "configurations": list(times)})


def predictions(output: cli.Files, given: SimpleNamespace, times: Path) -> None:
    """Print the predicted times of an experiment."""
    from escala.analysis.cost_model.predictions import lines

    print("\n".join(lines(read_json(times)["configurations"])))


def advise(
    output: cli.Files, given: SimpleNamespace, calibration: Path, datasets: Sequence[Path] = ()
) -> None:
    """Advise for the least time of training, and write the plans for later questions."""
    from escala.analysis.advice import Question, advise, text
    from escala.analysis.cost_model.works import with_rows

    write_json(output["plans"], with_rows(given.plans, datasets))
    advice = advise(calibration.parent, Question())
    write_json(output["json"], text.content(advice))
    write_text(output["markdown"], "\n".join(text.markdown(advice)) + "\n")


def advice(output: cli.Files, given: SimpleNamespace, text: Path) -> None:
    """Print the advice."""
    print(text.read_text(encoding="utf-8"), end="")
