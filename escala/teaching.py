"""What the help of the command `escala` teaches: its subcommands, each with examples."""

from __future__ import annotations

from escala.core import console

#: Subcommands that are modules of `scripts/`, with one sentence on each.
SCRIPTS = {
    "try": "measure your own training script: do more processes, or more threads, pay?",
    "submit": "measure an experiment in one job of SLURM: write its script, or submit it",
    "advise": "recommend a layout for a goal, from measurements and predictions",
    "lab": "run a SLURM cluster on this machine, with links of a selected rate",
    "history": "keep measurements of many sessions and machines, and query them",
    "measure": "measure what is left of a plan, which escala run writes, without Snakemake",
    "retry": "remove the failed runs of results/NAME, so that the next call repeats them",
    "store": "show, check or clean what is stored",
    "check": "show what this machine can run",
    "install": "make the environment of an engine before its use, or compile operations in C++",
    "new": "write the file of an experiment, from a few questions or from options",
}
TEACHING = f"""\
the most common things:
  escala try -- python train.py          your own script: do more processes or threads pay?
  escala run                             the default experiment: does a second process pay here?
  escala submit experiments/NAME.yaml    a cluster: all its runs in one job
  escala check                           what this machine can run
  escala new                             write an experiment on your own data
  escala run -e experiments/NAME.yaml -n show what would run, and how long
  escala run -e experiments/NAME.yaml    run it, and write results/NAME/index.html

Arguments after -- go to Snakemake as they are: escala run -- --forcerun measure
docs/how-to/command.md describes every subcommand and its Snakemake call.

exit codes:
{chr(10).join(console.exit_code_lines())}
"""
#: Examples of single subcommands.
EXAMPLES = {
    "run": """\
examples:
  escala run                                        the default experiment
  escala run -e experiments/virus/ladder.yaml -n    what would run, and how long
  escala run results/demo/runs/demo-1000/virus-cnn/single/1x1/tuned/native/rep1/run.json
  escala run --profile profiles/slurm               the runs are measured in a job of SLURM
  escala run -- --forcerun measure                    arguments after -- are for Snakemake
""",
    "report": """\
examples:
  escala report                                     results/demo/report.html
  escala report -e experiments/virus/ladder.yaml    the report of another one, after its runs
""",
    "study": """\
examples:
  escala study -e experiments/scaling/study-cores.yaml     results/study-cores/study.html
  escala study -e FILE --profile profiles/slurm            on a cluster
  escala study -e FILE --doublings    join what escala submit FILE --one-per-doubling measured
The experiment has the key `scaling`; docs/how-to/study.md describes it.
""",
    "predict": """\
examples:
  escala predict                                    the times of all configurations
  escala predict -e experiments/virus/scaling.yaml  the times of another experiment
  escala predict --run results/fragments/runs/tiles-1000/kmer-logreg reads.fasta
                                                    classify reads.fasta with the trained run there

RUN is a run.json, its folder, or a folder that holds one trained run. Nothing is trained. The last
lines name the table of each FILE: results/EXPERIMENT/predictions/CONFIGURATION/repN/FILE.tsv.
""",
    "completion": """\
examples, for this shell or for its start-up file:
  eval "$(escala completion bash)"
  autoload -U compinit && compinit && eval "$(escala completion zsh)"
  escala completion fish | source
""",
}
