"""Update the metadata of weight files: no entry may be wrong after the edits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tieconv.checkpoint import weight_file
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.checkpoint.write_plan import SetMetadata
from tieconv.plans.edits import Edits


def metadata_after(file: WeightFile, edits: Edits, names: set[str]) -> tuple[Mapping[str, str] | None, bool]:
    """Return the metadata of ``file`` without entries that the edits make wrong, and whether it changes.

    ``names`` are the tensors that the file will have.

    `safetensors.torch.save_model` records a dropped alias as ``{dropped name: kept name}``.
    """
    if file.metadata is None or file.gguf is not None:  # the metadata of GGUF names no tensors
        return file.metadata, False
    tensors = edits.checkpoint.tensors
    stored = edits.after()
    stale = [key for key, value in file.metadata.items() if value in tensors and (key in stored or value not in stored)]
    after = {key: value for key, value in file.metadata.items() if key not in stale}
    for key in stale:
        edits.operations.append(SetMetadata(file.name, key, None))
    changed = edits.checkpoint.format == "safetensors" and _mark_copies(file, edits, names, after)
    return after, changed or bool(stale)


def _mark_copies(file: WeightFile, edits: Edits, names: set[str], metadata: dict[str, str]) -> bool:
    """Record in ``metadata`` which ``names`` are kept copies. Return whether that changes the metadata."""
    before = weight_file.names_in(metadata)
    renamed = {edits.renames[name].to if name in edits.renames else name for name in before}
    after = (renamed | edits.kept_copies) & names
    if before == after:
        return False
    value = weight_file.entry(after) if after else None
    edits.operations.append(SetMetadata(file.name, weight_file.KEY, value))
    if value is None:
        del metadata[weight_file.KEY]
    else:
        metadata[weight_file.KEY] = value
    return True


def metadata_of_new(edits: Edits, shard: str, names: Iterable[str]) -> Mapping[str, str] | None:
    """Return the metadata of a new shard with ``names``. torch files have none."""
    if edits.checkpoint.format == "torch":
        return None
    copies = edits.kept_copies.intersection(names)
    if not copies:
        return {"format": "pt"}
    edits.operations.append(SetMetadata(shard, weight_file.KEY, weight_file.entry(copies)))
    return {"format": "pt", weight_file.KEY: weight_file.entry(copies)}
