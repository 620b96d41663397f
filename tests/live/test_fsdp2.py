"""Models that FSDP2 shards over two processes: identities and local shards, and no collective call."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import torch

pytestmark = pytest.mark.slow
HEAD = "lm_head.weight"


def sharded(tied: bool, shift: float | None = None) -> Any:
    """A tiny Llama, its layers and itself sharded; with ``shift`` the head is a parameter of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from tests.live import planted

    model = planted.llama(tied=tied)
    if shift is not None:
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone() + shift)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def states(model: Any) -> dict[str, str]:
    """The state of each tied name, with the reason."""
    import tieconv

    (tie,) = tieconv.inspect(model).ties
    return {member.name: f"{member.state} {member.relation.to_dict()}" for member in tie.members}


def on_rank_0(out: Path) -> None:
    """Every check of one process while the other one waits: a gather would never return."""
    import tieconv

    with torch.no_grad():
        assert "aliased" in states(MODELS["tied"])[HEAD]
        assert "local shards are equal" in states(MODELS["equal"])[HEAD]
        assert "local shards differ" in states(MODELS["different"])[HEAD]
    assert [finding.rule for finding in tieconv.inspect(MODELS["different"]).findings] == ["TIE001"]
    shape = tieconv.inspect(MODELS["tied"]).head.input_embedding.shape
    assert shape == (99, 64), "the whole matrix, not the shard"


def callback_faults(model: Any, out: Path, rank: int, fault: bool) -> list[str]:
    """The messages of the callback around a training step and a save of gathered tensors."""
    import warnings

    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    from tieconv.integrations.transformers import TieCallback

    class State:
        is_world_process_zero = rank == 0
        global_step = 1

    class Arguments:
        output_dir = str(out)

    callback = TieCallback()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        callback.on_train_begin(Arguments, State, None, model=model)  # type: ignore[arg-type]
        model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        if fault:
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        folder = out / "checkpoint-1"
        if rank == 0:
            folder.mkdir(parents=True)
            model.config.save_pretrained(folder)
            dropped = (HEAD,) if not fault and model.config.tie_word_embeddings else ()
            kept = {name: value.contiguous().clone() for name, value in state.items() if name not in dropped}
            save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        callback.on_save(Arguments, State, None)  # type: ignore[arg-type]
        callback.on_train_end(Arguments, State, None)  # type: ignore[arg-type]
    return [str(entry.message) for entry in caught if "tie" in type(entry.message).__name__.lower()]


MODELS: dict[str, Any] = {}


def process(rank: int, port: int, out: str) -> None:
    """One of the two processes."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    MODELS.update(tied=sharded(True), equal=sharded(True, 0.0), different=sharded(True, 1.0), untied=sharded(False))
    if rank == 0:
        on_rank_0(Path(out))
    dist.barrier()
    assert callback_faults(MODELS["tied"], Path(out, "tied"), rank, False) == []
    assert callback_faults(MODELS["untied"], Path(out, "untied"), rank, False) == []
    lost = callback_faults(sharded(True), Path(out, "lost"), rank, True)
    equal = callback_faults(MODELS["equal"], Path(out, "equal"), rank, True)
    dist.destroy_process_group()
    if rank:
        assert lost == equal == []
        return
    assert any("were one parameter" in message for message in lost), lost
    assert any("checkpoint-1" in message and "TIE002" in message for message in lost), lost
    assert any("are 2 parameters, but the config says tied. tieconv did not read" in entry for entry in equal), equal


def test_two_processes(tmp_path: Path) -> None:
    """Rank 0 reports the planted faults, rank 1 nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(process, args=(port, str(tmp_path)), nprocs=2)
