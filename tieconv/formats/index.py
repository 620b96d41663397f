"""Read and edit the shard index `*.index.json`, which maps each tensor to its shard."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats.json.members import BEHIND_STRINGS, LARGEST_MEMBER, Members
from tieconv.formats.json.strict import collector_paused, loads, refuse
from tieconv.formats.limits import WINDOW, NameCount
from tieconv.text import shown

LIMIT = 100_000_000
DIGITS = 600
"""The most digits of an integer in an index. Python reads this many under any setting."""


def read_index(data: bytes, name: str) -> tuple[Mapping[str, object], dict[str, str]]:
    """Return the content of the index and its ``weight_map`` (tensor name → shard file name).

    Raises `UnsafePathError` for a shard outside the index's directory. Raises `UnreadableError` for any other
    malformed index.
    """
    value = read_value(data, name)
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableError(
            f"{shown(name)} has no weight_map", "an index maps each tensor to its shard", "index.no-map"
        )
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard:
            raise UnreadableError(
                f"{shown(name)} maps tensor {shown(tensor)} to a value that is not a file name",
                "fetch the index again, or rebuild it from the shards",
                "index.shard-name",
            )
        if "/" in shard or "\\" in shard or "\0" in shard or shard in {".", ".."} or shard.startswith("~"):
            raise UnsafePathError(
                f"{shown(name)} maps tensor {shown(tensor)} to {shown(shard)}, which is not a file of its directory",
                "do not trust this checkpoint: shards must lie in the directory of their index",
                "index.escape",
            )
    return value, weight_map


def read_value(data: bytes, name: str) -> dict[str, object]:
    """Return the content of the index. Reads the ``weight_map`` of a large index in batches to save memory."""
    start = _MAP.search(data) if WINDOW < len(data) <= LIMIT else None
    if start is None:
        return loads(data, name, limit=LARGEST_MEMBER, digits=DIGITS)
    members = Members(lambda size, at: data[at : at + size], start.end() - 1, len(data), name, BEHIND_STRINGS)
    weight_map: dict[str, object] = {}
    shards: dict[object, object] = {}
    names = NameCount()
    with collector_paused():
        for batch in members.batches():
            if not batch.keys().isdisjoint(weight_map):
                repeated = min(batch.keys() & weight_map)
                refuse(name, f"the key {shown(repeated)} is repeated", "json.refused")
            if excess := names.excess(batch, len(batch)):
                raise UnreadableError(f"{shown(name)} holds {excess}", "split the model", "index.tensors")
            for tensor, shard in batch.items():
                weight_map[tensor] = shards.setdefault(shard, shard) if isinstance(shard, str) else shard
    before, behind = (memoryview(data)[: start.start()], memoryview(data)[members.position :])
    if len(before) + len(behind) > LARGEST_MEMBER:
        refuse(name, f"it holds more than {LARGEST_MEMBER:,} bytes beside its weight_map", "json.too-large")
    value = loads(b"".join((before, b'"weight_map":0', behind)), name, limit=LARGEST_MEMBER + WINDOW, digits=DIGITS)
    if value.get("weight_map") != 0:
        refuse(name, "its first weight_map is inside another value", "json.refused")
    return {**value, "weight_map": weight_map}


_MAP = re.compile(rb'"weight_map"\s*:\s*\{')


def absent_shard(names: str, shard: str, code: str, hint: str = "") -> UnreadableError:
    """Return the error for a missing shard. ``names`` starts the sentence that ends with the shard's name."""
    return UnreadableError(f"{names} {shown(shard)}, which is missing", f"fetch the missing file{hint}", code)


def edit_index(
    text: str, *, drop: Mapping[str, str], add: Mapping[str, str], total_size: int, parameters_added: int
) -> str:
    """Return ``text`` with entries dropped and added and with new totals. Nothing else changes.

    ``total_size`` counts tensor bytes. ``parameters_added`` (elements, may be negative) is added to
    ``total_parameters`` if the index has it. That count excludes buffers, which a header does not mark, so tieconv
    cannot compute it anew.
    """
    from tieconv.formats.json import edit as json_edit  # reading an index needs no editor

    value = json.loads(text)
    if drop:
        text = json_edit.remove_keys(text, ("weight_map",), drop)
    for name, shard in add.items():
        text = json_edit.set_value(text, ("weight_map", name), shard)
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        text = json_edit.set_value(text, ("metadata", "total_size"), total_size)
        parameters = metadata.get("total_parameters")
        if isinstance(parameters, int):
            text = json_edit.set_value(text, ("metadata", "total_parameters"), parameters + parameters_added)
    return text
