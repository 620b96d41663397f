"""Checkpoints of real runs: FSDP2 with gloo on two and four ranks, also with tensor parallel layers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tests.lazy import torch, transformers

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def train(folder: Path, ranks: int, tied: bool, tensor_parallel: int) -> dict[str, Any]:
    """Train in new processes, and return the whole state dict as the run had it."""
    words = ["-m", "tests.formats.distributed.train_ranks", str(ranks), str(folder), "tied" if tied else "untied"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANKS_PORT": _free_port(), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *words, str(tensor_parallel)], cwd=ROOT, env=environment, check=True, timeout=300)
    whole: dict[str, Any] = torch.load(folder / "whole.pt", weights_only=True)
    return whole


@pytest.mark.parametrize(
    ("ranks", "tied", "tensor_parallel"), [(2, True, 1), (2, False, 1), (4, True, 2), (4, False, 1)], ids=str
)
def test_run(ranks: int, tied: bool, tensor_parallel: int, tmp_path: Path) -> None:
    """Every byte of the run is found again, in both layouts, and transformers loads it with the same logits."""
    from safetensors.torch import load_file

    whole = train(tmp_path, ranks, tied, tensor_parallel)
    reference = transformers.LlamaForCausalLM.from_pretrained(None, config=_config(tmp_path), state_dict=whole).eval()
    for layout in ("dcp", "hf"):
        source, out = tmp_path / layout, tmp_path / f"{layout}-out"
        inspection = api.inspect(source, depth="full")
        states = {str(member.state) for tie in inspection.ties for member in tie.members}
        copy = ("identical" if layout == "dcp" else "absent") if tied else "distinct"
        assert states == {"canonical", copy}, inspection.ties
        assert "TRN001" not in {finding.rule for finding in inspection.findings}
        api.plan_convert("safetensors", source).execute(out)
        stored = load_file(out / "model.safetensors")
        assert stored.keys() == whole.keys() - ({HEAD} if tied else set())
        assert all(torch.equal(stored[name], whole[name]) for name in stored)
        model = transformers.LlamaForCausalLM.from_pretrained(out).eval()
        with torch.no_grad():
            ids = torch.arange(6)[None]
            assert torch.equal(model(ids).logits, reference(ids).logits)


def _config(folder: Path) -> Any:
    return transformers.AutoConfig.from_pretrained(folder / "hf")
