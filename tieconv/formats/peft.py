"""Read a PEFT adapter: `adapter_config.json` and the tensors that it adds to a base model. Read only.

For a module that the adapter changes, it stores tensors such as `base_model.model.<module>.lora_A.weight`. A module
that the adapter replaces is stored whole, under its usual name.
Source: peft 0.21 (`PeftConfigMixin`, `save_peft_model_state_dict`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tieconv.checkpoint.model_files import OPENED, Adapter, Caution, Checkpoint, Files, Layout, Listing
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.directory import CONFIG_LIMIT, read_bytes
from tieconv.formats.json.strict import loads
from tieconv.formats.safetensors import SAFETENSORS, read_weight_file
from tieconv.formats.torch.model import TORCH
from tieconv.text import shown

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
OTHER_WEIGHTS = "adapter_model.bin"
NEXT_STEP = "untie or retie the base model, then load the adapter on it"


@record
class PeftAdapter:
    """The adapter format; see `tieconv.formats.directory.Format`."""

    name: str = "peft"

    def claims(self, listing: Listing) -> bool:
        if CONFIG not in listing.top:
            return False
        if listing.named:
            return listing.named in (CONFIG, WEIGHTS, OTHER_WEIGHTS)
        # A model with an adapter beside it counts as a model. Trainer files beside an adapter do not.
        if WEIGHTS in listing.top or OTHER_WEIGHTS in listing.top:
            return not {*OPENED} & {*listing.top} and not any(map(_is_shard, listing.top))
        return not any(naming.is_weights(name) or naming.is_index(name) for naming in _NAMINGS for name in listing.top)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        name = _weights(listing)
        value = loads(read_bytes(files, CONFIG, CONFIG_LIMIT), CONFIG, limit=CONFIG_LIMIT, lenient=True)
        weights, cautions = _read(files, name)
        used = (CONFIG, name)
        return Checkpoint(
            source=listing.source,
            root=listing.root,
            layout=Layout.SINGLE,
            format=self.name,
            files=(weights,),
            companions={name: size for name, size in listing.entries.items() if name not in used},
            special=listing.special,
            cautions=(*_two_formats(listing), *cautions),
            states={name: files.state(name) for name in used},
            adapter=adapter_of(value),
            read_only=NEXT_STEP,
        )


_NAMINGS = (SAFETENSORS.naming, TORCH.naming)


def _is_shard(name: str) -> bool:
    return any(naming.is_weights(name) and re.search(naming.shard, name) for naming in _NAMINGS)


def _weights(listing: Listing) -> str:
    """Return the weight file that PEFT loads, or that MODEL names."""
    if listing.named in (WEIGHTS, OTHER_WEIGHTS):
        return listing.named
    for name in (WEIGHTS, OTHER_WEIGHTS):
        if name in listing.top:
            return name
    raise UnreadableError(
        f"{shown(listing.source)} is a PEFT adapter without {WEIGHTS} or {OTHER_WEIGHTS}",
        "save it again with save_pretrained",
        "peft.no-weights",
    )


def _two_formats(listing: Listing) -> tuple[Caution, ...]:
    if listing.named in (WEIGHTS, OTHER_WEIGHTS) or not {WEIGHTS, OTHER_WEIGHTS} <= set(listing.top):
        return ()
    message = f"the directory holds {WEIGHTS} and {OTHER_WEIGHTS}, which may differ: PEFT loads the first"
    return (Caution("layout.two-formats", message),)


def _read(files: Files, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    size = files.state(name).size
    if name == WEIGHTS:
        return read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name), ()
    from tieconv.formats.torch.reader import read_torch_file  # few adapters are pickles

    return read_torch_file(lambda count, offset: files.pread(name, count, offset), size, name)


def adapter_of(value: Mapping[str, object]) -> Adapter:
    """Return what the content of `adapter_config.json` says about the adapter."""
    mapping = value.get("auto_mapping")
    base_class = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    return Adapter(
        kind=_text(value.get("peft_type")),
        base=_text(value.get("base_model_name_or_path")),
        base_class=_text(base_class),
        targets=_texts(value.get("target_modules")),
        saved=_texts(value.get("modules_to_save")),
        tied=value.get("ensure_weight_tying") is True,
        token_rows=_token_rows(value.get("trainable_token_indices") or value.get("token_indices")),
    )


def _token_rows(value: object) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the rows by module: PEFT takes one list for the embedding, or a list for each module."""
    by_module = value if isinstance(value, Mapping) else {"": value}
    rows = {
        module: tuple(row for row in entries if isinstance(row, int) and not isinstance(row, bool))
        for module, entries in by_module.items()
        if isinstance(entries, list)
    }
    return tuple((module, ids) for module, ids in rows.items() if ids)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()


PEFT = PeftAdapter()
