"""Check what a machine can run, or a user's workload: each part with yes or no, and a remedy.

A check is one function. It returns what it found, or raises with the reason: of a machine
`Unavailable` or an `InputError` (`machine`, `job`), of a workload `Refused` (`workload`).
"""
