"""Figures and ratios: what they are on values whose answer is known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.parity import measured_pair
from tieconv.onnx.parity.batches import cells, stepped
from tieconv.onnx.parity.bindings import Kind, Role, bind, faults
from tieconv.onnx.parity.graph_file import Graph, Value
from tieconv.onnx.parity.judge import BINS, Errors, pool, ratios
from tieconv.onnx.parity.validate import read_tokens
from tieconv.reference.float64 import KeepFloat64


def errors(reference: torch.Tensor, got: torch.Tensor) -> Errors:
    found = Errors()
    found.add(reference, got)
    return found


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_figures(logits: torch.Tensor) -> None:
    """RMS, largest error, top-1 changes with their margin and KL as defined, however the rows are batched."""
    got = logits.clone()
    got[0] += 0.5
    best, second = logits[5].topk(2).indices.tolist()
    got[5, [best, second]] = logits[5, [second, best]]
    found = errors(logits, got).figures()
    difference = got - logits
    assert found.rms == pytest.approx(float(difference.square().mean().sqrt()))
    assert found.max_abs == pytest.approx(float(difference.abs().max()))
    assert (found.flips, found.positions) == (1, 40)
    assert found.top1 == pytest.approx(39 / 40)
    assert found.flip_margin == pytest.approx(float(logits[5, best] - logits[5, second]))
    p, q = logits.log_softmax(-1), got.log_softmax(-1)
    assert found.kl == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()))
    centred = logits - logits.mean(-1, keepdim=True)
    assert found.relative_rms == pytest.approx(found.rms / float(centred.square().mean().sqrt()))


def test_pools_are_sums(logits: torch.Tensor) -> None:
    """Cases pooled give the figures of all their positions at once."""
    got = logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)) * 1e-3
    parts = [errors(logits[i : i + 10], got[i : i + 10]) for i in range(0, 40, 10)]
    whole, pooled = errors(logits, got).figures(), pool(parts).figures()
    assert pooled.rms == pytest.approx(whole.rms)
    assert (pooled.max_abs, pooled.flips, pooled.positions) == (whole.max_abs, whole.flips, whole.positions)
    assert sum(pool(parts).counts) == logits.numel()
    assert len(pool(parts).counts) == BINS


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_infinitely_wrong(logits: torch.Tensor, bad: float) -> None:
    """A NaN or infinity in the graph's logits never passes a gate."""
    got = logits.clone()
    got[3, 3] = bad
    assert ratios(errors(logits, got), errors(logits, logits + 1e-6), "float32") == (math.inf, math.inf)


def test_a_masked_logit_is_no_error(logits: torch.Tensor) -> None:
    """−inf on both sides is agreement."""
    masked = logits.clone()
    masked[:, 0] = -math.inf
    assert errors(masked, masked.clone()).figures().max_abs == 0.0


def test_the_floor_is_never_below_rounding(logits: torch.Tensor) -> None:
    """Where torch happens to be exact, one unit of rounding of the logits stands in for its error."""
    exact = errors(logits, logits.clone())
    scale = float((logits - logits.mean(-1, keepdim=True)).square().mean().sqrt())
    off = errors(logits, logits + 3 * torch.finfo(torch.float16).eps * scale)
    rms, largest = ratios(off, exact, "float16")
    assert rms == pytest.approx(3.0, rel=1e-6)
    assert largest == pytest.approx(3.0, rel=1e-6)
    assert ratios(exact, exact, "float16") == (0.0, 0.0)


def test_shapes() -> None:
    """Every kind has at least 8 shapes with 3 seeds: one token, left padding, a past where there can be one."""
    for kind in Kind:
        made = list(cells(kind, 1 << 20))
        shapes = {(cell.batch, cell.sequence, cell.past, cell.padding) for cell in made}
        assert len(shapes) >= 8
        assert len(made) == 3 * len(shapes)
        assert {cell.seed for cell in made} == {0, 1, 2}
        assert any(cell.sequence == 1 and cell.batch == 1 for cell in made)
        assert any(cell.padding for cell in made)
        assert any(cell.past for cell in made) == (kind is Kind.CACHED or kind.encodes)
    assert {cell.steps for cell in stepped(1 << 20)} == {32}


def test_no_shape_is_longer_than_the_model() -> None:
    """A model of 16 positions is not asked for more."""
    for kind in (Kind.CACHED, Kind.PLAIN):
        assert all(cell.length <= 16 for cell in (*cells(kind, 16), *stepped(16)))


def graph(*inputs: Value, outputs: tuple[str, ...] = ("logits",)) -> Graph:
    return Graph("g.onnx", 20, inputs, tuple(Value(name, "FLOAT", ()) for name in outputs), (), None)


IDS = Value("input_ids", "INT64", ("b", "s"))
MASK = Value("attention_mask", "INT64", ("b", "t"))


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("input.past_key_values.layers.{}.{}s", "output.past_key_values.layers.{}.{}s"),
        ("past_key_values.layers.{}.{}s", "present.layers.{}.{}s"),
        ("past_key_values.{}.{}", "present.{}.{}"),
        ("past_key_values.{}.{}", "present_key_values.{}.{}"),
    ],
    ids=["transformers", "transformers-renamed", "optimum-and-genai", "present_key_values"],
)
def test_cache_names(past: str, present: str) -> None:
    """Each cache input is continued by the output of its own layer and part, in every naming."""
    places = [(layer, part) for layer in (0, 1, 10) for part in ("key", "value")]
    values = [Value(past.format(*place), "FLOAT", ("b", 2, "p", 8)) for place in places]
    found = bind(
        graph(IDS, MASK, *values, outputs=("logits", *(present.format(*place) for place in places))), masked=False
    )
    assert found.kind is Kind.CACHED
    assert [(cache.past.name, cache.present) for cache in found.caches] == [
        (past.format(*place), present.format(*place)) for place in places
    ]
    assert not list(faults(found))


def test_kinds() -> None:
    """What a graph computes follows from its inputs and the model's class."""
    decoder = Value("decoder_input_ids", "INT64", ("b", "d"))
    assert bind(graph(IDS, MASK), masked=False).kind is Kind.PLAIN
    assert bind(graph(IDS, MASK), masked=True).kind is Kind.MASKED
    assert bind(graph(IDS, MASK, decoder), masked=False).kind is Kind.SEQ2SEQ
    assert Role.MASK in bind(graph(IDS, MASK), masked=False).inputs


@pytest.mark.parametrize(
    "value",
    [
        Value("use_cache_branch", "BOOL", (1,)),
        Value("pixel_values", "FLOAT", ("b", 3, "h", "w")),
        Value("past_key_values.0.key", "FLOAT", ("b", 2, "p", 8)),
        Value("attention_mask", "FLOAT", ("b", "t")),
    ],
    ids=lambda value: value.name,
)
def test_an_unknown_input_is_named(value: Value) -> None:
    """What cannot be fed is refused by name, also a cache without the output that continues it."""
    with pytest.raises(UnreadableError, match=value.name):
        bind(graph(IDS, value), masked=False)


def test_a_graph_without_a_mask_fails() -> None:
    """Padding cannot be masked; so say the faults, with every frozen axis of a cache."""
    past = (
        Value("past_key_values.0.key", "FLOAT", (1, 2, "p", 8)),
        Value("past_key_values.0.value", "FLOAT", ("b", 2, 7, 8)),
    )
    found = bind(graph(IDS, *past, outputs=("logits", "present.0.key", "present.0.value")), masked=False)
    assert list(faults(found)) == [
        "the batch axis (0) of the input past_key_values.0.key is fixed at 1",
        "the past axis (2) of the input past_key_values.0.value is fixed at 7",
        "the graph has no input attention_mask, so it cannot run padded batches",
    ]


def test_float64_stays() -> None:
    """What modelling code upcasts to float32 keeps float64, and integers become what the code asks for."""
    x = torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64)
    with KeepFloat64():
        for kept in (
            x.float(),
            x.to(torch.float32),
            x.to(dtype=torch.float32),
            torch.softmax(x, -1, dtype=torch.float32),
        ):
            assert kept.dtype is torch.float64
        assert torch.equal(x.float(), x)
        assert torch.tensor([3]).float().dtype is torch.float32
    assert x.float().dtype is torch.float32


@pytest.mark.parametrize("name", ["ids.json", "ids.npy"])
def test_ids_of_a_file(name: str, tmp_path: Path) -> None:
    """Ids in any shape, in windows of the model's positions; the rest is left out, and an unknown id refused."""
    ids = np.arange(20).reshape(2, 10)
    path = tmp_path / name
    np.save(path, ids) if name.endswith("npy") else path.write_text(json.dumps(ids.tolist()))
    assert read_tokens(str(path), "", 20, 8).ids.tolist() == [[*range(8)], [*range(8, 16)]]
    assert read_tokens(str(path), "", 20, 20).ids.shape == (1, 20)
    for rows, longest, why in ((19, 8, "holds the id 19"), (20, 21, "holds 20 tokens, but at least 21 are needed")):
        with pytest.raises(UnreadableError, match=why):
            read_tokens(str(path), "", rows, longest)


@pytest.mark.parametrize(
    ("precision", "asked", "room", "dtype"),
    [
        ("float16", "auto", 126, "float64"),
        ("float16", "auto", 125, "float32"),
        ("float16", "float64", 1, "float64"),
        ("float32", "auto", 126, "float64"),
        ("float32", "auto", 125, "of memory, but only 125 B is free"),
        ("float32", "float32", 999, "of memory"),
    ],
)
def test_the_precision_of_the_reference(
    precision: str, asked: str, room: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float64 within four fifths of the free memory; a float32 graph needs it, and the refusal says of what."""
    monkeypatch.setattr(measured_pair, "reference_bytes", lambda *_: 100)
    monkeypatch.setattr(measured_pair, "_room", lambda _: room)
    subject: Any = SimpleNamespace(precision=precision)
    if dtype.startswith("float"):
        assert measured_pair.reference_dtype(subject, asked) == dtype
    else:
        with pytest.raises(NotRunError) as caught:
            measured_pair.reference_dtype(subject, asked)
        assert caught.value.message.endswith(dtype)
