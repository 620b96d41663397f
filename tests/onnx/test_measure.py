"""Figures and ratios on values whose answer is known, and the small decisions of a parity run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tieconv
from tests.lazy import (
    batches,
    bindings as graph_bindings,
    causes,
    float64,
    ir,
    judge,
    measured_pair,
    passes,
    torch,
    validate,
)
from tests.loops import case as in_case
from tests.onnx import faults as planted_faults
from tests.onnx.nodes import model, op, value
from tests.onnx.planted import arithmetic as ar
from tests.onnx.planted.catalogue import FAULTS
from tests.refusals import failure_of
from tieconv.checkpoint.results.parity import Case, Identity, Lost, Quantised, QuantisedWeight, Verdict, limited
from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.parity.graph_file import Graph, Value
from tieconv.reference.model import Batch


def errors(reference: torch.Tensor, got: torch.Tensor) -> judge.Errors:
    found = judge.Errors()
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
    whole, pooled = errors(logits, got).figures(), judge.pool(parts).figures()
    assert pooled.rms == pytest.approx(whole.rms)
    assert (pooled.max_abs, pooled.flips, pooled.positions) == (whole.max_abs, whole.flips, whole.positions)
    assert sum(judge.pool(parts).counts) == logits.numel()
    assert len(judge.pool(parts).counts) == judge.BINS


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_infinitely_wrong(logits: torch.Tensor, bad: float) -> None:
    """A NaN or infinity in the graph's logits never passes a gate."""
    got = logits.clone()
    got[3, 3] = bad
    assert judge.ratios(errors(logits, got), errors(logits, logits + 1e-6), "float32") == (math.inf, math.inf)


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
    rms, largest = judge.ratios(off, exact, "float16")
    assert rms == pytest.approx(3.0, rel=1e-6)
    assert largest == pytest.approx(3.0, rel=1e-6)
    assert judge.ratios(exact, exact, "float16") == (0.0, 0.0)


def test_shapes() -> None:
    """Every kind has at least 8 shapes with 3 seeds: one token, left padding, a past where there can be one."""
    for kind in graph_bindings.Kind:
        made = list(batches.cells(kind, 1 << 20))
        shapes = {(cell.batch, cell.sequence, cell.past, cell.padding) for cell in made}
        assert len(shapes) >= 8
        assert len(made) == 3 * len(shapes)
        assert {cell.seed for cell in made} == {0, 1, 2}
        assert any(cell.sequence == 1 and cell.batch == 1 for cell in made)
        assert any(cell.padding for cell in made)
        assert any(cell.past for cell in made) == (kind is graph_bindings.Kind.CACHED or kind.encodes)
    assert {cell.steps for cell in batches.stepped(1 << 20)} == {32}


def test_no_shape_is_longer_than_the_model() -> None:
    """A model of 16 positions is not asked for more."""
    for kind in (graph_bindings.Kind.CACHED, graph_bindings.Kind.PLAIN):
        assert all(cell.length <= 16 for cell in (*batches.cells(kind, 16), *batches.stepped(16)))


def graph(*inputs: Value, outputs: tuple[str, ...] = ("logits",)) -> Graph:
    return Graph("g.onnx", 20, inputs, tuple(Value(name, "FLOAT", ()) for name in outputs), (), None)


IDS = Value("input_ids", "INT64", ("b", "s"))
MASK = Value("attention_mask", "INT64", ("b", "t"))


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("input.past_key_values.layers.{}.{}s", "output.past_key_values.layers.{}.{}s"),
        ("input.cache.layers.{}.{}s", "output.cache.layers.{}.{}s"),
        ("past_key_values.layers.{}.{}s", "present.layers.{}.{}s"),
        ("past_key_values.{}.{}", "present.{}.{}"),
        ("past_key_values.{}.{}", "present_key_values.{}.{}"),
    ],
    ids=["transformers", "transformers-5.24", "transformers-renamed", "optimum-and-genai", "present_key_values"],
)
def test_cache_names(past: str, present: str) -> None:
    """Each cache input is continued by the output of its own layer and part, in every naming."""
    places = [(layer, part) for layer in (0, 1, 10) for part in ("key", "value")]
    values = [Value(past.format(*place), "FLOAT", ("b", 2, "p", 8)) for place in places]
    found = graph_bindings.bind(
        graph(IDS, MASK, *values, outputs=("logits", *(present.format(*place) for place in places))), masked=False
    )
    assert found.kind is graph_bindings.Kind.CACHED
    assert [(cache.past.name, cache.present) for cache in found.caches] == [
        (past.format(*place), present.format(*place)) for place in places
    ]
    assert not list(graph_bindings.faults(found))


def test_kinds() -> None:
    """What a graph computes follows from its inputs and the model's class."""
    decoder = Value("decoder_input_ids", "INT64", ("b", "d"))
    assert graph_bindings.bind(graph(IDS, MASK), masked=False).kind is graph_bindings.Kind.PLAIN
    assert graph_bindings.bind(graph(IDS, MASK), masked=True).kind is graph_bindings.Kind.MASKED
    assert graph_bindings.bind(graph(IDS, MASK, decoder), masked=False).kind is graph_bindings.Kind.SEQ2SEQ
    assert graph_bindings.Role.MASK in graph_bindings.bind(graph(IDS, MASK), masked=False).inputs


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
        graph_bindings.bind(graph(IDS, value), masked=False)


def test_a_graph_without_a_mask_fails() -> None:
    """Padding cannot be masked; so say the faults, with every frozen axis of a cache."""
    past = (
        Value("past_key_values.0.key", "FLOAT", (1, 2, "p", 8)),
        Value("past_key_values.0.value", "FLOAT", ("b", 2, 7, 8)),
    )
    found = graph_bindings.bind(graph(IDS, *past, outputs=("logits", "present.0.key", "present.0.value")), masked=False)
    assert list(graph_bindings.faults(found)) == [
        "the batch axis (0) of the input past_key_values.0.key is fixed at 1",
        "the past axis (2) of the input past_key_values.0.value is fixed at 7",
        "the graph has no input attention_mask, so it cannot run padded batches",
    ]


def test_float64_stays() -> None:
    """What modelling code upcasts to float32 keeps float64, and integers become what the code asks for."""
    x = torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64)
    with float64.KeepFloat64():
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
    assert validate.read_tokens(str(path), "", 20, 8).ids.tolist() == [[*range(8)], [*range(8, 16)]]
    assert validate.read_tokens(str(path), "", 20, 20).ids.shape == (1, 20)
    assert [validate.read_tokens(str(path), "", 20, longest).predicted for longest in (8, 20)] == [2 * 7, 19]
    many = np.arange(300) % 20
    np.save(path, many) if name.endswith("npy") else path.write_text(json.dumps(many.tolist()))
    assert validate.read_tokens(str(path), "", 20, 64).ids.flatten().tolist() == many[:256].tolist()
    path.write_bytes(b"")
    with pytest.raises(UnreadableError, match="cannot be read as tokens"):
        validate.read_tokens(str(path), "", 20, 8)
    np.save(path, ids) if name.endswith("npy") else path.write_text(json.dumps(ids.tolist()))
    for rows, longest, why in ((19, 8, "holds the id 19"), (20, 21, "holds 20 tokens, but at least 21 are needed")):
        with pytest.raises(UnreadableError, match=why):
            validate.read_tokens(str(path), "", rows, longest)


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
        assert failure_of(measured_pair.reference_dtype, NotRunError, subject, asked).message.endswith(dtype)


ALL_IDS, POSITIONS = Value("input_ids", "INT64", (None, None)), Value("position_ids", "INT64", (None, None))


def bindings(kind: graph_bindings.Kind, *, positions: bool = False) -> graph_bindings.Bindings:
    inputs = {graph_bindings.Role.IDS: ALL_IDS} | ({graph_bindings.Role.POSITIONS: POSITIONS} if positions else {})
    return graph_bindings.Bindings(kind, inputs, (), (), "logits")


def case(padding: int, ratio: float | None) -> Case:
    return Case("no past", 2, 4, 0, padding, 0, None, None, ratio, None, "" if ratio else "no kernel")


@pytest.mark.parametrize(
    ("sequence", "past", "padding", "steps", "group"),
    [(1, 0, 0, 0, "one token"), (2, 0, 0, 0, "no past"), (1, 3, 0, 0, "past"), (4, 3, 0, 2, "cached steps")],
)
def test_the_plot_of_a_batch(sequence: int, past: int, padding: int, steps: int, group: str) -> None:
    """Each batch goes to one plot."""
    assert batches.Cell(1, sequence, past, padding, 0, steps).group == group


def test_where_a_row_is_masked() -> None:
    """On either side or in the middle; each row has two masked positions fewer than the one before."""
    for layout, masked, group in [
        (batches.Layout.LEFT, [[0, 1, 2], [0]], "left padding"),
        (batches.Layout.RIGHT, [[6, 7, 8], [8]], "right padding"),
        (batches.Layout.HOLE, [[3, 4, 5], [3]], "hole in the mask"),
    ]:
        with in_case(layout, masked, group):
            cell = batches.Cell(2, 9, 0, 3, 0, layout=layout)
            batch = batches.make_batch(
                cell, graph_bindings.Kind.MASKED, SimpleNamespace(vocab_size=50, pad_token_id=7), types=False
            )
            assert [(row == 0).nonzero().flatten().tolist() for row in batch.mask] == masked
            assert (batch.ids[batch.mask == 0] == 7).all()
            assert torch.equal(batches.compared(cell, graph_bindings.Kind.MASKED, batch), batch.mask.bool())
            assert cell.group == group


def test_a_decoder_mask_is_fed_and_judged() -> None:
    """An encoder-decoder with a mask of its decoder is padded on both sides; without one the decoder is full."""
    value = Value("decoder_attention_mask", "INT64", ("b", "d"))
    bound = bindings(graph_bindings.Kind.SEQ2SEQ)
    config = SimpleNamespace(vocab_size=50, pad_token_id=7)
    cell = next(
        cell for cell in passes.make_work(bound, config).cells if cell.padding and cell.layout is batches.Layout.RIGHT
    )
    assert passes.make_work(bound, config).batch(cell).decoder_mask is None
    work = passes.make_work(replace(bound, inputs=bound.inputs | {graph_bindings.Role.DECODER_MASK: value}), config)
    batch = work.batch(cell)
    assert not batch.mask[0, -cell.padding :].any() and batch.mask[0, : -cell.padding].all()
    assert (batch.decoder_mask[0] == 0).sum() == min(cell.padding, cell.sequence - 1)
    assert torch.equal(batches.compared(cell, graph_bindings.Kind.SEQ2SEQ, batch), batch.decoder_mask.bool())


def test_which_models_are_padded_on_the_right() -> None:
    """Masked models and encoder-decoders, besides one shape on the left; decoders only on the left."""
    for kind, right in [
        (graph_bindings.Kind.MASKED, True),
        (graph_bindings.Kind.SEQ2SEQ, True),
        (graph_bindings.Kind.PAIR, True),
        (graph_bindings.Kind.CACHED, False),
    ]:
        with in_case(kind, right):
            padded = [cell.layout for cell in batches.cells(kind, 1 << 20) if cell.padding]
            assert (batches.Layout.RIGHT in padded) is right and batches.Layout.LEFT in padded


def test_which_graphs_take_a_hole() -> None:
    """Not a decoder that numbers its positions itself: how it counts those of a hole is its own choice."""
    for kind, positions, holes in [
        (graph_bindings.Kind.MASKED, False, True),
        (graph_bindings.Kind.SEQ2SEQ, False, True),
        (graph_bindings.Kind.CACHED, True, True),
        (graph_bindings.Kind.CACHED, False, False),
    ]:
        with in_case(kind, positions, holes):
            work = passes.make_work(bindings(kind, positions=positions), SimpleNamespace())
            assert any(cell.layout is batches.Layout.HOLE for cell in work.cells) is holes


def test_who_numbers_the_positions() -> None:
    """A masked model numbers its own, unless the graph asks for them; a decoder must be told."""
    for kind, positions, placed in [
        (graph_bindings.Kind.MASKED, False, False),
        (graph_bindings.Kind.MASKED, True, True),
        (graph_bindings.Kind.PLAIN, False, True),
        (graph_bindings.Kind.PLAIN, True, True),
    ]:
        with in_case(kind, positions, placed):
            assert passes.make_work(bindings(kind, positions=positions), None).placed is placed


def test_uncounted_padding_is_suspected() -> None:
    """Where rows with padding alone err, or do not run at all."""
    for padded, plain, suspected in [
        (None, 1.0, True),
        (judge.CELL_LIMIT + 1, 1.0, True),
        (judge.CELL_LIMIT, 1.0, False),
        (None, None, False),
        (judge.CELL_LIMIT + 1, judge.CELL_LIMIT + 1, False),
    ]:
        with in_case(padded, plain, suspected):
            found = list(causes.uncounted([case(2, padded), case(0, plain)], bindings(graph_bindings.Kind.PLAIN)))
            assert bool(found) is suspected
            assert (
                list(
                    causes.uncounted(
                        [case(2, padded), case(0, plain)], bindings(graph_bindings.Kind.PLAIN, positions=True)
                    )
                )
                == []
            )


def test_rows_and_blocks_are_drawn_where_a_cell_asks_for_them() -> None:
    """Rows are exact in every precision; a block lies in the first pass and not in the padding."""
    ids = torch.zeros(2, 7, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    roles = {
        graph_bindings.Role.EMBEDS: Value("inputs_embeds", "FLOAT", ("b", "s", 4)),
        graph_bindings.Role.POSITIONS: Value("position_ids", "INT64", (3, "b", "s")),
        graph_bindings.Role.BLOCKS: Value("token_type_ids", "INT64", ("b", "s")),
    }
    drawn = replace(bindings(graph_bindings.Kind.CACHED), inputs=roles, causal=1)
    plain_cell = batches.Cell(2, 4, 3, 2, 0)
    text = batches.with_rows(Batch(ids, mask), plain_cell, drawn)
    assert text.embeds is None and text.given_positions is None
    assert text.blocks.tolist() == [[1] * 7] * 2
    cell = replace(plain_cell, embeds=True, blocks=True)
    made = batches.with_rows(Batch(ids, mask), cell, drawn)
    assert made.blocks.tolist() == [[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]]
    assert batches.with_rows(Batch(ids, mask), replace(cell, past=0, sequence=7), drawn).blocks.tolist() == [
        [1, 1, 0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 0, 1],
    ]
    assert made.embeds.shape == (2, 7, 4) and torch.equal(made.embeds * 64, (made.embeds * 64).round())
    assert made.embeds.abs().max() <= 255 / 64 and made.embeds.std() > 0.5
    assert made.given_positions.shape == (3, 2, 7)
    assert {int(number) for number in made.given_positions.flatten()} == set(range(7))
    again = batches.with_rows(Batch(ids, mask), cell, drawn)
    assert torch.equal(again.embeds, made.embeds) and torch.equal(again.given_positions, made.given_positions)
    one = batches.with_rows(
        Batch(ids, mask), cell, replace(drawn, inputs={graph_bindings.Role.EMBEDS: roles[graph_bindings.Role.EMBEDS]})
    )
    assert one.given_positions is None and one.blocks is None


def test_the_gates_say_only_what_was_compared() -> None:
    """A graph of one fixed shape runs at what was fed. Of several absent tensors, the message has the first."""
    case = Case("no past", 1, 5, 0, "none", 0, None, None, None, None)
    (runs, *_) = judge.Judged("float32", (case,), {}, {}, 0).gates()
    assert (runs.passed, runs.sentence) == (True, "the graph runs at every shape that was fed")
    absent = [Lost(name, (8, 4), "F32", 128, True, "absent") for name in "ab"]
    for lost, says in ((absent, "2 required tensors; first: a"), (absent[:1], "1 required tensor: a")):
        (weights, _) = judge.identity_gates(Identity(2, 0, 256, 0, {}, tuple(lost), (), (), 1))
        assert weights.sentence == f"the graph lacks {says}"


def test_what_is_judged_of_each_case() -> None:
    """Errors of graph and floor, a case that does not run, and logits of another shape."""
    cells = [batches.Cell(1, 4, 0, 0, seed) for seed in range(5)]
    cells[4] = replace(cells[4], steps=2)
    torch.manual_seed(0)
    reference = torch.randn(4, 9, dtype=torch.float64)
    stored = {(side, cell): reference for side in ("reference", "floor", "graph") for cell in cells}
    for at, factor in ((0, 1.0), (1, 3.0), (4, 2.0)):
        noise = torch.randn(4, 9, dtype=torch.float64) * 1e-6
        stored["floor", cells[at]], stored["graph", cells[at]] = reference + noise, reference + factor * noise
    stored["graph", cells[2]] = reference[:3]
    work: Any = SimpleNamespace(cells=cells, seconds=math.inf, left_out=[replace(cells[0], past=3)] * 2)
    vars(work).update(tokens=lambda cell: cell.length, longest=8, own_shape=None)
    judged = judge.judge(work, SimpleNamespace(get=stored.get), {cells[3]: "no kernel"}, "float32")  # type: ignore[arg-type]
    assert [case.error for case in judged.cases] == [
        "", "", "logits of [3, 9] instead of [4, 9]", "no kernel", ""
    ]  # fmt: skip
    assert [case.ratio is None for case in judged.cases] == [False, False, True, True, False]
    assert [case.ratio for case in judged.cases if case.ratio] == pytest.approx([1, 3, 2], rel=1e-3)
    gates = {gate.name: gate for gate in judged.gates()}
    assert (gates["runs"].value, gates["runs"].passed) == (2, False)
    assert gates["runs"].sentence == (
        "the graph fails at batch 1, sequence 4, past 0, padding 0: logits of [3, 9] instead of [4, 9]"
    )
    assert gates["case_ratio"].value == pytest.approx(3, rel=1e-3) and gates["case_ratio"].passed
    assert gates["rms_ratio"].value == pytest.approx(5**0.5, rel=0.5) and not gates["rms_ratio"].passed
    assert gates["steps_rms_ratio"].value == pytest.approx(2, rel=1e-3)
    pools = judged.pools()
    assert pools.logits is not None and pools.steps is not None
    assert (pools.logits.graph.positions, pools.steps.graph.positions) == (8, 4)
    fed = judged.fed(work)
    assert (fed.budget, fed.cases, fed.positions, fed.tokens, fed.rows, fed.steps) == (None, 3, 12, 4, 1, 2)
    assert dict(fed.left_out) == {"past": 2, "longer prompts": 1} and fed.share == pytest.approx(1 - 0.05 ** (1 / 12))
    floors = max(case.floor.relative_rms for case in judged.cases if case.floor)
    assert fed.change == pytest.approx((judge.CELL_LIMIT + 2) * max(floors, 2**-23))
    assert {made.group: sum(made.graph) for made in judged.histograms()} == {"no past": 72, "cached steps": 36}
    assert judged.verdict((*gates.values(),), "rms_ratio") == (Verdict.FAILED, "")
    missing = judge.judge(work, SimpleNamespace(get=lambda _: None), {}, "float32")  # type: ignore[arg-type]
    assert {case.error for case in missing.cases} == {"no logits"} and not [*missing.histograms()]


def test_positions_where_torch_overflows_are_not_judged() -> None:
    """The verdict is not_run, whatever the graph computes there. A fault at another position fails."""
    cells = [batches.Cell(1, 4, 0, 0, seed) for seed in range(2)]
    noise = torch.Generator().manual_seed(0)
    reference = torch.randn(4, 9, dtype=torch.float64, generator=noise)
    reference[:, 8] = -math.inf  # a masked logit is finite enough
    error = torch.randn(4, 9, dtype=torch.float64, generator=noise) * 1e-6
    for overflow in (math.inf, -math.inf, math.nan):
        for faulty, rows, verdict in ((2, 3, "not_run"), (0, 3, "failed"), (0, 4, "not_run"), (None, 3, "not_run")):
            floor, graph = reference + error, reference + error
            floor[4 - rows :, 0] = overflow
            if faulty is not None:
                graph[faulty] *= -1
            stored = {("reference", cell): reference for cell in cells}
            stored |= {("floor", cells[0]): reference + error, ("graph", cells[0]): reference + error}
            stored |= {("floor", cells[1]): floor, ("graph", cells[1]): graph}
            work: Any = SimpleNamespace(cells=cells, seconds=math.inf, left_out=[], own_shape=None, longest=None)
            work.tokens = lambda cell: cell.length
            judged = judge.judge(work, SimpleNamespace(get=stored.get), {}, "float16")  # type: ignore[arg-type]
            gates = tuple(judged.gates())
            assert judged.verdict(gates, "rms_ratio")[0] == verdict, (overflow, faulty, rows)
            assert all(math.isfinite(gate.limit or 0) for gate in gates)
            fed = judged.fed(work)
            assert (fed.positions, fed.not_judged) == (8 - rows, rows) and math.isfinite(fed.change)
            assert (judged.cases[1].graph is None) == (rows == 4) and not judged.cases[1].error
    why = "torch's float16 logits are not finite at 3 of 8 positions, where the graph cannot be judged"
    assert judged.verdict(gates, "rms_ratio") == (Verdict.NOT_RUN, why)
    assert not list(causes.uncounted(judged.cases, bindings(graph_bindings.Kind.PLAIN)))


def test_a_limit_that_is_not_finite_judges_nothing() -> None:
    """Such a gate never passes, and the verdict is then not_run."""
    judged = judge.Judged("float16", (), {}, {}, 0)
    right = limited("rms_ratio", 1.0, 2.0, "an error")
    for limit in (math.inf, math.nan):
        gate = limited("kl", 0.0, limit, "a divergence")
        assert (gate.passed, gate.state) == (False, "not judged")
        why = "the gate kl has no finite limit: a divergence"
        assert judged.verdict((right, gate), "rms_ratio") == (Verdict.NOT_RUN, why)
    assert judged.verdict((right,), "rms_ratio") == (Verdict.PASSED, "")
    assert judged.verdict((right,), "kl") == (Verdict.FAILED, "")
    assert judged.verdict((limited("rms_ratio", math.nan, 2.0, ""), gate), "kl") == (Verdict.FAILED, "")
    parts = [QuantisedWeight(name, (name,), "MatMulNBits", 4, 32, True, 0.1, 0.1, worst)
             for name, worst in (("a", 1.0), ("b", math.nan))]  # fmt: skip
    assert validate.weight_gate(Quantised(tuple(parts), ())).state == "failed"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Value("logits_to_keep", "INT64", ()), np.array(0, np.int64)),
        (Value("num_logits_to_keep", "INT32", (1,)), np.array([0], np.int32)),
        (Value("cache_position", "INT32", ("s",)), np.array([3, 4], np.int32)),
        (Value("use_cache_branch", "BOOL", (1,)), np.array([True])),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_a_switch_is_fed(value: Value, expected: np.ndarray) -> None:
    """All logits, the places of the tokens, and the branch with a cache."""
    found = graph_bindings.switched(value, 3, 5)
    assert found.dtype == expected.dtype and found.shape == expected.shape and (found == expected).all()


def graph_of(nodes: Sequence[onnx.NodeProto], **numbers: float) -> onnx.ModelProto:
    """A graph of x with these numbers beside it."""
    tensors = {name: np.array([number], np.float32) for name, number in numbers.items()}
    return model(nodes, [value("x", [2])], [value("y", [2])], tensors)


def chain(*operators: tuple[str, str]) -> list[onnx.NodeProto]:
    """One operator behind the other, each with a number as its second input if it has a name."""
    names = ["x", *(f"v{at}" for at in range(len(operators) - 1)), "y"]
    return [op(kind, f"{names[at]} {number}", names[at + 1]) for at, (kind, number) in enumerate(operators)]


def likely(model: onnx.ModelProto, epsilons: Sequence[float] = (), factors: Sequence[float] = ()) -> list[str]:
    graph = SimpleNamespace(model=ir.serde.deserialize_model(model), embedding=None)
    subject = SimpleNamespace(pair=None, graph=graph, precision="float32")
    return list(causes.wrong_constant(subject, passes.ModelNumbers(frozenset(epsilons), tuple(factors))))  # type: ignore[arg-type]


def test_an_epsilon_is_added_before_a_root() -> None:
    """Any other epsilon than the model's is named, also an attribute and the default of an operator."""
    nodes = chain(("Add", "e"), ("Sqrt", ""), ("Mul", "e"))
    nodes[0].input[1] = "cast"
    nodes.insert(0, op("Cast", "e", "cast", to=TensorProto.FLOAT))
    norm = "a norm of the graph has epsilon 1e-06, but the model's class has 1e-05"
    assert likely(graph_of(nodes, e=1e-6), [1e-5], [1e-3]) == [norm]
    assert likely(graph_of(nodes, e=1e-5), [1e-5], [1e-3]) == []
    default = graph_of([op("LayerNormalization", "x w", "y", name="n")], w=0.7)
    assert likely(default, [1e-12], []) == ["a norm of the graph has epsilon 1e-05, but the model's class has 1e-12"]


SCALES = [
    # the constants of the graph, the model's factors, and the constant that is likely wrong
    ({"a": 5.66}, (32**0.5,), "a is 5.66, but the model has 5.65685"),
    ({"a": 0.6}, (8**-0.25, 8**-0.5), "a is 0.6, but the model has 0.594604"),
    ({"a": 5.66, "b": 32**0.5}, (32**0.5,), "a is 5.66, but the model has 5.65685"),
    ({"a": 5.75}, (32**0.5,), ""),
    ({"a": 12.05, "b": 0.3}, (12.0, 0.22), "a is 12.05, but the model has 12"),
    ({"a": 32**0.5, "b": 0.7}, (32**0.5,), ""),
    ({"a": 0.5, "b": 1.0}, (0.51, 1.01), ""),
]


@pytest.mark.parametrize(("constants", "factors", "wrong"), SCALES)
def test_the_nearest_pair_is_named(constants: dict[str, float], factors: tuple[float, ...], wrong: str) -> None:
    """A constant that the model lacks, and a factor that the graph lacks."""
    graph = graph_of(chain(*(("Mul", name) for name in constants)), **constants)
    assert likely(graph, [], factors) == ([f"the constant {wrong}"] if wrong else [])


def reason(source: Path, model: Path, fault: planted_faults.Fault, out: Path) -> str:
    """What parity says of the graph with the fault, which must fail."""
    report = tieconv.parity(planted_faults.plant(source, fault, out), model, provider="cpu", budget="1s")
    assert str(report.verdict) == "failed"
    return report.reason


@pytest.mark.slow
def test_the_wrong_constant_is_named(exported, tmp_path: Path) -> None:
    """The attention scale of BERT, and no constant for what is no constant's fault."""
    bert, path = exported("bert"), tmp_path / "model.onnx"
    found = reason(bert.graph, bert.model, ar.number(8**-0.25, 0.6), path)
    assert found.startswith("the constant val_") and found.endswith(" is 0.6, but the model has 0.594604")
    assert reason(bert.graph, bert.model, ar.two_swapped("val_69", "val_77"), path) == ""
    assert reason(bert.graph, bert.model, FAULTS["one element of a position table"][0], path) == ""
