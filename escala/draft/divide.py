"""Propose lines by which a script of one process divides its rows over several processes.

The lines use the names of variables in the script. The script is not changed: each line is
proposed with the number of the line of the script at which it goes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from escala.draft.command import read_imports

#: Packages that start processes and divide rows themselves.
_DIVIDING = ("horovod", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "mpi4py")


@dataclass(frozen=True)
class Line:
    """A line for a script.

    Attributes
    ----------
    after : the number of the line of the script after which it goes, or whose place it takes.
    text : the line, with its indentation.
    replaces : whether it takes the place of the line.
    """

    after: int
    text: str
    replaces: bool = False


def insert(lines: Sequence[Line], source: str) -> str:
    """Return the text of a script with lines in their places."""
    texts = source.splitlines()
    for line in reversed(lines):
        texts[line.after - line.replaces : line.after] = [line.text]
    return "\n".join(texts) + "\n"


def propose(file: Path) -> tuple[str, list[Line]] | None:
    """Return the option for a divided script, and the lines that divide it.

    None: it cannot be read, its framework or its steps are not recognised, or a statement that gets
    a line beside it shares its own with another one.
    """
    frameworks = (
        ("torch", "--torch", _torch),
        ("jax", "--jax", _jax),
        ("tensorflow", "--tf-config", _tensorflow),
    )
    with suppress(SyntaxError, ValueError, OSError):
        source = file.read_text(encoding="utf-8")
        script = _Script(ast.parse(source), source.splitlines())
        if any(map(script.import_line, _DIVIDING)):
            return None
        for framework, option, divide in frameworks:
            if script.import_line(framework) and (lines := list(divide(script))):
                return option, sorted(lines, key=lambda line: line.after)
    return None


def describe(file: Path) -> str | None:
    """Return in words how a script is divided, None if `propose` proposes nothing."""
    if not (proposed := propose(file)):
        return None
    option, lines = proposed
    places = (f"{'in place of' if line.replaces else 'after'} line {line.after}" for line in lines)
    rows = [f"  {place + ':':<21}{line.text}" for place, line in zip(places, lines, strict=True)]
    first = (
        f"{file.name} trains in one process. These {len(lines)} lines divide the rows of each step "
        f"over several; then write escala try {option} -- …"
    )
    return "\n".join([first, *rows])


def _is_guard(node: ast.AST) -> bool:
    """Return whether a node is `if __name__ == "__main__"`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


class _Script:
    """The tree of a script, and where its statements stand."""

    def __init__(self, tree: ast.Module, lines: list[str]):
        self.tree, self._lines = tree, lines
        # Of each statement: the statements of its block, and the node that holds the block.
        self.blocks: dict[ast.stmt, tuple[list[ast.stmt], ast.AST]] = {}
        for node in ast.walk(tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                for statement in block if isinstance(block, list) else ():
                    self.blocks[statement] = block, node

    def import_line(self, package: str) -> int | None:
        """Return the last line of the first statement that imports a package, None without one."""
        for statement in self.tree.body:
            if any(name.partition(".")[0] == package for _, name in read_imports(statement)):
                return statement.end_lineno
        return None

    def first_after(self, line: int, is_guarded: bool) -> ast.stmt | None:
        """Return the first statement of the script after a line that is no definition.

        If it is guarded, that is one of what a guard of `__main__` holds, if there is one.
        """
        defines = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
        made = [s for s in self.tree.body if s.lineno > line and not isinstance(s, defines)]
        guards = [statement.body[0] for statement in made if _is_guard(statement)]
        return next(iter((guards if is_guarded else []) or made), None)

    def enclosing_block(self, statement: ast.stmt) -> tuple[list[ast.stmt], ast.stmt]:
        """Return the block of the function, or of the script, that a statement belongs to.

        Returns
        -------
        The block, and the statement of it that holds the one given.
        """
        block, holder = self.blocks[statement]
        if _is_guard(holder) or isinstance(
            holder, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            return block, statement
        return self.enclosing_block(holder)

    def after(self, statement: ast.stmt, text: str) -> Line:
        return Line(statement.end_lineno, self.indent(statement) + text)

    def before(self, statement: ast.stmt, text: str) -> Line:
        return Line(statement.lineno - 1, self.indent(statement) + text)

    def end(self, block: list[ast.stmt], text: str) -> Line:
        """Return a line for the end of a block: before what it returns."""
        place = self.before if isinstance(block[-1], ast.Return) else self.after
        return place(block[-1], text)

    def indent(self, statement: ast.stmt) -> str:
        """Return the spaces before a statement, which has its lines for itself.

        Raises
        ------
        ValueError : another statement shares a line.
        """
        before = self._lines[statement.lineno - 1].encode()[: statement.col_offset].decode()
        after = self._lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
        if before.strip() or after.partition("#")[0].strip(" ;"):
            raise ValueError(f"line {statement.lineno} has several statements")
        return before

    def calls(self) -> Iterator[tuple[ast.stmt, str, ast.Call]]:
        """Yield each call whose result gets a name: its statement, the name, and the call."""
        for node in ast.walk(self.tree):
            is_call = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            if is_call and isinstance(node.targets[0], ast.Name):
                yield node, node.targets[0].id, node.value


def _called(call: ast.Call) -> str:
    """Return the last name of what a call calls."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _torch(script: _Script) -> Iterator[Line]:
    """Yield the lines that make a script of PyTorch train by DistributedDataParallel."""
    optimizers = {
        node.func.value.id: statement
        for statement, _, call in script.calls()
        for node in ast.walk(call)
        if isinstance(node, ast.Call)
        and _called(node) == "parameters"
        and isinstance(getattr(node.func, "value", None), ast.Name)
        and node.func.value.id != "self"
    }
    if not optimizers:
        return
    block, with_optimizer = script.enclosing_block(next(iter(optimizers.values())))
    loaders = [
        (statement, name, call)
        for statement, name, call in script.calls()
        if _called(call) == "DataLoader"
    ]
    loaders.sort(key=lambda loader: "train" not in loader[1])
    imported = script.import_line("torch")
    # A device may come from an option, and be a GPU then.
    may_use_gpu = bool(re.search("cuda|device|accelerat", ast.unparse(script.tree)))
    yield Line(imported, f"import {'os, ' * may_use_gpu}torch, torch.distributed as dist")
    places = [
        position
        for position, statement in enumerate(block)
        for node in ast.walk(statement)
        if node in optimizers.values()
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in optimizers)
        or any(node is loader for loader, _, _ in loaders)
    ]
    first = block[min(places)]
    blocks = [script.enclosing_block(loader)[0] for loader, *_ in loaders]
    if any(each is not block for each in blocks):
        is_guarded = all(each is not script.tree.body for each in blocks)
        first = script.first_after(imported, is_guarded) or first
    backend = '"nccl" if torch.cuda.is_available() else "gloo"' if may_use_gpu else '"gloo"'
    yield script.before(first, f"dist.init_process_group({backend})")
    if may_use_gpu:
        device = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
        yield script.before(first, f"if torch.cuda.is_available(): {device}")
    for model, optimizer in optimizers.items():
        text = f"{model} = torch.nn.parallel.DistributedDataParallel({model})"
        yield script.after(script.enclosing_block(optimizer)[1], text)
    if loaders:
        loader, name, _ = loaders[0]
        yield script.after(
            loader,
            f"{name} = torch.utils.data.DataLoader({name}.dataset, "
            f"max(1, {name}.batch_size // dist.get_world_size()), "
            f"sampler=torch.utils.data.DistributedSampler({name}.dataset, shuffle=isinstance("
            f"{name}.sampler, torch.utils.data.RandomSampler)), num_workers={name}.num_workers, "
            f"collate_fn={name}.collate_fn, drop_last={name}.drop_last)",
        )
        loops = [
            node
            for node in ast.walk(script.tree)
            if isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and "range(" in ast.unparse(node.iter)
            and node.body[0].lineno > node.lineno
            and any(getattr(inner, "id", None) == name for inner in ast.walk(node))
        ]
        for loop in loops[:1]:
            yield script.before(loop.body[0], f"{name}.sampler.set_epoch({loop.target.id})")
    else:
        yield script.after(
            with_optimizer, "torch.manual_seed(1000 + dist.get_rank())  # its own rows"
        )
    for statement in script.blocks:
        text = ast.unparse(statement)
        if text.startswith("torch.save(") and statement.lineno == statement.end_lineno:
            for model in optimizers:
                text = text.replace(f"{model}.state_dict(", f"{model}.module.state_dict(")
            text = f"{script.indent(statement)}if dist.get_rank() == 0: {text}"
            yield Line(statement.lineno, text, replaces=True)
    # A rank that is gone may end another one that still leaves the group.
    yield script.end(block, "dist.barrier(); dist.destroy_process_group()")


def _tensorflow(script: _Script) -> Iterator[Line]:
    """Yield the lines that make a script of Keras or TensorFlow train by `tf.distribute`."""
    if not any(_called(n) == "fit" for n in ast.walk(script.tree) if isinstance(n, ast.Call)):
        return
    after = script.import_line("tensorflow")
    yield Line(after, "import tensorflow as tf")
    strategy = "tf.distribute.MultiWorkerMirroredStrategy()"
    yield Line(after, f"tf.distribute.experimental_set_strategy({strategy})")


def _jax(script: _Script) -> Iterator[Line]:
    """Yield the lines that divide the rows of each step of JAX over all processes.

    A step is a call in a loop that gets what it returns: `state, loss = step(state, x, y)`.
    """
    for loop in (node for node in ast.walk(script.tree) if isinstance(node, ast.For)):
        varied = _names_assigned(loop)
        for statement in loop.body:
            if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
                continue
            given = [a.id for a in statement.value.args if isinstance(a, ast.Name)]
            state = [name for name in given if name in _names_assigned(statement)]
            rows = [name for name in given if name in varied and name not in state]
            if state and rows:
                yield from _divide_step(script, statement, state, rows)
                return


def _names_assigned(within: ast.AST) -> set[str]:
    nodes = ast.walk(within)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _divide_step(
    script: _Script, step: ast.stmt, state: list[str], rows: list[str]
) -> Iterator[Line]:
    """Yield the lines by which each process takes some of the rows that a step of JAX gets."""
    _, first = script.enclosing_block(step)
    after = script.import_line("jax")
    yield Line(after, "import jax")
    yield Line(after, "jax.distributed.initialize()")
    yield script.before(first, 'mesh = jax.make_mesh((jax.device_count(),), ("rows",))')
    for name, axes in (("whole", ""), ("divided", '"rows"')):
        sharding = f"jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec({axes}))"
        yield script.before(first, f"{name} = {sharding}")
    states, parts = (f"{', '.join(names)}," for names in (state, rows))
    yield script.before(first, f"{states} = jax.device_put(({states}), whole)")
    part = "rows[jax.process_index()::jax.process_count()]"
    place = f"lambda rows: jax.make_array_from_process_local_data(divided, {part})"
    yield script.before(step, f"{parts} = map({place}, ({parts}))")
