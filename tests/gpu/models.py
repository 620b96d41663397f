"""The models that are measured, built where they are measured: tiny ones of many architectures, and a large one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tieconv
from tests.lazy import session_proof as graph_proof, torch, transformers as tr
from tests.onnx import exported
from tests.onnx.export_table import make
from tests.onnx.exported import ARCHITECTURES
from tieconv.checkpoint.graph_plan import PRECISIONS

LARGE = "llama-large"
WIDE = "llama-wide"
"""Products over 4096 elements: enough for the precision of their sums to show."""
SEVEN = "llama-7b"
"""7.5 billion weights, made on the device in bf16."""
FORMS = ("gemm", "fused", "transpose", "transformers")
"""The heads that `dedup` writes, and what transformers' own exporter does."""
SMALL = ("llama", "bert")
"""What a rehearsal measures."""


def _config(rows: int, width: int, layers: int, inside: int, heads: tuple[int, int], **more: Any) -> tr.LlamaConfig:
    """A tied Llama; ``heads`` of the queries and of keys and values."""
    return tr.LlamaConfig(
        vocab_size=rows, hidden_size=width, intermediate_size=inside, num_hidden_layers=layers,
        num_attention_heads=heads[0], num_key_value_heads=heads[1], tie_word_embeddings=True,
        **{"max_position_embeddings": 4096, "initializer_range": 0.02} | more,
    )  # fmt: skip


def large_config(*, small: bool) -> tr.LlamaConfig:
    """V = 131072 and H = 2048: a matrix of 1 GiB in float32; 1.7 GiB in all. ``small`` for a rehearsal."""
    rows, width, layers = (8192, 64, 2) if small else (131_072, 2048, 4)
    heads = (width // 16 if small else 16), 4
    return _config(rows, width, layers, width * 11 // 4, heads, bos_token_id=1, eos_token_id=2)


def seven_config(*, small: bool) -> tr.LlamaConfig:
    """V = 128256 and H = 4096, 32 layers: 7.5 billion weights, 15 GB in bf16. ``small`` for a rehearsal."""
    rows, width, layers = (4096, 64, 2) if small else (128_256, 4096, 32)
    heads = (width // 16, 4) if small else (32, 8)
    return _config(rows, width, layers, width * 7 // 2, heads, bos_token_id=1, eos_token_id=2)


def seven(*, small: bool) -> tr.LlamaForCausalLM:
    """Random weights in bf16, drawn on the GPU if there is one."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        made = tr.LlamaForCausalLM._from_config(seven_config(small=small), dtype=torch.bfloat16)
    made.generation_config = tr.GenerationConfig()
    return made


def wide() -> tr.LlamaForCausalLM:
    """Two wide layers and few tokens."""
    more = {"max_position_embeddings": 512, "initializer_range": 0.05}
    return tr.LlamaForCausalLM(_config(1024, 1024, 2, 4096, (16, 4), **more))


def matrix_bytes(precision: str, *, small: bool) -> int:
    """Bytes of the large model's tied matrix."""
    config = large_config(small=small)
    return int(config.vocab_size * config.hidden_size * (4 if precision == "fp32" else 2))


class Workshop:
    """Models and graphs under one directory, each made once, whichever process asks first."""

    def __init__(self, directory: Path, *, small: bool) -> None:
        self.directory = directory
        self.small = small
        directory.mkdir(parents=True, exist_ok=True)

    def model(self, name: str) -> Path:
        """The model's directory, float32."""

        def build(out: Path) -> None:
            if name == LARGE:
                torch.manual_seed(0)
                made = tr.LlamaForCausalLM(large_config(small=self.small))
                made.generation_config = tr.GenerationConfig()
            elif name == WIDE:
                torch.manual_seed(0)
                made = wide()
            elif name == SEVEN:
                made = seven(small=self.small)
            else:
                made = make(name)
            made.save_pretrained(out)

        return self._once(f"{name}/model", build)

    def graph(self, name: str, precision: str) -> Path:
        """tieconv's own export, its axes and weights proved and its parity not yet measured: a graph, or the directory
        of an encoder and a decoder.
        """

        def build(out: Path) -> None:
            tieconv.export(model, out, precision=precision, parity=False)

        model = self.model(name)
        out = self._once(f"{name}/{precision}", build)
        return out / "model.onnx" if (out / "model.onnx").exists() else out

    def fused(self, precision: str) -> Path:
        """The large model's graph with attention and norms fused for CUDA."""

        def build(out: Path) -> None:
            tieconv.export(model, out, precision=precision, fuse="cuda", head_form="fused", parity=False)

        model = self.model(LARGE)
        return self._once(f"{LARGE}/{precision}-attention", build) / "model.onnx"

    def form(self, precision: str, form: str) -> Path:
        """The large model's graph with a head in one form, or as transformers' exporter leaves it."""
        raw = self._once(f"{LARGE}/{precision}-transformers", lambda out: self._raw(precision, out))
        if form == "transformers":
            return raw / "model.onnx"
        return self._once(f"{LARGE}/{precision}-{form}", lambda out: _dedup(raw, form, precision, out)) / "model.onnx"

    def forms(self, precision: str) -> None:
        """All of them."""
        for form in FORMS:
            self.form(precision, form)
        (self.directory / f"forms-{precision}").touch()

    def _raw(self, precision: str, out: Path) -> None:
        dtype = getattr(torch, PRECISIONS[precision])
        exported.export(tr.LlamaForCausalLM.from_pretrained(self.model(LARGE), dtype=dtype).eval(), out)

    def _once(self, name: str, build: Callable[[Path], None]) -> Path:
        out = self.directory / name
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.with_name(f"{out.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not out.exists():
                staged = out.with_name(f"{out.name}.new")
                shutil.rmtree(staged, ignore_errors=True)
                build(staged)
                os.rename(staged, out)
        return out


def _dedup(raw: Path, form: str, precision: str, out: Path) -> None:
    planned = tieconv.plan_graph_dedup(raw, head_form=form)
    if (form, precision) == ("transpose", "fp16"):
        # The CPU's session holds this one as float32 and turned round, which takes minutes to compare bit by bit. What
        # a session on the device holds is measured instead.
        with mock.patch.object(graph_proof.graph_model, "has_onnxruntime", lambda: False):
            planned.execute(out)
    else:
        planned.execute(out)


def tiny(*, small: bool) -> tuple[str, ...]:
    return SMALL if small else tuple(ARCHITECTURES)
