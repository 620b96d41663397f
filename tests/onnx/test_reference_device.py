"""The torch reference on a GPU: where it is refused, what it moves, and what torch may not round."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.run import run

torch = pytest.importorskip("torch")

import tieconv  # noqa: E402
from tests.onnx import exported  # noqa: E402
from tieconv.errors import NotRunError  # noqa: E402
from tieconv.onnx.parity import measured_pair as free_memory  # noqa: E402
from tieconv.reference import Reference  # noqa: E402
from tieconv.reference.model import Batch, exact_products, memory_of, torch_device  # noqa: E402


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

    dtype = torch.float32

    def __init__(self) -> None:
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
