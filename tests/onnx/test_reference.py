"""The torch reference: the checkpoint and nothing else, in float64 to the last operation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from tests.onnx.exported import ROWS, config
from tieconv.errors import RefusedError, UnreadableError
from tieconv.reference import Batch, Reference, architecture, load, load_config
from tieconv.reference.float64 import KeepFloat64


@pytest.fixture
def model(exported, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported("llama").model, tmp_path / "model"))


def edit(model: Path, **change: torch.Tensor | None) -> None:
    """Tensors added, or removed where ``None``."""
    tensors = load_file(model / "model.safetensors")
    kept = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
    save_file(kept, model / "model.safetensors", {"format": "pt"})


def test_it_is_float64_throughout(model: Path) -> None:
    """One pass and cached pieces agree to 1e-13, which no norm or softmax in float32 would."""
    reference = load(str(model), config(model), "float64")
    ids = torch.randint(0, ROWS, (2, 12))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    batch = Batch(ids, mask)
    whole = reference.logits(batch)
    cache, made = DynamicCache(config=reference.model.config), []
    for start, end in ((0, 7), (7, 8), (8, 12)):
        with torch.no_grad(), KeepFloat64():
            arguments = reference.inputs(batch.until(end), start)
            made.append(reference.call(**arguments, past_key_values=cache, use_cache=True).logits)
    pieces = torch.cat(made, 1)
    assert whole.dtype is torch.float64
    error = (whole - pieces)[mask.bool()].abs().max()
    assert error < 1e-13
    coarse = load(str(model), config(model), "float32").logits(batch).double()
    assert (whole - coarse)[mask.bool()].abs().max() > 100 * error


def test_positions_start_after_the_padding() -> None:
    """Position ids count from each row's first token, as generation does."""
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    assert Batch(mask, mask).positions.tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


def test_what_the_class_does_not_read_is_told(model: Path) -> None:
    """A stored tensor that is no parameter is listed; it is not looked for in a graph."""
    edit(model, **{"vision.weight": torch.ones(3, 3)})
    assert load(str(model), config(model), "float32").unused == ("vision.weight",)


def test_nothing_is_filled_at_random(model: Path) -> None:
    """A checkpoint without one of the parameters is refused, by name."""
    edit(model, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(RefusedError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(str(model), config(model), "float32")


@pytest.mark.parametrize("names", [None, [], [7], ["no such class!"], "LlamaForCausalLM"])
def test_a_config_without_an_architecture(model: Path, names: object) -> None:
    """What names no class is an error with a hint, whatever the type of the value."""
    with pytest.raises(UnreadableError, match='has no "architectures" entry'):
        architecture({"architectures": names}, str(model))


def test_a_class_that_transformers_lacks(model: Path) -> None:
    """Code of a checkpoint is never run: an unknown class is an error, and so is an unknown model type."""
    with pytest.raises(UnreadableError, match="has no class MyOwnForCausalLM"):
        load(str(model), config(model) | {"architectures": ["MyOwnForCausalLM"]}, "float32")
    changed = config(model) | {"model_type": "my_own", "auto_map": {"AutoConfig": "evil.Config"}}
    (model / "evil.py").write_text("raise SystemExit('ran')")
    (model / "config.json").write_text(json.dumps(changed))
    with pytest.raises(UnreadableError, match=r"transformers cannot read .*config\.json:"):
        load_config(str(model))


def test_rows_before_position_0_and_epsilons() -> None:
    """Only a table with a whole number as its offset has such rows; every norm's epsilon is told, by any name."""
    table, other, plain = (torch.nn.Embedding(6, 4) for _ in range(3))
    table.offset, other.offset = 2, "two"
    norm, module = torch.nn.LayerNorm(4, eps=1e-12), torch.nn.Linear(4, 4)
    module.offset, module.variance_epsilon = 3, 1e-6
    model = torch.nn.ModuleDict({"table": table, "other": other, "plain": plain, "norm": norm, "module": module})
    reference = Reference(model, "float32", (), ())
    assert reference.offsets == {"table.weight": 2}
    assert reference.epsilons == {1e-12, 1e-6}
