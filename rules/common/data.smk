# Inputs and parameters of the rules that scripts/step.py makes.

from escala.data import kind_of
from escala.data.genomes import letters_kept
from escala.data.paths import expand_path, require_past
from escala.predict import LENGTH_ERRORS
from escala.workflow import steps

#: The call of `scripts.step`. Its arguments are files, because JSON may be long or private. For
#: descriptors 8 and 9 see `escala.core.console`.
STEP = """
        python -m scripts.step @/dev/fd/3 @/dev/fd/4 \\
            3<<<{params.job:q} 4<<<{params.files:q} 9>&2 2>&1 |
            tee -i {log:q} 8>/dev/null >&${{ESCALA_BRIEF:-1}}
        """


def files(wildcards, input, output):
    """Return the files of a job by name, as JSON."""
    return json.dumps(
        {
            key: {
                name: file if isinstance(file, str) else [*file] for name, file in by_name.items()
            }
            for key, by_name in (("input", input), ("output", output))
        }
    )


def job(rule, settings=lambda wildcards: {}):
    """Return a function of wildcards that returns a job as JSON, without files.

    Snakemake makes the outputs again if this text changes.
    """

    def text(wildcards):
        values = settings(wildcards)
        return json.dumps({"rule": rule, "code": steps.code_of(rule, values)} | values)

    return text


def settings_of(settings, *names):
    return {name: settings[name] for name in names}


def genomes(wildcards):
    """Return the settings of a dataset of genomes; refuse one of another kind."""
    settings = dataset(wildcards)
    if settings["kind"] != "genomes":
        raise WorkflowError(
            f"datasets.{wildcards.dataset}: the kind {settings['kind']} has no such file"
        )
    return settings


def require_past_files(wildcards, files):
    """Return the paths of a user's files; refuse one that is dated in the future."""
    try:
        require_past(f"datasets.{wildcards.dataset}", files)
    except InputError as error:
        refuse(error)
    return files


def source_files(wildcards):
    return require_past_files(wildcards, settings_result(wildcards, "inputs"))


def extraction_files(wildcards):
    """Return the files to compute the features of a dataset's pictures from, by name."""
    extraction = settings_result(wildcards, "extraction")
    if not extraction:
        raise WorkflowError(f"datasets.{wildcards.dataset} has no pictures to compute features of")
    require_past_files(wildcards, extraction.values())
    return {"source": f"{DATA}/source"} | {key: str(path) for key, path in extraction.items()}


def preparation_inputs(wildcards):
    """Return the files that a dataset's arrays are made from, by name."""
    files = settings_result(wildcards, "preparation_inputs", Path(DATA.format(**wildcards)))
    require_past_files(wildcards, files.values())
    return {name: str(path) for name, path in files.items()}


def familiarity_of(wildcards):
    """Return the familiarity of a run's training rows, if the kind of the data has it."""
    run, e = run_of(wildcards), experiment(wildcards)
    if not kind_of(dataset(wildcards)).has("familiarity"):
        return []
    return f"{e.split_of_repeat(run.dataset, run.repeat)}/familiarity.npz"


def length_errors_of(wildcards):
    """Return the file on a run's errors by length, if the kind of the data cuts fragments."""
    if not kind_of(dataset(wildcards)).has("fragments"):
        return []
    return f"{CONFIGURATION}/{{repeat}}/{LENGTH_ERRORS}".format(**wildcards)


def prediction_settings(wildcards, *names, part="arrays"):
    """Return settings of a prediction; refuse a program, and a kind that offers no predictions."""
    if experiment(wildcards).settings.knows[wildcards.workload].is_program:
        refuse(f"{wildcards.workload} is a program: it keeps no model to classify with")
    kind = kind_with(wildcards, part)
    if not hasattr(kind_of(dataset(wildcards)).load("arrays"), "queries"):
        refuse(f"datasets.{wildcards.dataset}: the kind {kind} offers no predictions")
    settings = settings_of(experiment(wildcards).settings["predict"], *names)
    return {"kind": kind, "workload": wildcards.workload} | settings


def query_file(wildcards):
    """Return the file to classify."""
    inputs = experiment(wildcards).settings["predict"]["inputs"]
    if wildcards.query not in inputs:
        raise WorkflowError(
            f"{experiment(wildcards).origin}: predict.inputs names no {wildcards.query}; "
            f"add it with the path of its file"
        )
    where = f"predict.inputs.{wildcards.query}"
    try:
        path = expand_path(inputs[wildcards.query], where)
        require_past(where, [path])
        if {"{", "}"} & set(path):
            remedy = "rename it, or name a link to it"
            raise InputError(where, path, "Snakemake takes { and } for wildcards", remedy)
        return path
    except InputError as error:
        refuse(str(error))
