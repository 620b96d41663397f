"""Graphs that GPTQ quantised: by ONNX Runtime's own, and by a small one with zero points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader
from onnxruntime.quantization.matmul_nbits_quantizer import GPTQWeightOnlyQuantConfig, MatMulNBitsQuantizer

from fixtures import exporters
from tieconv.reference.model import load

MODEL = exporters.HERE / "checkpoints" / "genai-qwen2"
FLOAT = exporters.HERE / "genai-qwen2" / "model.onnx"
BLOCK, V = 32, 88


class Prompts(CalibrationDataReader):
    """Random prompts for the builder's graph of Qwen 2."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._feeds = [self._feed(rng.integers(0, V, (1, 32))) for _ in range(16)]
        self.rewind()

    def _feed(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        empty = np.zeros((1, 2, 0, 16), np.float32)
        caches = {f"past_key_values.0.{part}": empty for part in ("key", "value")}
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), **caches}

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)

    def rewind(self) -> None:
        self._left = iter(self._feeds)


def by_onnxruntime(path: Path) -> Path:
    """ONNX Runtime's GPTQ, in its symmetric form."""
    how = GPTQWeightOnlyQuantConfig(calibration_data_reader=Prompts(), block_size=128)
    quantizer = MatMulNBitsQuantizer(onnx.load(FLOAT), bits=4, block_size=BLOCK, is_symmetric=True, algo_config=how)
    quantizer.process()
    onnx.save(quantizer.model.model, path)
    return path


def with_zero_points(path: Path) -> Path:
    """Round to nearest of ONNX Runtime, with codes of GPTQ on the same scales and zero points."""
    inputs = layer_inputs()
    source = onnx.load(FLOAT)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    quantizer = MatMulNBitsQuantizer(source, bits=4, block_size=BLOCK, is_symmetric=False)
    quantizer.process()
    model = quantizer.model.model
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            codes, scales, zeros = (numpy_helper.to_array(stored[name]) for name in node.input[1:4])
            weight = weights[node.input[1].removesuffix("_Q4")].T
            made = feedback(
                weight, inputs_of(inputs, node.input[1]), scales.reshape(len(weight), -1), nibbles(zeros, len(weight))
            )
            made = packed(np.pad(made, [(0, 0), (0, -made.shape[1] % BLOCK)]))
            stored[node.input[1]].CopyFrom(numpy_helper.from_array(made.reshape(codes.shape), node.input[1]))
    onnx.save(model, path)
    return path


def nibbles(zeros: np.ndarray, rows: int) -> np.ndarray:
    """Zero points (rows × blocks) of packed ones."""
    return np.stack([zeros & 15, zeros >> 4], -1).reshape(rows, -1)


def packed(codes: np.ndarray) -> np.ndarray:
    """Two codes a byte, the first in the lower half."""
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def layer_inputs() -> dict[str, np.ndarray]:
    """What each linear layer of the torch model reads for random prompts, by the layer's last name."""
    model = load(str(MODEL), json.loads((MODEL / "config.json").read_text()), "float32").model
    inputs: dict[str, np.ndarray] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(
                lambda _, given, __, name=name: inputs.update({name.rpartition(".")[2]: given[0].double().numpy()})
            )
    with torch.no_grad():
        model(input_ids=torch.randint(0, V, (32, 32), generator=torch.Generator().manual_seed(3)))
    return {name: array.reshape(-1, array.shape[-1]) for name, array in inputs.items()}


def inputs_of(inputs: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The inputs of the layer that a matrix is named for; a packed projection reads those of the query's."""
    return inputs["q_proj"] if "qkv" in name else next(inputs[layer] for layer in inputs if layer in name)


def feedback(weight: np.ndarray, inputs: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> Any:
    """Codes of a matrix (rows × columns), column by column: those to come take up each error."""
    columns = weight.shape[1]
    hessian = inputs.T @ inputs
    hessian += 0.01 * np.mean(np.diag(hessian)) * np.eye(columns)
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    left, codes = weight.astype(np.float64).copy(), np.zeros(weight.shape, np.int64)
    for column in range(columns):
        scale, zero = scales[:, column // BLOCK], zeros[:, column // BLOCK]
        codes[:, column] = (np.round(left[:, column] / scale) + zero).clip(0, 15)
        error = (left[:, column] - (codes[:, column] - zero) * scale) / upper[column, column]
        left[:, column:] -= np.outer(error, upper[column, column:])
    return codes
