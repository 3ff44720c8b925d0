"""Start the processes of a run on their nodes: layout, placement, launchers, SLURM."""
