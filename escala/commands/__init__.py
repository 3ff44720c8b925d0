"""The subcommands of `escala`, one module each; `flow` is what some of them share.

`add(parser)` adds the options, and `run(arguments)` does the work. The docstring of a module is its
description in the help, and `EXAMPLES` ends the help. `run` returns an exit code, or None for 0, or
the words of a call of Snakemake. That call then replaces the process.
"""
