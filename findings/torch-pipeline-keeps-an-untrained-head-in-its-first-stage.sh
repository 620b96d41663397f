#!/usr/bin/env bash
# torch 2.13.0: `pipeline` makes three matrices of a tied one, and the first stage keeps an untrained head.
#
# `torch.distributed.pipelining.pipeline` cuts a model into stages for several processes. Here the lookup is in the
# first stage, and the tied head is in the last. Each gets a matrix. They start equal, and each is trained with its own
# part of the gradient. `Pipe.replicated_params` lists them. A comment there asks for an additional allreduce, and no
# code of the package does one. The first stage also has a third matrix, under the head's name. Nothing reads it, and it
# gets no gradient. So the states of the stages hold two matrices of one name. The one in the first stage is untrained.
# Whoever joins them with the first stage last gets the untrained head. `torch.distributed.checkpoint` takes the two for
# replicas and stores one. By default this is the trained one here. With the planner's option dedup_save_to_lowest_rank
# it is the untrained one. Nothing is raised or warned. An untied model has each name once. The documentation says that
# a stage gets the parameters that it needs, and that checkpointing can use the names. It does not mention tied
# parameters. Issue 51931 of pytorch, open, asks for ties in an older class for pipelines. Seen with torch 2.13.0, two
# processes and GPipe. The losses are those of the joined matrices, and change a little between machines:
#   untied, first stage: embed.weight one.weight one.bias; without a gradient: none
#   tied, first stage: embed.weight one.weight one.bias head.weight; without a gradient: head.weight
#   tied, last stage: two.weight two.bias head.weight; without a gradient: none
#   embedding equals the trained head False, unread head as at the start True
#   loss in one process 0.84; stages joined in order 0.84; first stage last 1.14
#   checkpoint 0.84; checkpoint with dedup_save_to_lowest_rank 1.14
# So reduce the two gradients, and drop the head's name from the state of the first stage.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy 2>/dev/null
cat > "$work/stages.py" <<'PY'
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

work = sys.argv[1]
generator = torch.Generator().manual_seed(1)
ids, labels = (torch.randint(0, 40, (8, 6), generator=generator) for _ in range(2))


class Model(nn.Module):
    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.one, self.two = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight if tied else nn.Parameter(self.embed.weight.data.clone())

    def forward(self, tokens):
        return self.head(torch.tanh(self.two(torch.tanh(self.one(self.embed(tokens))))))


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train(rank, tied):
    """Train one stage, and store its state and the names of its parameters without a gradient."""
    title = "tied" if tied else "untied"
    dist.init_process_group("gloo", init_method=f"file://{work}/{title}", rank=rank, world_size=2)
    pipe = pipeline(Model(tied), mb_args=(ids[:4],), split_spec={"two": SplitPoint.BEGINNING})
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        schedule.step(*([] if rank else [ids]), **({"target": labels} if rank else {}))
        optimizer.step()
    state = stage.submod.state_dict()
    unused = [name for name, parameter in stage.submod.named_parameters() if parameter.grad is None]
    torch.save((state, unused), f"{work}/{title}-{rank}.pt")
    if tied:
        for lowest in (False, True):
            planner = dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=lowest)
            dcp.save(state, checkpoint_id=f"{work}/checkpoint-{lowest}", planner=planner)
    dist.destroy_process_group()


def joined(*states):
    model = Model(tied=False)
    model.load_state_dict({name: value for state in states for name, value in state.items()})
    return loss(model(ids), labels).item()


if __name__ == "__main__":
    for tied in (False, True):
        torch.multiprocessing.spawn(train, (tied,), nprocs=2)
    (plain, none), (first, unused), (last, used) = (
        torch.load(f"{work}/{name}.pt") for name in ("untied-0", "tied-0", "tied-1")
    )
    stages = {"untied, first": (plain, none), "tied, first": (first, unused), "tied, last": (last, used)}
    for title, (state, names) in stages.items():
        print(f"{title} stage: {' '.join(state)}; without a gradient: {' '.join(names) or 'none'}")
    equal = first["embed.weight"].equal(last["head.weight"])
    start = first["head.weight"].equal(Model(tied=True).head.weight)
    print(f"embedding equals the trained head {equal}, unread head as at the start {start}")
    model = Model(tied=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        loss(model(ids), labels).backward()
        optimizer.step()
    alone, order, reverse = loss(model(ids), labels).item(), joined(first, last), joined(last, first)
    print(f"loss in one process {alone:.2f}; stages joined in order {order:.2f}; first stage last {reverse:.2f}")
    figures = []
    for lowest in (False, True):
        dcp_to_torch_save(f"{work}/checkpoint-{lowest}", f"{work}/joined.pt")
        figures.append(joined(torch.load(f"{work}/joined.pt")))
    print("checkpoint {:.2f}; checkpoint with dedup_save_to_lowest_rank {:.2f}".format(*figures))
    names = "head.weight" not in plain and not none and unused == ["head.weight"] and not used
    losses = abs(figures[0] - order) < 1e-3 and abs(figures[1] - reverse) < 1e-3 and reverse > order + 0.1
    sys.exit(not (names and losses and start and not equal))
PY
"$work/venv/bin/python" "$work/stages.py" "$work" 2>/dev/null
