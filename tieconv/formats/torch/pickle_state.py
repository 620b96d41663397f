"""Write the pickle of a state dict: an `OrderedDict` of tensors, in protocol 2."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tieconv.formats.torch.state_dict import METADATA
from tieconv.formats.torch.torch_dtypes import STORAGE_CLASSES, TORCH_NAMES, WIDTHS


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor to pickle: storage ``key`` of ``nbytes`` bytes, ``offset`` and ``stride`` in elements."""

    name: str
    dtype: str
    key: int
    nbytes: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


# --- the pickle ---------------------------------------------------------------------------------------------


def pickle_state(tensors: Iterable[SavedTensor], metadata: Mapping[str, str] | None) -> bytes:
    """Return the pickle of an `OrderedDict` of tensors, in protocol 2. `torch.load(weights_only=True)` reads it."""
    pickler = _Pickler()
    pickler.ordered()
    pickler.out.append(b"(")
    for tensor in tensors:
        pickler.text(tensor.name)
        pickler.tensor(tensor)
    pickler.out.append(b"u")
    if metadata and METADATA in metadata:
        pickler.attributes(json.loads(metadata[METADATA]))
    return b"\x80\x02" + b"".join(pickler.out) + b"."


@dataclass
class _Pickler:
    """Collects opcodes. Writes each global once and recalls it from the memo afterwards."""

    out: list[bytes] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def name(self, module: str, name: str) -> None:
        known = self.places.get(f"{module} {name}")
        if known is not None:
            self.out.append(b"h" + bytes([known]))
            return
        number = self.places[f"{module} {name}"] = len(self.places)
        self.out.append(f"c{module}\n{name}\n".encode() + b"q" + bytes([number]))

    def ordered(self) -> None:
        self.name("collections", "OrderedDict")
        self.out.append(b")R")

    def text(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        self.out.append(b"X" + struct.pack("<I", len(raw)) + raw)

    def number(self, value: int) -> None:
        if 0 <= value < 256:
            self.out.append(b"K" + bytes([value]))
        elif -(1 << 31) <= value < 1 << 31:
            self.out.append(b"J" + struct.pack("<i", value))
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out.append(b"\x8a" + bytes([len(raw)]) + raw)

    def numbers(self, values: Iterable[int]) -> None:
        self.out.append(b"(")
        for value in values:
            self.number(value)
        self.out.append(b"t")

    def tensor(self, tensor: SavedTensor) -> None:
        """Write a call of `_rebuild_tensor_v2`, or of `_v3` for a dtype without a storage class."""
        typed = STORAGE_CLASSES.get(tensor.dtype)
        self.name("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
        self.out.append(b"((")
        self.text("storage")
        self.name("torch" if typed else "torch.storage", typed or "UntypedStorage")
        self.text(str(tensor.key))
        self.text("cpu")
        self.number(tensor.nbytes // WIDTHS[tensor.dtype] if typed else tensor.nbytes)
        self.out.append(b"tQ")
        self.number(tensor.offset)
        self.numbers(tensor.shape)
        self.numbers(tensor.stride)
        self.out.append(b"\x89")
        self.ordered()
        if not typed:
            self.name("torch", TORCH_NAMES[tensor.dtype])
        self.out.append(b"tR")

    def attributes(self, modules: Mapping[str, Mapping[str, object]]) -> None:
        """Write the `_metadata` of a state dict with BUILD, as torch does."""
        self.out.append(b"}")
        self.text(METADATA)
        self.ordered()
        self.out.append(b"(")
        for module, entry in modules.items():
            self.text(module)
            self.out.append(b"}(")
            for key, value in entry.items():
                self.text(key)
                self.plain(value)
            self.out.append(b"u")
        self.out.append(b"usb")

    def plain(self, value: object) -> None:
        if isinstance(value, bool) or value is None:
            self.out.append({True: b"\x88", False: b"\x89", None: b"N"}[value])
        elif isinstance(value, int):
            self.number(value)
        else:
            self.text(str(value))
