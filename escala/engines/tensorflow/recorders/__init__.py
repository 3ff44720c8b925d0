"""Record the steps of a process for a probe. A module here has the name of its probe.

It has a function `recorder(probe, plan, process, variables, inside, independent)`, which returns an
`escala.probes.Recorder`:

`variables`
    the trained variables;
`inside`
    whether moments inside the step can be read;
`independent`
    whether a rank can compute its gradients without the other ranks. It cannot if a layer
    normalises over the rows of all ranks.
"""
