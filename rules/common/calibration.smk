# Inputs and parameters of the rules that calibrate the cost model.

from escala.data import KINDS
from escala.experiment.calibration import SUFFIX, planned
from escala.experiment.plans import plans
from escala.experiment.references import NATIVE, ONE_PROCESS
from escala.workloads import WORKLOADS


def calibrating(wildcards):
    """Return the experiment whose runs calibrate the model for an experiment."""
    return named_experiment(f"{wildcards.experiment}{SUFFIX}")


def has_links():
    """Return whether there are several nodes, whose links can be calibrated."""
    return not workflow.local_exec


def calibrating_files(wildcards):
    found = calibrating(wildcards)
    return [
        *(run.file for run in found.runs_needed(has_links())),
        *map(found.gradients_file, found.different_works),
    ]


def model_code(wildcards):
    """Return the modules that determine the gradients of a model."""
    declared = WORKLOADS[wildcards.workload]
    return declared.package, KINDS[declared.data_kind].reader, "escala.strategies.single"


def of_model(wildcards):
    """Return the settings that a model is built with: those of a run of one process."""
    return experiment(wildcards).settings_of(first_of_model(wildcards))


def first_split(wildcards):
    """Return the description of a split, which gives the form of a model's rows."""
    e, run = experiment(wildcards), first_of_model(wildcards)
    return f"{e.split_folder(run.dataset, e.split_seed(run.dataset, run.repeat))}/dataset.json"


def first_of_model(wildcards):
    try:
        return experiment(wildcards).run(
            wildcards.dataset, wildcards.workload, *ONE_PROCESS, wildcards.variant, NATIVE, 1
        )
    except InputError as error:
        raise WorkflowError(str(error)) from None


def measured_so_far(wildcards):
    """Return what was measured of an experiment so far that an advice reads, with its times.

    These files are no inputs: an advice must not cause runs of the experiment.
    """
    folder = Path(f"results/{wildcards.experiment}")
    files = [*folder.glob("runs/*/*/*/*/*/*/resources/run.json"), folder / "tables/speedup.csv"]
    return sorted(f"{file} {file.stat().st_mtime_ns}" for file in files if file.exists())
