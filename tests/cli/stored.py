"""What a model directory holds, and changes to it by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tests.cli.run import ok
from tests.lazy import load_file, save_file, torch
from tests.schemas import validate

Tensors = "dict[str, torch.Tensor]"


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file and its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tensors(folder: Path) -> Tensors:
    """Every tensor of every weight file."""
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def all_tensors(folder: Path) -> Tensors:
    """Every tensor of safetensors and torch files."""
    files = [torch.load(file, weights_only=True) for file in sorted(folder.glob("*.bin"))]
    return tensors(folder) | {name: value for stored in files for name, value in stored.items()}


def same(a: Tensors, b: Tensors) -> bool:
    """The same names, types, shapes and bits."""
    return a.keys() == b.keys() and all(bits_equal(a[name], b[name]) for name in a)


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))


@contextmanager
def editing(folder: Path) -> Iterator[Tensors]:
    """The tensors of a model of one file; it holds them as the block leaves them."""
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    values = load_file(file)
    yield values
    save_file({name: value.contiguous() for name, value in values.items()}, file, metadata)


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    """Change the tensors of a model of one file."""
    with editing(folder) as values:
        change(values)


def configure(folder: Path, **values: Any) -> None:
    """Set values of the config; ``...`` removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}, indent=2) + "\n")


def config(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


def flags(folder: Path) -> list[object]:
    """The tie flag at the top of the config, and at the levels below that have one."""
    values = config(folder)
    parts = [values, *(value for value in values.values() if isinstance(value, dict))]
    return [part["tie_word_embeddings"] for part in parts if "tie_word_embeddings" in part]


def logits(folder: Path) -> torch.Tensor:
    """What a causal language model computes of a few ids in float32."""
    import transformers

    ids = torch.arange(3, 40)[None]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        scores: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return scores


def plan(line: str, *more: str | Path) -> dict[str, Any]:
    """The JSON plan of a command that exits 0, which follows its schema."""
    document: dict[str, Any] = json.loads(ok(f"{line} --json", *more).stdout)
    validate(document, "plan")
    return document


def operations(document: dict[str, Any]) -> dict[str, str]:
    """The operations that change something, by tensor or config path."""
    return {
        operation.get("name") or operation.get("path") or operation.get("file"): operation["op"]
        for operation in document["operations"]
        if operation["op"] not in ("KeepTensor", "LinkFile")
    }
