"""Directories of trainers: recognised by the names of their files, with the command of their own tool."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tieconv.errors import UnreadableError

DIRECTORIES = {
    "zero 3": (
        ("global_step5/zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_to_fp32.py", "latest"),
        "zero_to_fp32.py",
    ),
    "zero 2": (
        ("global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "global_step5/mp_rank_00_model_states.pt"),
        "zero_to_fp32.py",
    ),
    "its own directory": (
        ("zero_pp_rank_1_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"),
        "zero_to_fp32.py",
    ),
    "megatron": (("iter_0000010/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"), "export_ckpt"),
    "zarr": (("model_weights/decoder.final_layernorm.weight/.zarray",), "export_ckpt"),
    "verl": (("model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"), "verl.model_merger"),
    "adapterhub": (("pytorch_adapter.bin", "adapter_config.json"), "the package adapters"),
    "hqq": (("qmodel.pt", "config.json"), "HqqConfig"),
    "accelerate": (("pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp"), "pytorch_model_fsdp_0"),
    "nemo": (("weights/.metadata", "weights/__0_0.distcp", "context/model.yaml"), "weights"),
}


@pytest.mark.parametrize("case", DIRECTORIES)
def test_hint(case: str, tmp_path: Path) -> None:
    names, hint = DIRECTORIES[case]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\x80\x02}.")
    with pytest.raises(UnreadableError) as caught:
        api.inspect(tmp_path)
    if case in ("accelerate", "nemo"):  # `inspect` reads the one model below, and this one is malformed
        assert caught.value.code.startswith("dcp."), caught.value.code
        return
    assert caught.value.code in {"format.unsupported", "format.below"} and hint in caught.value.hint


def test_weights_beside_are_read(tmp_path: Path) -> None:
    """A trainer that also saved the model for transformers: that model is read."""
    torch = pytest.importorskip("torch")
    (tmp_path / "global_step5").mkdir()
    (tmp_path / "global_step5" / "zero_pp_rank_0_mp_rank_00_model_states.pt").write_bytes(b"\x80\x02}.")
    torch.save({"model.embed_tokens.weight": torch.ones(4, 2)}, tmp_path / "pytorch_model.bin")
    assert len(api.inspect(tmp_path).checkpoint.tensors) == 1
