"""Start the processes of a run on their nodes."""
