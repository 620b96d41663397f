"""Train a tiny Llama with FSDP2 on the CPU, one process a rank, and save a distributed checkpoint of every layout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 37  # odd: the shards of the ranks are uneven


def run(rank: int, ranks: int, folder: str, tied: bool, tensor_parallel: int) -> None:
    """Train two steps on one rank, save, and let rank 0 save what the whole model is."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["RANKS_PORT"]}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            tie_word_embeddings=tied, architectures=["LlamaForCausalLM"],
        )
    )  # fmt: skip
    mesh = init_device_mesh("cpu", (ranks // tensor_parallel, tensor_parallel), mesh_dim_names=("data", "tensor"))
    if tensor_parallel > 1:
        for layer in model.model.layers:
            plan = {
                "mlp.up_proj": ColwiseParallel(),
                "mlp.gate_proj": ColwiseParallel(),
                "mlp.down_proj": RowwiseParallel(),
            }
            parallelize_module(layer, mesh["tensor"], plan)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.arange(10)[None] + rank // tensor_parallel  # tensor parallel ranks see the same batch
    for _ in range(2):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"app": {"model": weights, "optim": state}, "step": torch.tensor(2)}, checkpoint_id=f"{folder}/dcp")
    if tied:  # safetensors refuses two names of one storage
        del weights["lm_head.weight"]
    dcp.save(weights, storage_writer=HuggingFaceStorageWriter(f"{folder}/hf", save_distributed=True))
    whole = get_model_state_dict(model, options=dcp.state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(whole, f"{folder}/whole.pt")
        for name in ("dcp/huggingface", "hf"):
            model.config.save_pretrained(f"{folder}/{name}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, folder, tied, tensor_parallel = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "tied", int(sys.argv[4])
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.spawn(run, (ranks, folder, tied, tensor_parallel), nprocs=ranks)
