"""Which format reads what, and the shard index: what is one, and edits that keep the rest of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import tieconv
from fixtures.hostile import CONFIG, INDEX, SINGLE, A, B, weights
from tests.patience import examples
from tests.refusals import failure_of
from tieconv.checkpoint.model_files import Checkpoint, Layout, Listing
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats import is_safetensors_alone, read_checkpoint
from tieconv.formats.directory import edit_index, read_index
from tieconv.formats.format_choice import FORMATS
from tieconv.sources.local import locate, open_files


def read(source: Path) -> Checkpoint:
    listing = locate(str(source))
    with open_files(Path(listing.root)) as files:
        return read_checkpoint(listing, files)


def refusal(source: Path) -> UnreadableError:
    error: UnreadableError = failure_of(read, UnreadableError, source)
    assert error.hint
    return error


def test_names_differ() -> None:
    assert len({candidate.name for candidate in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize("name", ["x.h5", "x.msgpack", "x.npz", "x.pte", "x.tflite", "x.ort", "x.nemo"])
def test_other_formats_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    for source in (tmp_path, tmp_path / name):
        error = refusal(source)
        assert error.code == "format.unsupported"
        assert name in error.message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt", "x.pth", "x.gguf", "x.onnx"])
def test_formats_that_are_read_answer_for_themselves(name: str, tmp_path: Path) -> None:
    """A file of a known ending that holds something else is that format's to refuse."""
    (tmp_path / name).write_bytes(b"x")
    ending = name.partition(".")[2]
    assert refusal(tmp_path / name).code.startswith(f"{ending if ending in ('gguf', 'onnx') else 'torch'}.")


def test_a_model_comes_before_other_formats(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "model.gguf"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / SINGLE).write_bytes(weights())
    assert read(tmp_path).layout is Layout.SINGLE


def test_what_is_below_is_not_the_model(tmp_path: Path) -> None:
    """Weights, a config and a pipe in directories below: only the config is a companion."""
    for name in ("unet", "sub", "pipe"):
        (tmp_path / name).mkdir()
    (tmp_path / "unet" / SINGLE).write_bytes(weights())
    assert refusal(tmp_path).code == "format.none"
    os.mkfifo(tmp_path / "pipe" / SINGLE)
    assert refusal(tmp_path).code == "format.none"
    (tmp_path / "sub" / CONFIG).write_text("not json")
    (tmp_path / SINGLE).write_bytes(weights())
    assert read(tmp_path).config is None
    assert read(tmp_path).special == (f"pipe/{SINGLE}",)


def test_the_hint_names_a_file_that_can_be_given(tmp_path: Path) -> None:
    for name in ("a b.safetensors", "c.safetensors"):
        (tmp_path / name).write_bytes(weights())
    error = refusal(tmp_path)
    assert error.code == "layout.ambiguous"
    assert error.hint == f"give the path of one of them: '{tmp_path}/a b.safetensors'"


def test_an_index_beside_stops_nobody_from_reading_one_file(tmp_path: Path) -> None:
    """Which of the two is the model is a question about the directory."""
    (tmp_path / SINGLE).write_bytes(weights())
    (tmp_path / INDEX).write_text("not json")
    assert [caution.code for caution in read(tmp_path).cautions] == ["layout.ambiguous"]
    assert [caution.code for caution in read(tmp_path / SINGLE).cautions] == ["layout.not-alone"]  # nothing that blocks


def test_an_index_of_the_one_file(tmp_path: Path) -> None:
    """mlx-lm writes one for every model. An index of another file, or of two files, leaves open which is the model."""
    (tmp_path / SINGLE).write_bytes(weights())
    names = list(read(tmp_path).tensors)
    cases = {
        "its file": (dict.fromkeys(names, SINGLE), []),
        "a name too many": (dict.fromkeys([*names, "x"], SINGLE), ["index.absent-tensor"]),
        "a name too few": ({"x": SINGLE}, ["index.absent-tensor", "index.extra-tensor"]),
        "another file": (dict.fromkeys(names, "other.safetensors"), ["layout.ambiguous"]),
        "two files": ({**dict.fromkeys(names, SINGLE), "x": "other.safetensors"}, ["layout.ambiguous"]),
    }
    for case, (entries, codes) in cases.items():
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": entries}))
        checkpoint = read(tmp_path)
        assert [caution.code for caution in checkpoint.cautions] == codes, case
        assert checkpoint.entry == SINGLE, case


NAMES = st.sampled_from(
    [SINGLE, INDEX, "model-00001-of-00002.safetensors", "x.safetensors", "pytorch_model.bin", "training_args.bin",
     "pytorch_model.bin.index.json", "x.gguf", "x.pt", "x.pth", "__0_0.distcp", ".metadata", "adapter_config.json",
     "adapter_model.safetensors", "config.json", "README.md", "sub/x.bin"]
)  # fmt: skip


@given(st.sets(NAMES, min_size=1), st.booleans())
def test_safetensors_alone_is_what_every_format_agrees_on(names: set[str], named: bool) -> None:
    """The short way is taken only where nothing else claims the model, and no other format stands beside it."""
    ordered = sorted(names)
    listing = Listing("x", "/x", ordered[0] if named else None, dict.fromkeys(ordered, 1), ())
    if is_safetensors_alone(listing):
        assert [candidate.name for candidate in FORMATS if candidate.claims(listing)] == ["safetensors"]
        whole = replace(listing, named=None)
        assert [candidate.name for candidate in FORMATS if candidate.claims(whole)] == ["safetensors"]


def test_an_ordinary_model_takes_the_short_way(tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_bytes(weights())
    (tmp_path / CONFIG).write_text("{}")
    assert is_safetensors_alone(locate(str(tmp_path)))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert not is_safetensors_alone(locate(str(tmp_path)))


BESIDE = {"peft": "adapter_config.json", "gguf": "model.gguf", "dcp": ".metadata", "torch": "pytorch_model.bin"}
"""A file by which each format but safetensors claims a directory."""


def test_each_format_is_seen_beside_safetensors() -> None:
    """The short way to safetensors looks for the names of every other format."""
    names = {candidate.name for candidate in FORMATS} - {"safetensors"}
    assert names == BESIDE.keys(), "say in `BESIDE` and in `_OF_OTHERS` of tieconv/formats how its files are named"
    for name, file in BESIDE.items():
        listing = Listing("x", "/x", None, {SINGLE: 1, file: 1}, ())
        assert not is_safetensors_alone(listing), f"`_OF_OTHERS` of tieconv/formats lacks the names of {name}"


def test_each_format_is_in_the_schema() -> None:
    """`inspect --json` may print the name of every format that is read, and of a module in memory."""
    schema = json.loads((Path(tieconv.__file__).parent / "reporters/schemas/inspect.schema.json").read_text())
    names = {candidate.name for candidate in FORMATS} | {"onnx", "live"}
    assert set(schema["properties"]["model"]["properties"]["format"]["enum"]) == names


tensors = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
maps = st.dictionaries(tensors, st.sampled_from([A, B, "model-head.safetensors", "x"]), min_size=1, max_size=8)
extras = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {"total_size": st.integers(0, 10**12)},
            optional={"total_parameters": st.integers(0, 10**12), "format": st.just("pt")}
        ),
        "zz": st.just([1, None]),
    },
)  # fmt: skip


@given(maps, extras, st.sampled_from([None, 2, "\t"]), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_reads(weight_map: dict[str, str], extra: dict[str, object], indent: int | str | None, escaped: bool) -> None:
    text = json.dumps({**extra, "weight_map": weight_map}, indent=indent, ensure_ascii=escaped)
    value, index = read_index(text.encode(), "i")
    assert index == weight_map
    assert value == {**extra, "weight_map": weight_map}


@given(maps, extras, st.sampled_from([None, 2, "\t"]), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_edits(
    weight_map: dict[str, str], extra: dict[str, object], indent: int | str | None, data: st.DataObject
) -> None:
    """Dropped names are gone, added ones stand, totals follow, and nothing else changes."""
    text = json.dumps({**extra, "weight_map": weight_map}, indent=indent)
    drop = {name: weight_map[name] for name in data.draw(st.lists(st.sampled_from(sorted(weight_map)), unique=True))}
    add = data.draw(st.dictionaries(tensors, st.just("new.safetensors"), max_size=3))
    edited = json.loads(edit_index(text, drop=drop, add=add, total_size=7, parameters_added=-3))
    remaining = {name: shard for name, shard in weight_map.items() if name not in drop}
    assert edited["weight_map"] == remaining | add
    expected = json.loads(json.dumps(extra))
    if "metadata" in expected:
        expected["metadata"]["total_size"] = 7
        if "total_parameters" in expected["metadata"]:
            expected["metadata"]["total_parameters"] -= 3
    assert {key: value for key, value in edited.items() if key != "weight_map"} == expected


@given(maps, st.sampled_from([None, 2, "\t"]), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_an_edit_and_its_reverse(weight_map: dict[str, str], indent: int | str | None, data: st.DataObject) -> None:
    """A name that is put in and taken out leaves the text as it was."""
    text = json.dumps(
        {"metadata": {"total_size": 5}, "weight_map": weight_map}, indent=indent, sort_keys=data.draw(st.booleans())
    )
    name = data.draw(tensors.filter(lambda name: name not in weight_map))
    longer = edit_index(text, drop={}, add={name: A}, total_size=9, parameters_added=0)
    assert edit_index(longer, drop={name: A}, add={}, total_size=5, parameters_added=0) == text


def test_no_edit_is_no_change() -> None:
    text = '{ "weight_map" :{"a":"b" }, "metadata":{ "total_size":5}}\n\n'
    assert edit_index(text, drop={}, add={}, total_size=5, parameters_added=0) == text


@pytest.mark.parametrize("shard", ["../x", "/x", "a/b", "a\\b", "~x", ".", "..", "a\0b"])
def test_shards_that_leave_the_directory(shard: str) -> None:
    index = json.dumps({"weight_map": {"t": shard}}).encode()
    assert failure_of(read_index, UnsafePathError, index, "i").code == "index.escape"


@pytest.mark.parametrize("shard", ["...", "a..b", ".hidden", "model~", "C:x", "über.safetensors"])
def test_shards_that_only_look_odd(shard: str) -> None:
    assert read_index(json.dumps({"weight_map": {"t": shard}}).encode(), "i")[1] == {"t": shard}


@given(st.binary(max_size=40) | tensors.map(str.encode))
@settings(max_examples=examples(200), deadline=None)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableError):
        read_index(data, "i")
