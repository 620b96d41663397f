"""Graphs: optimum-onnx, torch.onnx.export with onnxslim and onnxsim, ONNX Runtime's quantisers, the genai builder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from fixtures import zoo
from tests.oracles.tokenizer import write_tokenizer
from tests.writers.program import PROMPT, SOURCE, Case, Facts, serve, without_sampling

TOOL, GRAPH, ROWS = sys.argv[1], "model.onnx", 128
KINDS = ("LlamaForCausalLM", "GPT2LMHeadModel", "Qwen2ForCausalLM")
SIZES = {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}


def build(kind: str, tied: bool) -> Any:
    sizes = SIZES if kind in ("LlamaForCausalLM", "Qwen2ForCausalLM") else {}
    return without_sampling(zoo.build(kind, tie=tied, vocab_size=ROWS, **sizes)).eval()


def source(kind: str, tied: bool, folder: Path) -> Any:
    """Write the checkpoint of a graph beside its folder, where the judge looks for it; return the model."""
    model, beside = build(kind, tied), folder.parent / SOURCE
    model.save_pretrained(beside)
    write_tokenizer(beside, ROWS)
    return model


def optimum(kind: str, tied: bool, task: str, folder: Path) -> Facts:
    from optimum.exporters.onnx import main_export

    source(kind, tied, folder)
    main_export(str(folder.parent / SOURCE), folder, task=task, do_validation=False)
    return {"tied": tied}


class Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any) -> Any:
        words = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        return self.model(**words, use_cache=False).logits


def export(kind: str, tied: bool, then: str, folder: Path) -> Facts:
    """Export with `dynamo=True`, then run an optimiser or a quantiser over the graph."""
    import onnx

    sides = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    path, ids = folder / GRAPH, torch.tensor([PROMPT, PROMPT])
    torch.onnx.export(
        Logits(source(kind, tied, folder)).eval(), (ids, torch.ones_like(ids), torch.arange(len(PROMPT)).expand(2, -1)),
        str(path), dynamo=True, dynamic_shapes=(sides, sides, sides), verbose=False, output_names=["logits"],
        input_names=["input_ids", "attention_mask", "position_ids"], external_data=then == "external data",
    )  # fmt: skip
    if then == "onnxslim":
        import onnxslim

        onnx.save(onnxslim.slim(onnx.load(path)), path)
    elif then == "onnxsim":
        import onnxsim

        onnx.save(onnxsim.simplify(onnx.load(path))[0], path)
    elif then.startswith("quantize_dynamic"):
        from onnxruntime import quantization

        kinds = {"QInt8": quantization.QuantType.QInt8, "QUInt8": quantization.QuantType.QUInt8}
        quantization.quantize_dynamic(str(path), str(path), weight_type=kinds[then.split()[1]])
    elif "bits" in then:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        kinds = ("MatMul", "Gather") if "Gather" in then else ("MatMul",)
        words = {"block_size": 32, "is_symmetric": "zero points" not in then, "bits": int(then[0])}
        quantiser = MatMulNBitsQuantizer(onnx.load(path), **words, op_types_to_quantize=kinds)
        quantiser.process()
        onnx.save(quantiser.model.model, path)
    return {"tied": tied}


def genai(kind: str, tied: bool, precision: str, folder: Path) -> Facts:
    from tests import oracles

    sys.path += oracles.__path__
    import run_genai

    source(kind, tied, folder)
    run_genai.build({"folder": str(folder.parent / SOURCE)}, folder, precision)
    return {"tied": tied}


def read(model: Path) -> Any:
    """Return the logits of the last position, without a past."""
    import onnxruntime

    path = model / GRAPH if model.is_dir() else model
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {entry.name: feed(entry) for entry in session.get_inputs()})[0][0, -1]


def feed(entry: Any) -> Any:
    dtype = np.int64 if "int64" in entry.type else np.int32 if "int32" in entry.type else np.float32
    values = {"input_ids": [PROMPT], "attention_mask": [[1] * len(PROMPT)], "position_ids": [range(len(PROMPT))]}
    if entry.name in values:
        return np.array(values[entry.name], dtype)
    sides = {"batch_size": 1, "kv_cache_dim": SIZES["head_dim"]}
    return np.zeros([side if isinstance(side, int) else sides.get(side, 0) for side in entry.shape], dtype)


STEPS: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "optimum-onnx": (optimum, ("text-generation", "text-generation-with-past"), KINDS),
    "torch-onnx": (export, ("inline", "external data", "onnxslim", "onnxsim"), KINDS),
    "onnxruntime": (
        export,
        ("quantize_dynamic QInt8", "quantize_dynamic QUInt8", "4 bits", "8 bits", "4 bits with zero points",
         "4 bits with Gather"),
        KINDS[:2],
    ),
    "onnxruntime-genai": (genai, ("fp32", "int4"), (KINDS[0], KINDS[2])),
}  # fmt: skip


def cases() -> Iterator[Case]:
    write, steps, kinds = STEPS[TOOL]
    for kind in kinds:
        for tied in (True, False):
            for step in steps:
                title = f"{kind.partition('For')[0].removesuffix('LMHeadModel')} {'tied' if tied else 'untied'} {step}"
                file = GRAPH if write is export else ""
                named = ("ONX001",) if tied and TOOL == "torch-onnx" else ()  # it stores the matrix twice
                quantised = TOOL == "onnxruntime" or step == "int4"
                options = "--quantised" if quantised else "--provider cpu"
                made = partial(write, kind, tied, step)
                yield Case(title, made, read, reads=("any",), file=file, named=named, parity=options)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
