"""Compare what the graph of an embedding computes for every id with the module of the model."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tieconv.checkpoint.results.parity import Gate
from tieconv.onnx.parity.graph.bindings import Role
from tieconv.onnx.parity.graph.forward import as_tensor
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.session.open_ import open_session
from tieconv.reference import Reference
from tieconv.text import count

_VALUES = 1 << 22
"""Values of rows in memory at a time."""


def embedding_gates(subject: Subject, model: Reference) -> Iterator[Gate]:
    """Yield the gate that the embedding's graph gives each id the model's row, bit for bit.

    ``model`` is the checkpoint in the graph's precision. Yields nothing for a graph of token ids.
    """
    before = subject.graph.embedding
    if before is None:
        return
    rows, wrong = int(subject.config.vocab_size), []
    session = open_session(before.path, subject.provider, precision=subject.precision)
    module, step = model.model.get_input_embeddings(), max(_VALUES // subject.bindings.width, 1)
    for start in range(0, rows, step):
        ids = torch.arange(start, min(start + step, rows))[None]
        with torch.no_grad():
            expected = module(ids)[0]
        dtype = subject.bindings.inputs[Role.IDS].dtype
        made = session.run({Role.IDS: session.value(ids.to(_WHOLE[dtype]).numpy())}, [Role.EMBEDS], Role.EMBEDS)
        wrong += ids[0][_different(as_tensor(made[Role.EMBEDS])[0], expected)].tolist()
    explanation = f"the graph of the embedding gives the model's row bit for bit for each of {count(rows, 'id')}"
    if wrong:
        first = ", ".join(map(str, wrong[:3]))
        explanation = (
            f"the graph of the embedding gives another row than the model for {count(len(wrong), 'id')}: {first}"
        )
    yield Gate("embedding_rows", float(len(wrong)), 0.0, not wrong, explanation)


_WHOLE = {"INT64": torch.int64, "INT32": torch.int32}


def _different(made: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return for each row whether its bytes differ."""
    if made.shape != expected.shape or made.dtype != expected.dtype:
        return torch.ones(len(expected), dtype=torch.bool)
    return (made.contiguous().view(torch.uint8) != expected.contiguous().view(torch.uint8)).any(-1)
