"""The plan of a run, which all of its ranks read from one file."""

from __future__ import annotations

from typing import Any, TypedDict


class Plan(TypedDict, total=False):
    """What `escala.record.plan.make_plan` derives from a request, and what each start adds."""

    strategy: str
    workload: str
    #: The engine that makes the steps; None for a fit and a program.
    engine: str | None
    #: The settings of the workload, and all knobs of the run.
    training: dict[str, Any]
    knobs: dict[str, Any]
    ranks: int
    #: The folder of the split, the number of its training rows, and their number in each class
    #: before oversampling.
    data: str
    train_rows: int
    #: The training rows of the split, if weak scaling takes only `train_rows` of them.
    split_rows: int
    train_counts: list[int] | None
    #: The side of the split that is evaluated after each epoch, if any.
    validated_on: str | None
    epochs: int
    #: Rows of a step, all ranks together; and these, or all training rows if they are fewer.
    global_batch: int
    step_rows: int | None
    learning_rate: float | None
    #: Whether the loss of a step is the mean over its `rows`, or the mean of the means of its
    #: `ranks`.
    weighting: str
    #: The seed of the initial weights and of the shuffles; None for a fit.
    seed: int | None
    #: Steps after which an epoch ends early; None for whole epochs.
    max_steps: int | None
    #: The probe that instruments the run, and its settings; None for a timing run.
    instrument: str | None
    probe_settings: dict[str, Any] | None
    #: Only for a program: its description, the paths of its data, and the network interface.
    start: dict[str, Any]
    #: The epoch after which the run resumes, 0 for a new run, and the digest that its checkpoints
    #: carry.
    resume_after: int
    digest: str
    #: Node, host, cores and ports of each process (`escala.runtime.placement`).
    places: list[dict[str, Any]]
    #: The process that started the run.
    supervisor: dict[str, Any]
