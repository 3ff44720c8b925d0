"""Train a network by a plain loop of PyTorch, and by DistributedDataParallel if it has company.

It begins with the weights that the engines have with `initial_weights: seeded`, takes the same rows
in each step, and has the same optimizer.
"""

import torch
import torch.distributed as dist
from escala_steps import begin, epoch, step
from own_way import RANK, RANKS, Problem, arguments
from torch.nn.parallel import DistributedDataParallel

from escala.engines.torch import arrays
from escala.workloads.models import given as form_of


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.cores)
    torch.set_num_interop_threads(1)
    problem = Problem(given, "torch")
    model = problem.work.build(*problem.form)
    arrays.begin(model, given.seed)
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = problem.work.optimizer(parameters, problem.settings, given.rate, problem.knobs)
    called = model
    if RANKS > 1:
        dist.init_process_group("gloo")
        called = DistributedDataParallel(model)
    inputs = [torch.from_numpy(each) for each in problem.inputs]
    targets = torch.from_numpy(problem.targets)
    for number in range(1, given.epochs + 1):
        losses = []
        begin()
        # As Escala's ranks, each takes one of the contiguous parts of a step.
        for step_rows in torch.from_numpy(problem.order(number)).split(given.rows):
            rows = step_rows.tensor_split(RANKS)[RANK]
            optimizer.zero_grad()
            outputs = called(form_of([each[rows] for each in inputs]))
            loss = problem.work.row_losses(targets[rows], outputs, problem.settings).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step(rows=len(rows))
        epoch(loss=sum(losses) / len(losses))
    if RANKS > 1:
        # Before the group: a model that has its last reference may wait for ever (pytorch#56297).
        del called
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
