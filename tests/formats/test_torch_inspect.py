"""What an inspection says about tensors that share storages: aliases, views, slices, overlaps and slack."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tieconv
from tests.formats.test_torch_read import DTYPES, read, save, state_dicts
from tests.patience import examples
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.inspection.equality import relate
from tieconv.inspection.storage import view_storages
from tieconv.reporters.text.inspect_text import render
from tieconv.sources.local import open_files

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}


def table(rows: int = 8, columns: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def inspect(folder: Path, state: Any, depth: str = "candidates") -> Inspection:
    folder.mkdir(exist_ok=True)
    save(folder / "pytorch_model.bin", state)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return tieconv.inspect(folder, depth=depth)


def head(inspection: Inspection) -> tuple[State, Any]:
    (tie,) = inspection.ties
    member = next(member for member in tie.members if member.name == HEAD)
    return member.state, member.relation.to_dict()


@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
def test_alias_and_transposed_view_need_no_reading(depth: str, tmp_path: Path) -> None:
    """Where the bytes lie says it all, at any depth; neither wastes a byte."""
    embedding = table()
    alias = inspect(tmp_path / "alias", {EMBED: embedding, HEAD: embedding}, depth)
    assert head(alias) == (State.ALIASED, {})
    turned = inspect(tmp_path / "turned", {EMBED: embedding, HEAD: embedding.T}, depth)
    assert head(turned) == (State.TRANSPOSED, {"view": True})
    for member in (alias, turned):
        assert member.ties[0].bytes_wasted == 0
        assert (member.bytes_stored, member.bytes_unique) == (128, 128)
        assert member.checkpoint.parameters == 32 and "2 tensors, 32 parameters, 128 B" in render(member)
    assert alias.ties[0].consistent is True
    assert turned.ties[0].consistent is False


def test_same_shape_view_is_no_alias(tmp_path: Path) -> None:
    """A square matrix and its transpose have one storage and one shape."""
    embedding = table(6, 6)
    assert head(inspect(tmp_path / "square", {EMBED: embedding, HEAD: embedding.T}))[0] is State.TRANSPOSED
    assert head(inspect(tmp_path / "rows", {EMBED: embedding[:4], HEAD: embedding[2:]}))[0] is State.DISTINCT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t.T.contiguous().T,  # column-major
        lambda t: torch.cat([t, t + 1], 1)[:, : t.shape[1]],  # columns of a wider matrix
        lambda t: t.repeat_interleave(2, 0)[::2],  # every second row
        lambda t: torch.stack([t, t + 1], 2)[:, :, 0],  # every second element
    ],
    ids=["column-major", "columns", "rows", "elements"],
)
def test_a_strided_copy_is_identical(layout: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    """A view in a storage of its own is read as the matrix that it is, whatever its strides."""
    embedding = table(300, 40).to(dtype)
    strided_copy = layout(embedding.clone())
    assert torch.equal(strided_copy, embedding)
    assert not strided_copy.is_contiguous()
    assert head(inspect(tmp_path / "equal", {EMBED: embedding, HEAD: strided_copy})) == (State.IDENTICAL, {})
    turned = layout(embedding.clone()).T
    assert head(inspect(tmp_path / "turned", {EMBED: embedding, HEAD: turned}))[0] is State.TRANSPOSED
    changed = layout(embedding.clone())
    changed[299, 39] += 1
    state, detail = head(inspect(tmp_path / "near", {EMBED: embedding, HEAD: changed}))
    assert state is State.NEAR
    assert detail["rows_differing"] == 1
    scaled = layout(embedding * 2)
    assert head(inspect(tmp_path / "scaled", {EMBED: embedding, HEAD: scaled}))[0] is State.SCALED


@settings(max_examples=examples(60), deadline=None)
@given(state=state_dicts(), seed=st.integers(0, 99))
def test_relation_agrees_with_torch(
    state: dict[str, torch.Tensor], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`aliased` exactly for one view of one storage, else `identical` exactly for equal bytes."""
    folder = tmp_path_factory.mktemp("torch")
    path = save(folder / "model.pt", state)
    records = read(path).tensors
    names = list(state)
    pick = random.Random(seed)
    left, right = pick.choice(names), pick.choice(names)
    a, b = (torch.load(path, weights_only=True)[name] for name in (left, right))
    with open_files(folder) as files:
        evidence = relate(files, records[left], records[right])
    same_form = a.dtype == b.dtype and a.shape == b.shape
    bits = same_form and a.contiguous().view(-1).tolist() == b.contiguous().view(-1).tolist()
    if evidence.state is State.ALIASED:
        assert same_form
        assert records[left].storage == records[right].storage
    if evidence.state in (State.ALIASED, State.IDENTICAL):
        assert bits
    elif same_form and evidence.state is not State.TRANSPOSED and DTYPES[a.dtype] not in ("F32", "F64", "F16", "BF16"):
        assert not bits or not torch.isfinite(a.to(torch.float32)).all()


def storage_of(folder: Path, state: Any) -> Any:
    return view_storages(read(save(folder / "model.pt", state)))


def test_kinds_of_sharing(tmp_path: Path) -> None:
    """Each pair by what it shares: nothing, the same elements, a transpose, a reshape, a slice, an overlap."""
    base = table(10, 4)
    cases: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        "aliased": (base, base),
        "transposed": (base, base.T),
        "view": (base, base.view(4, 10)),
        "slice": (base, base[2:5]),
        "overlap": (base[:6], base[4:]),
    }
    for kind, (left, right) in cases.items():
        (overlap,) = storage_of(tmp_path, {"a": left, "b": right}).overlaps
        assert (overlap.kind, set(overlap.tensors)) == (kind, {"a", "b"})
    for left, right in ((base[:5], base[5:]), (base[:, :2], base[:, 2:]), (base[::2], base[1::2]), (base[:0], base)):
        assert storage_of(tmp_path, {"a": left, "b": right}).overlaps == ()


def test_nested_overlaps_are_one_group(tmp_path: Path) -> None:
    """A short tensor within a long one does not hide that the long one reaches into the next."""
    base = torch.arange(100.0)
    use = storage_of(tmp_path, {"long": base[:60], "short": base[10:20], "late": base[50:90], "apart": base[90:]})
    (overlap,) = use.overlaps
    assert set(overlap.tensors) == {"long", "short", "late"}
    assert overlap.kind == "overlap"
    assert use.slack == ()


def test_small_view_of_a_large_storage_is_slack(tmp_path: Path) -> None:
    """160 bytes that drag 3.2 MB along."""
    large = torch.zeros(800_000)
    evidence = inspect(tmp_path / "model", {EMBED: table(), "model.norm.weight": large[100:140]})
    assert evidence.storage is not None
    assert evidence.storage.unused == 3_200_000 - 160
    assert evidence.bytes_stored == 3_200_000 + 128
    assert evidence.bytes_unique == 160 + 128
    assert "STO003" in [finding.rule for finding in evidence.findings]
    assert "3.2 MB used by no tensor" in render(evidence)
    document = evidence.to_dict()["storage"]
    assert isinstance(document, dict)
    assert document["bytes_unused"] == 3_200_000 - 160


def test_column_of_a_matrix_leaves_slack_between_its_elements(tmp_path: Path) -> None:
    """The span of a strided view is not what it uses; an expanded one uses what it repeats."""
    use = storage_of(tmp_path, {"column": table(100, 50)[:, 0]})
    assert use.unused == 100 * 50 * 4 - 400
    use = storage_of(tmp_path, {"expanded": torch.ones(4).expand(1000, 4)})
    assert use.unused == 0


def test_duplicates_count_no_shared_byte(tmp_path: Path) -> None:
    """Aliases outside the tied groups are listed and waste nothing; a transposed view neither."""
    second_table = table(8, 4, seed=5)
    state = {EMBED: table(), "a.weight": second_table, "b.weight": second_table, "c.weight": second_table.T}
    evidence = inspect(tmp_path / "model", state, "full")
    assert [(entry.kind, entry.tensors, entry.bytes_wasted) for entry in evidence.duplicates] == [
        (State.ALIASED, ("a.weight", "b.weight"), 0),
        (State.TRANSPOSED, ("a.weight", "c.weight"), 0),
    ]
    assert evidence.bytes_unique == evidence.bytes_stored


def test_reading_a_view_is_bounded(tmp_path: Path) -> None:
    """No read asks for more than a few megabytes at a time."""
    embedding = table(4096, 1024)
    path = save(tmp_path / "model.pt", {EMBED: embedding, HEAD: embedding.T.contiguous().T})
    records = read(path).tensors
    asked = []

    class Reader:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
            asked.append(len(buffer))
            self.inner.read_into(span, offset, buffer)

    with open_files(tmp_path) as files:
        assert relate(Reader(files), records[EMBED], records[HEAD]).state is State.IDENTICAL
    assert max(asked) <= 8 * 1024 * 1024
    assert sum(asked) < 20 * embedding.nbytes


def test_settings_of_other_trainers_are_dropped(tmp_path: Path) -> None:
    """fairseq and OpenNMT store an `argparse.Namespace`: tieconv drops it, and torch's safe loader refuses it."""
    options = argparse.Namespace(arch="transformer", inner=argparse.Namespace(dropout=[0.1]))
    decoder = {"decoder.embed_tokens.weight": table(), "decoder.output_projection.weight": table()}
    save(tmp_path / "fairseq.pt", {"args": options, "model": decoder, "extra_state": {"epoch": 1}})
    evidence = tieconv.inspect(tmp_path / "fairseq.pt")
    assert evidence.family.convention == "fairseq"
    assert evidence.ties[0].members[1].state is State.IDENTICAL
    assert [entry.rule for entry in evidence.findings] == ["FMT001", "STO005", "TIE012"]
    assert "argparse.Namespace" in evidence.findings[0].message


def test_a_copy_of_averages_is_a_second_model(tmp_path: Path) -> None:
    """EMA weights lie beside the model under three names, in two forms: the report says whose tie it gives."""
    model = {EMBED: table(), HEAD: table()}
    for number, state, second in (
        (1, model | {f"ema.{name}": tensor + 1 for name, tensor in model.items()}, "ema (2 tensors)"),
        (2, model | {"model_ema.modelembed_tokensweight": table() + 1}, "model_ema (1 tensor)"),
        (3, {"model": model, "ema_model": {name: tensor + 1 for name, tensor in model.items()}}, "ema_model"),
    ):
        findings = inspect(tmp_path / str(number), state).findings
        message = " ".join(entry.message for entry in findings if entry.rule == "STO005")
        assert f"The file holds two models: {second} is an average of weights (EMA)" in message, (number, findings)
        assert number == 3 or "The tie is that of the other tensors." in message, number
    only = inspect(tmp_path / "only", {f"ema.{name}": tensor for name, tensor in model.items()})
    assert not any("two models" in entry.message for entry in only.findings)


def test_names_of_two_more_conventions(tmp_path: Path) -> None:
    """`tok_embedding` with `fc_out`, and Gemma's own `embedder`, are an embedding and a head."""
    save(tmp_path / "a.pt", {"tok_embedding.weight": table(), "fc_out.weight": table(), "norm.weight": table(4, 4)})
    (tie,) = tieconv.inspect(tmp_path / "a.pt").ties
    assert [(member.name, member.state) for member in tie.members] == [
        ("tok_embedding.weight", State.CANONICAL),
        ("fc_out.weight", State.IDENTICAL),
    ]
    save(tmp_path / "b.pt", {"embedder.weight": table(), "layers.0.weight": table(4, 4)})
    embedding = tieconv.inspect(tmp_path / "b.pt").head.input_embedding
    assert embedding is not None and embedding.name == "embedder.weight"
