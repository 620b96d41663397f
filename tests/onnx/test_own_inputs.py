"""Inputs that a user gives: an npz file, a length and a number of rows."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.run import run
from tests.onnx import faults
from tests.onnx.planted import masks
from tieconv.errors import SettingsError, UnreadableError
from tieconv.onnx.parity.batches import LONG, single_seed_cells
from tieconv.onnx.parity.bindings import Bindings, Kind, Padding, Role
from tieconv.onnx.parity.graph_file import Value
from tieconv.onnx.parity.measured_pair import read_inputs

CONFIG = SimpleNamespace(vocab_size=50, type_vocab_size=2)
NAMES = {role: Value(str(role), "INT64", (None, None)) for role in Role}
IDS = np.array([[3, 4, 5], [6, 7, 8]])


def bindings(*roles: Role, padding: Padding = Padding.FRONT) -> Bindings:
    return Bindings(Kind.CACHED, {role: NAMES[role] for role in roles}, (), (), "logits", padding)


DECODER = (Role.IDS, Role.MASK, Role.POSITIONS)


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "in.npz", **arrays)
    return str(folder / "in.npz")


def test_what_is_not_given_is_counted(tmp_path: Path) -> None:
    """Only token ids: all are tokens of the first type, and the positions follow the mask."""
    batch = read_inputs(saved(tmp_path, input_ids=IDS.astype("i4")), bindings(*DECODER, Role.TYPES), CONFIG, 10)
    assert batch.ids.tolist() == IDS.tolist() and batch.ids.dtype is torch.int64
    assert batch.mask.all() and batch.types is not None and not batch.types.any()
    assert batch.positions.tolist() == [[0, 1, 2]] * 2
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    given = read_inputs(saved(tmp_path, input_ids=IDS, attention_mask=mask), bindings(*DECODER), CONFIG, 10)
    assert given.mask.tolist() == mask.tolist() and given.positions.tolist() == [[0, 0, 1], [0, 1, 2]]
    placed = read_inputs(saved(tmp_path, input_ids=IDS, position_ids=IDS), bindings(*DECODER), CONFIG, 10)
    assert placed.positions.tolist() == IDS.tolist() and placed.until(2).positions.tolist() == IDS[:, :2].tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"attention_mask": IDS}, "has no array input_ids"),
        (
            {"input_ids": IDS, "past_key_values.0.key": IDS},
            "has an array past_key_values.0.key, but parity takes arrays",
        ),
        ({"input_ids": IDS[0]}, r"of int64 \[3\] instead of integers \[batch, sequence\]"),
        ({"input_ids": IDS[:0]}, "instead of integers"),
        ({"input_ids": IDS.astype("f4")}, "of float32"),
        ({"input_ids": IDS + 45}, "has the value 53 in input_ids, outside of 0 to 49"),
        ({"input_ids": IDS - 4}, "has the value -1 in input_ids"),
        ({"input_ids": IDS, "attention_mask": IDS}, "has the value 8 in attention_mask, outside of 0 to 1"),
        ({"input_ids": IDS, "attention_mask": IDS[:, :2] * 0 + 1}, "attention_mask of 2 × 2 beside token ids of 2 × 3"),
        ({"input_ids": IDS, "attention_mask": IDS * 0}, "has a row without a token"),
        ({"input_ids": IDS, "position_ids": IDS + 2}, "has the value 10 in position_ids, outside of 0 to 9"),
        ({"input_ids": np.tile(IDS, 4)}, "has sequences of 12 tokens, but the model has 10 positions"),
        ({"input_ids": np.array([{"a": 1}], object)}, "is not an npz file of number arrays"),
    ],
)
def test_what_cannot_be_fed_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    """One sentence with the file and the array; objects are never unpickled."""
    with pytest.raises(UnreadableError, match=message) as refused:
        read_inputs(saved(tmp_path, **arrays), bindings(*DECODER), CONFIG, 10)
    assert "in.npz" in refused.value.message and refused.value.hint


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    """A text and an array alone; a file that is absent cannot be read."""
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", IDS)
    for name in ("text.npz", "one.npy"):
        with pytest.raises(UnreadableError, match=f"{name} is not an npz file"):
            read_inputs(str(tmp_path / name), bindings(*DECODER), CONFIG, 10)
    with pytest.raises(SettingsError, match=r"absent\.npz cannot be read: no such file"):
        read_inputs(str(tmp_path / "absent.npz"), bindings(*DECODER), CONFIG, 10)


def test_sizes_that_a_file_states_are_not_believed(tmp_path: Path) -> None:
    """A header of 80 TB beside no data, and zeros that unpack to more than the limit: nothing is allocated."""
    for name, shape, zeros in (("header", (1_000_000, 10_000_000), 0), ("packed", (4000, 4000), 128_000_000)):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
        path = tmp_path / f"{name}.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("input_ids.npy", header.getvalue() + bytes(zeros))
        with pytest.raises(UnreadableError) as refused:
            read_inputs(str(path), bindings(Role.IDS), SimpleNamespace(vocab_size=100), 100)
        message = refused.value.message
        assert {"header": "states more values than the file holds", "packed": "takes at most 100 MB"}[name] in message


def test_a_text_is_not_called_a_pickle(tmp_path: Path) -> None:
    """The refusal of a file that is not an archive names no option that would load it unsafely."""
    (tmp_path / "in.npz").write_text("text")
    with pytest.raises(UnreadableError) as refused:
        read_inputs(str(tmp_path / "in.npz"), bindings(Role.IDS), SimpleNamespace(vocab_size=100), 100)
    assert "pickle" not in refused.value.message


def test_a_graph_without_padding(tmp_path: Path) -> None:
    """Padding that the graph does not take is refused."""
    file = saved(tmp_path, input_ids=IDS, attention_mask=np.array([[0, 1, 1], [1, 1, 1]]))
    with pytest.raises(UnreadableError, match="has padding, which this graph does not take"):
        read_inputs(file, bindings(*DECODER, padding=Padding.NONE), CONFIG, 10)


def test_both_sides_of_an_encoder_decoder(tmp_path: Path) -> None:
    """The decoder may have another length, but not another number of rows."""
    both = bindings(Role.IDS, Role.MASK, Role.DECODER_IDS)
    batch = read_inputs(saved(tmp_path, input_ids=IDS, decoder_input_ids=IDS[:, :2]), both, CONFIG, 10)
    assert batch.decoder_ids.tolist() == IDS[:, :2].tolist() and batch.decoder_mask is None
    with pytest.raises(UnreadableError, match="has no array decoder_input_ids"):
        read_inputs(saved(tmp_path, input_ids=IDS), both, CONFIG, 10)
    with pytest.raises(UnreadableError, match="decoder_input_ids of 1 × 3"):
        read_inputs(saved(tmp_path, input_ids=IDS, decoder_input_ids=IDS[:1]), both, CONFIG, 10)


@pytest.mark.parametrize("kind", Kind)
def test_a_length_and_a_number_of_rows(kind: Kind) -> None:
    """They come besides the usual shapes, in one pass and with a cache."""
    usual = list(single_seed_cells(kind, 1 << 20))
    more = [cell for cell in single_seed_cells(kind, 1 << 20, length=300, batch=9) if cell not in usual]
    assert {max(cell.sequence, cell.length if kind is Kind.CACHED else 0) for cell in more if cell.batch == 1} == {300}
    assert {cell.batch for cell in more} == {1, 9}
    assert len(list(single_seed_cells(kind, 1 << 20, length=LONG, batch=6))) == len(usual)


@pytest.mark.slow
def test_a_fault_that_only_the_users_inputs_reach(exported, tmp_path: Path) -> None:
    """Rows from the tenth on read another mask: nothing usual sees it, and a batch of the user does."""
    made = exported("llama")
    graph = faults.plant(made.graph, masks.one_row(9), tmp_path / "model.onnx")
    mask = np.ones((12, 6), int)
    mask[10:, :3] = 0
    file = saved(tmp_path, input_ids=np.arange(72).reshape(12, 6), attention_mask=mask)
    page = tmp_path / "page.html"
    told = json.loads(run("parity --provider cpu --json", graph, made.model, "--inputs", file, "--html", page).stdout)
    assert {case["group"] for case in told["cases"] if case["ratio"] > 5} == {"own inputs"}
    assert [(case["batch"], case["sequence"], case["past"]) for case in told["cases"][:2]] == [(12, 6, 0), (12, 1, 5)]
    assert "own inputs" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_fault_that_only_more_rows_reach(exported, tmp_path: Path) -> None:
    """The same with a number of rows."""
    made = exported("llama")
    graph = faults.plant(made.graph, masks.one_row(9), tmp_path / "model.onnx")
    told = json.loads(run("parity --provider cpu --json", graph, made.model, "--batch", "12").stdout)
    assert {case["batch"] for case in told["cases"] if case["ratio"] > 5} == {12}


def test_a_length_beyond_the_positions(exported) -> None:
    """Refused with the number of positions."""
    made = exported("llama")
    told = run("parity --provider cpu --length 129", made.graph, made.model)
    assert told.exit_code == 2
    assert "--length 129 is more than the 128 positions of the model" in told.stderr
