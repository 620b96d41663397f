"""Graphs run in ONNX Runtime on random inputs, for comparison bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

SHAPES = [(1, 1), (1, 7), (2, 1), (2, 7), (3, 5)]


def session(path: Path, *, optimise: bool, prepack: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds(made: ort.InferenceSession, shape: tuple[int, int], vocabulary: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    known = {"input_ids": lambda: rng.integers(0, vocabulary, shape), "use_cache": lambda: np.array([bool(seed % 2)])}
    return {node.name: known[node.name]() for node in made.get_inputs() if node.name in known}


def outputs(
    path: Path, shape: tuple[int, int], vocabulary: int, *, optimise: bool = True, seed: int = 0, prepack: bool = True
) -> list[np.ndarray]:
    made = session(path, optimise=optimise, prepack=prepack)
    return made.run(None, feeds(made, shape, vocabulary, seed))


def same_bits(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True)
    )
