"""The torch reference: the checkpoint alone, in float64 to the last operation; what moves to a GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tieconv
from tests.cli.run import run
from tests.lazy import float64, load_file, measured_pair as free_memory, save_file, torch, transformers
from tests.loops import case
from tests.onnx import exported
from tests.onnx.exported import CACHE, ROWS, config
from tieconv.errors import NotRunError, RefusedError, UnreadableError
from tieconv.reference.model import (
    Batch,
    Reference,
    architecture,
    exact_products,
    free_memory as gpu_memory,
    load,
    load_config,
    memory_of,
    torch_device,
)


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
    cache, made = transformers.DynamicCache(config=reference.model.config), []
    for start, end in ((0, 7), (7, 8), (8, 12)):
        with torch.no_grad(), float64.KeepFloat64():
            arguments = reference.inputs(batch.until(end), start)
            made.append(reference.call(**arguments, **{CACHE: cache}, use_cache=True).logits)
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


def test_the_arguments_of_a_pass() -> None:
    """From a position on; the mask covers what came before, and types of blocks are given at the start alone."""

    class Takes(torch.nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, mm_token_type_ids: Any) -> None: ...

    ids, mask, types = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[0, 1, 1, 1]]), torch.tensor([[0, 0, 1, 1]])
    rows_of = torch.arange(8, dtype=torch.float64).reshape(1, 4, 2)
    arguments = [
        # the batch, the first position, and the arguments of the forward pass
        (Batch(ids, mask), 0, {"input_ids": ids, "attention_mask": mask, "position_ids": [[0, 0, 1, 2]]}),
        (Batch(ids, mask), 3, {"input_ids": [[6]], "attention_mask": mask, "position_ids": [[2]]}),
        (Batch(ids, mask, placed=False), 2, {"input_ids": [[5, 6]], "attention_mask": mask}),
        (
            Batch(ids, mask, types=types, placed=False),
            1,
            {"input_ids": [[4, 5, 6]], "attention_mask": mask, "token_type_ids": [[0, 1, 1]]},
        ),
        (
            Batch(ids, mask, embeds=rows_of, placed=False),
            2,
            {"attention_mask": mask, "inputs_embeds": [[[4.0, 5.0], [6.0, 7.0]]]},
        ),
        (
            Batch(ids, mask, blocks=types, placed=False),
            0,
            {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": types},
        ),
        (Batch(ids, mask, blocks=types, placed=False), 3, {"input_ids": [[6]], "attention_mask": mask}),
        (
            Batch(ids, mask, decoder_ids=ids[:, :2]),
            0,
            {"input_ids": ids, "decoder_input_ids": [[3, 4]], "attention_mask": mask},
        ),
        (
            Batch(ids, mask, decoder_ids=ids[:, :2], decoder_mask=mask[:, :2]),
            0,
            {
                "input_ids": ids, "decoder_input_ids": [[3, 4]], "attention_mask": mask,
                "decoder_attention_mask": [[0, 1]],
            },
        ),
    ]  # fmt: skip
    for number, (batch, start, expected) in enumerate(arguments):
        with case(number):
            given = Reference(Takes(), "float32", (), ()).inputs(batch, start)
            assert {name: value.tolist() for name, value in given.items()} == {
                name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in expected.items()
            }
            rows = given.get("inputs_embeds")
            assert rows is None or rows.dtype is torch.float32


def test_the_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all that it has."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 9))
    assert gpu_memory("cuda:0") == 7


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


def visible(monkeypatch: pytest.MonkeyPatch, number: int, cuda: str | None = "13.0") -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.version, "cuda", cuda)


def test_without_a_gpu_there_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report and the command say why, and which option runs it on the CPU."""
    visible(monkeypatch, 0, None)
    made = exported.build("llama", "float32", tmp_path)
    report = tieconv.parity(made.graph, made.model, provider="cpu", reference_device="cuda")
    assert report.verdict == "not_run"
    assert report.reason == f"the reference cannot run on GPU 0: torch {torch.__version__} is a CPU build"
    assert "--reference-device cpu" in report.hint or "reference_device='cpu'" in report.hint
    told = run("parity", made.graph, made.model, "--provider", "cpu", "--reference-device", "cuda")
    assert told.exit_code == 2
    assert "cannot run on GPU 0" in told.stderr
    assert "--reference-device cpu" in told.stderr


def test_the_device_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is that of ``--device``; one that torch does not see is refused with the number that it sees."""
    visible(monkeypatch, 2)
    assert torch_device("cuda", 1) == "cuda:1"
    assert torch_device("cpu", 7) == "cpu"
    with pytest.raises(NotRunError, match=r"cannot run on GPU 2: torch .* finds 2 GPUs"):
        torch_device("cuda", 2)


def test_a_wrong_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reference_device 'gpu' is not one of cpu, cuda"):
        tieconv.parity(tmp_path / "model.onnx", tmp_path, reference_device="gpu")


class _Model:
    """Records where its inputs are. Its logits are on the CPU, since no second device is here to compute."""

    def __init__(self) -> None:
        self.dtype = torch.float32
        self.seen: list[set[str]] = []
        self.moves: list[str] = []

    def to(self, device: str) -> _Model:
        self.moves.append(device)
        return self

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, use_cache: bool) -> None: ...

    def __call__(self, **inputs: Any) -> Any:
        self.seen.append({value.device.type for value in inputs.values() if hasattr(value, "device")})
        return SimpleNamespace(logits=torch.zeros(1, 3, 5))


def test_inputs_go_to_the_device_and_logits_come_back() -> None:
    """Every tensor of a pass is on the model's device; what is returned is on the CPU."""
    model = _Model()
    reference = Reference(model, "float32", (), ())
    ids = torch.zeros(1, 3, dtype=torch.int64)
    batch = Batch(ids, torch.ones_like(ids))
    reference.logits(batch)
    reference.move("meta")
    logits = reference.logits(batch)
    assert model.moves == ["meta"]
    assert model.seen == [{"cpu"}, {"meta"}]
    assert logits.device.type == "cpu"


def test_memory_that_ran_out_is_no_run() -> None:
    """Torch's error becomes a sentence with a way out; any other error stays."""
    with pytest.raises(NotRunError, match="the memory of cuda:0 ran out in the torch reference"), memory_of("cuda:0"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="another"), memory_of("cuda:0"):
        raise RuntimeError("another")


def test_torch_may_not_round() -> None:
    """No TF32 and no sums in 16 bits while the reference runs; the program's own settings come back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def settings() -> tuple[bool, ...]:
        reduced = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
        return (bool(cudnn.allow_tf32), bool(matmul.allow_tf32), *map(bool, reduced))

    before = settings()
    assert any(before), "torch's own settings allow some rounding"
    with exact_products("cuda:0"):
        assert settings() == (False, False, False, False)
    assert settings() == before
    with exact_products("cpu"):
        assert settings() == before


def test_the_smaller_memory_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers loads into main memory first, so that both must hold the reference."""
    monkeypatch.setattr(free_memory, "available_memory", lambda: 100)
    monkeypatch.setattr(free_memory, "free_memory", lambda device: {"cuda:0": 40, "cuda:1": 400}[device])
    rooms = [free_memory._room(SimpleNamespace(torch_device=device)) for device in ("cpu", "cuda:0", "cuda:1")]  # type: ignore[arg-type]
    assert rooms == [100, 40, 100]
