"""DCP, HuggingFaceStorageWriter, the checkpoint of a training loop, and Lightning."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
import transformers
from torch.distributed import checkpoint as dcp

from fixtures import zoo
from tests.writers.program import Case, Facts, facts, last_logits, serve

KINDS = ("LlamaForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "OPTForCausalLM")


def build(kind: str, tied: bool) -> Any:
    return zoo.build(kind, tie=tied)


def told(model: Any, folder: Path) -> Facts:
    model.config.save_pretrained(folder)
    return {"tied": facts(model, folder)["tied"]}


def dcp_save(kind: str, tied: bool, folder: Path) -> Facts:
    model = build(kind, tied)
    dcp.save(model.state_dict(), checkpoint_id=str(folder), no_dist=True)
    return told(model, folder)


def dcp_async(kind: str, tied: bool, folder: Path) -> Facts:
    """`async_save` needs a process group."""
    model = build(kind, tied)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        dcp.async_save(model.state_dict(), checkpoint_id=str(folder)).result()
    finally:
        torch.distributed.destroy_process_group()
    return told(model, folder)


def hub_writer(kind: str, tied: bool, folder: Path) -> Facts:
    """DCP's writer of safetensors, which torchtitan and torchtune use."""
    model = build(kind, tied)
    state = model.state_dict()
    if tied:
        state.pop("lm_head.weight")
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path=str(folder)), no_dist=True)
    for path in folder.rglob("*.safetensors"):
        path.rename(folder / path.name)
    return told(model, folder)


def trainer_state(kind: str, tied: bool, folder: Path) -> Facts:
    """A dictionary with the model, the optimiser and the step."""
    model = build(kind, tied)
    optimiser = torch.optim.AdamW(model.parameters())
    torch.save({"model": model.state_dict(), "optimizer": optimiser.state_dict(), "step": 3}, folder / "checkpoint.pt")
    return {"tied": model.lm_head.weight is model.get_input_embeddings().weight} if hasattr(model, "lm_head") else {}


class Module(lightning.LightningModule):
    """A trainer's module around a model."""

    def __init__(self, kind: str, tied: bool) -> None:
        super().__init__()
        self.model = build(kind, tied)

    def training_step(self, batch: Any) -> Any:
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def lightning_save(kind: str, tied: bool, folder: Path) -> Facts:
    module = Module(kind, tied)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(torch.randint(0, 90, (2, 6)), batch_size=2))
    trainer.save_checkpoint(folder / "last.ckpt")
    return {}


def read_folder(kind: str, folder: Path) -> Any:
    """Read with DCP if it wrote the folder, else with transformers."""
    if not (folder / ".metadata").exists():
        return last_logits(getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32))
    model = getattr(transformers, kind)(transformers.AutoConfig.from_pretrained(folder))
    state = model.state_dict()
    dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    model.load_state_dict(state)
    return last_logits(model)


def read_state(kind: str, tied: bool, key: str, start: str, file: Path) -> Any:
    """Load the state dict of a file, as it is or as tieconv wrote it, into the class."""
    model = build(kind, tied)
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        state: Any = load_file(file)
    else:
        state = torch.load(file, weights_only=False)
        state = state.get(key, state)
    missing, unexpected = model.load_state_dict({k.removeprefix(start): v for k, v in state.items()}, strict=False)
    if unexpected or {*missing} - {"lm_head.weight", "embed_out.weight"}:
        raise ValueError(f"missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return last_logits(model)


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for tied in (True, False):
            word = f"{kind.partition('For')[0].removesuffix('LMHeadModel')} {'tied' if tied else 'untied'}"
            for title, write in (("DCP", dcp_save), ("DCP async", dcp_async), ("HuggingFaceStorageWriter", hub_writer)):
                reads = ("any",) if write is not hub_writer else ("safetensors", "torch")
                twice = ("TIE002",) if tied and write is not hub_writer else ()  # DCP stores both names
                made = partial(write, kind, tied)
                yield Case(f"{title} {word}", made, partial(read_folder, kind), reads=reads, named=twice)
            yield Case(
                f"training state {word}", partial(trainer_state, kind, tied),
                partial(read_state, kind, tied, "model", ""), file="checkpoint.pt",
            )  # fmt: skip
            yield Case(
                f"Lightning {word}", partial(lightning_save, kind, tied),
                partial(read_state, kind, tied, "state_dict", "model."), file="last.ckpt",
            )  # fmt: skip


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
