"""The SLURM job that a call of Snakemake is inside."""

from __future__ import annotations

from collections.abc import Iterable

from escala.experiment import Run
from escala.measure import allocated
from escala.runtime import allocation
from escala.workflow.internals import Workflow


class Allocated(allocated.Allocated):
    """The job that a call is inside, if any; one that submits jobs measures in those."""

    def __init__(self, workflow: Workflow):
        # The jobs that a call submits are jobs of their own. The executor removes the variable.
        super().__init__(allocation.number() if workflow.is_main_process else None)
        self._workflow = workflow

    @property
    def names(self) -> list[str]:
        """The nodes that are given to the runs; empty if they use this machine."""
        return super().names if self._workflow.local_exec else []

    def require(self, runs: Iterable[Run]) -> None:
        """Refuse runs that cannot be measured in this job, or from there."""
        if self._number and not self._workflow.local_exec:
            raise allocation.refuse_submission(self._number)
        super().require(runs)
