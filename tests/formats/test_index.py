"""The shard index: what is one, and edits that keep the rest of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.hostile import A, B
from tests.patience import examples
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats.directory import edit_index, read_index

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
    with pytest.raises(UnsafePathError) as caught:
        read_index(json.dumps({"weight_map": {"t": shard}}).encode(), "i")
    assert caught.value.code == "index.escape"


@pytest.mark.parametrize("shard", ["...", "a..b", ".hidden", "model~", "C:x", "über.safetensors"])
def test_shards_that_only_look_odd(shard: str) -> None:
    assert read_index(json.dumps({"weight_map": {"t": shard}}).encode(), "i")[1] == {"t": shard}


@given(st.binary(max_size=40) | tensors.map(str.encode))
@settings(max_examples=examples(200), deadline=None)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableError):
        read_index(data, "i")
