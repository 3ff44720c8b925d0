"""Check what a machine can run, or a user's workload: each part with yes or no, and a remedy.

A check is one function. For a yes it returns a detail, such as a version. For a no it raises an
error with the reason: `Unavailable` or `InputError` for a machine, `Refused` for a workload.

| module | what it checks |
|---|---|
| `machine`, `job` | a machine; a node inside a job of SLURM |
| `workload`, `rows` | a workload, by short runs; the rows of these runs |
| `network` | the network of a workload, in the Python of its engine |
"""
