"""Compare the row that a graph looks up for every id with the row of the checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tieconv.checkpoint.results.parity_metrics import Vocabulary
from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError
from tieconv.inspection.view_reader import readable
from tieconv.onnx.parity.graph.bindings import Role
from tieconv.onnx.parity.graph.embedding_pair import parts
from tieconv.onnx.parity.graph.file import DTYPES
from tieconv.onnx.parity.graph.forward import GraphModel, as_tensor
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.vocabulary.first_nodes import FirstNodes, after_lookup, first_nodes
from tieconv.onnx.parity.weights.candidate_search import STORED, TensorSearch, bits_of
from tieconv.onnx.parity.weights.folds import folds
from tieconv.onnx.parity.weights.packed_weights import Rows
from tieconv.onnx.session.child import session_call
from tieconv.onnx.session.open_ import ELEMENTS, Session, open_session
from tieconv.reference import Batch
from tieconv.sources.local.files import open_files

_VALUES = 1 << 22
"""Values of looked-up rows in memory at a time."""
_LEAST = 0.5
"""The share of equal rows from which a lookup counts as one of words."""

Run = Callable[[torch.Tensor, dict[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Runs a copy of the first nodes on ids (rows,) and more inputs, and returns its outputs by name."""


@record
class _Table:
    """The checkpoint's word table: its rows as a graph would hold them, by ONNX type and fold."""

    forms: Callable[[str], dict[str, Rows]]
    ids: int
    width: int


def every_lookup(subject: Subject) -> Vocabulary | None:
    """Return which ids get another row than the checkpoint's, and which later nodes treat differently.

    The result is ``None`` if the graph has no direct lookup of words. Raises `NotRunError` like `open_session`.
    """
    try:
        return _joined([_every_lookup(part) for part in subject.parts])
    except NotRunError:
        raise
    except Exception:  # noqa: BLE001 - the runtime makes its classes of errors in C++; the graph runs or fails later
        return None


def _joined(results: list[Vocabulary | None]) -> Vocabulary | None:
    """Return the ids of all graphs of a model; ``None`` if one graph has no direct lookup."""
    seen = [result for result in results if result is not None]
    if len(seen) < len(results):
        return None
    wrong = sorted({token for result in seen for token in result.wrong})
    special = sorted({token for result in seen for token in result.special})
    return replace(seen[0], wrong=tuple(wrong), special=tuple(special))


def _every_lookup(subject: Subject) -> Vocabulary | None:
    checkpoint, embedding = subject.evidence.checkpoint, subject.evidence.head.input_embedding
    stored = checkpoint.tensors.get(embedding.name) if embedding else None
    if stored is None or stored.dtype not in STORED or len(stored.shape) != 2:
        return None
    import onnx

    roles = (Role.IDS, Role.DECODER_IDS)
    ids = tuple(subject.bindings.inputs[role].name for role in roles if role in subject.bindings.inputs)
    shape = int(stored.shape[0]), int(stored.shape[1])
    first = first_nodes(onnx.load(parts(subject.graph)[0].path, load_external_data=False), ids, shape)
    if first is None:
        return None
    with open_files(checkpoint.root) as files:
        files.expect(checkpoint.files)
        reader, (entry,) = readable(files, [stored])
        tensor = TensorSearch(reader).whole(entry, subject.precision, tuple(folds(subject.config)))
        return _compared(subject, first, _Table(lambda dtype: dict(tensor.forms(dtype)), *shape))


def _compared(subject: Subject, first: FirstNodes, table: _Table) -> Vocabulary | None:
    run = _runner(subject, first.model)
    wrong: set[int] = set()
    special: set[int] = set()
    later: Run | None = None
    words: dict[str, Rows] = {}
    for ids in _chunks(table):
        made = run(ids, {})
        if not words:
            words = {name: rows for name in first.rows if (rows := _form(made[name], table, len(ids)))}
        for name, rows in words.items():
            same = _bits(made[name]) == rows(int(ids[0]), int(ids[-1]) + 1)
            wrong.update(ids[torch.from_numpy(~same.all(1))].tolist())
        if not set(first.results) - set(first.rows):
            continue
        looked_up = {name: made[name] for name in first.rows}
        if later is None:
            later = _runner(subject, after_lookup(first, ELEMENTS[_onnx_type(looked_up[first.rows[0]])]))
        special.update(_special_ids(ids, made, looked_up, later, table.ids))
    return Vocabulary(table.ids, tuple(sorted(wrong)), tuple(sorted(special))) if words else None


def _chunks(table: _Table) -> Iterator[torch.Tensor]:
    step = max(_VALUES // table.width, 1)
    for start in range(0, table.ids, step):
        yield torch.arange(start, min(start + step, table.ids))


def _runner(subject: Subject, model: Any) -> Run:
    """Return a function that runs a copy of the first nodes. Its data stays where the graph has it."""
    folder = os.path.dirname(os.path.abspath(subject.graph.path))
    session = open_session(model.SerializeToString(), subject.provider, precision=subject.precision, folder=folder)
    return lambda ids, more: _outputs(session, GraphModel(session, subject.bindings, subject.window), ids, more)


def _outputs(
    session: Session, graph: GraphModel, ids: torch.Tensor, more: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    column = ids[:, None]
    decoder = column if Role.DECODER_IDS in graph.bindings.inputs else None
    batch = Batch(
        column, torch.ones_like(column), decoder, torch.zeros_like(column), decoder_mask=torch.ones_like(column)
    )
    rows = {name: session.floats(value, _onnx_type(value)) for name, value in more.items()}
    feeds = graph.feeds(batch, 0) | graph.no_past(batch) | rows
    wanted = {value.name for value in session.inner.get_inputs()}
    names = [value.name for value in session.inner.get_outputs()]
    with session_call("a run"):
        values = session.inner.run_with_ort_values(names, {name: feeds[name] for name in wanted})
    return {name: as_tensor(value) for name, value in zip(names, values, strict=True)}


def _onnx_type(rows: torch.Tensor) -> str:
    return next(name for name, dtype in DTYPES.items() if getattr(torch, dtype) is rows.dtype)


def _bits(rows: torch.Tensor) -> Any:
    return bits_of(rows.reshape(len(rows), -1), _onnx_type(rows))


def _form(made: torch.Tensor, table: _Table, count: int) -> Rows | None:
    """Return the table in the form that most looked-up rows have, or ``None`` if few are equal."""
    forms = table.forms(_onnx_type(made))
    equal = {name: float((_bits(made) == rows(0, count)).all(1).mean()) for name, rows in forms.items()}
    best = max(equal, key=lambda name: equal[name])
    return forms[best] if equal[best] >= _LEAST else None


def _special_ids(
    ids: torch.Tensor, made: dict[str, torch.Tensor], rows: dict[str, torch.Tensor], later: Run, count: int
) -> list[int]:
    """Return the ids for which the later nodes give other values if they see another id beside the same rows.

    Two other ids are tried, because one of them may be an id that is treated differently itself.
    """
    tried = []
    for second_id in (count // 2, count // 3 + 1):
        again = later(torch.full_like(ids, second_id % count), rows)
        special = torch.zeros(len(ids), dtype=torch.bool)
        for name, value in again.items():
            special |= _different(made[name], value, len(ids))
        tried.append(ids[special].tolist())
    return min(tried, key=len)


def _different(before: torch.Tensor, after: torch.Tensor, rows: int) -> torch.Tensor:
    """Return for each row whether its bytes differ. Values without rows count for all rows."""
    if before.ndim and len(before) == rows:
        ours, theirs = (value.reshape(rows, -1).contiguous().view(torch.uint8).numpy() for value in (before, after))
        return torch.from_numpy((ours != theirs).any(1))
    return torch.full((rows,), not torch.equal(before, after))
