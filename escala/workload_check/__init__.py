"""Check a user's workload, in its folder, against the contract of `escala.workloads`.

Each check is one function. It returns what it found, or raises `Refused` with the reason and the
remedy. An error in the workload's own code is an answer too, with its file and line.
"""
