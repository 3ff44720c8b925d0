"""Print the completion of this command for a shell."""

from __future__ import annotations

import argparse

import argcomplete

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """\
examples, for this shell or for its start-up file:
  eval "$(escala completion bash)"
  autoload -U compinit && compinit && eval "$(escala completion zsh)"
  escala completion fish | source
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> None:
    print(argcomplete.shellcode(["escala"], shell=arguments.shell))
