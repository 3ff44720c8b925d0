"""Record the steps of a process for a probe. A module here has the name of its probe.

It has a function `recorder(probe, process, variables, inside)`, which returns an
`escala.probes.Recorder`: `variables` are the trained ones, and `inside` is whether moments inside
the step can be read. Where they can, its `step` returns the step to compile.
"""
