"""Make the output of a rule: `python -m scripts.step JOB FILES`.

JOB and FILES are JSON, or `@` and the name of a JSON file. A job is the name of the `rule` and
settings. FILES are the files of the rule's `input` and `output`, by name
(`escala/workflow/steps.py`).
"""

from __future__ import annotations

from escala import cli
from escala.core import console
from escala.core.arguments import Parser
from escala.workflow import steps


def main() -> None:
    console.join_call()
    parser = Parser(description=__doc__, prog="step")
    parser.add_argument("job", type=cli.json_or_file)
    parser.add_argument("files", type=cli.json_or_file)
    arguments = parser.parse_args()
    steps.make(arguments.job, arguments.files)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
