"""The subcommands of `escala`, a module each: `add(parser)` adds its options, `run` takes them.

The docstring of a module is its description in the help, and `EXAMPLES` the end of this. `run`
returns an exit code, None for 0, or the call of Snakemake that is to take the place of the process.
"""
