"""Hostile inputs of up to 100 MB, one maker each, made when a test asks for them.

Each maker writes a model into an empty directory, its one argument: a new input is a row, or a function with the
decorator.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from fixtures.gguf_bytes import entry as gguf_entry, text as gguf_text
from fixtures.hostile import TIB, entry, file_of

MAX = 100_000_000
"""Bytes of an input that the bounds hold for."""
Maker = Callable[[Path], None]
MAKERS: dict[str, Maker] = {}
"""Each input by its name, which starts with the format or the file that it attacks."""


def _input(maker: Maker) -> Maker:
    MAKERS[maker.__name__.replace("_", "-")] = maker
    return maker


def _repeated(start: str, piece: Callable[[int], str], end: str, size: int = MAX - 1_500_000) -> bytes:
    """``start``, as many pieces as fit into ``size`` bytes, and ``end``."""
    out = io.BytesIO()
    out.write(start.encode())
    number = 0
    while out.tell() < size:
        out.write("".join(map(piece, range(number, number + 10_000))).encode())
        number += 10_000
        if out.tell() >= size:
            break
    out.write(end.encode())
    return out.getvalue()


def _header(home: Path, header: bytes, data: bytes = b"") -> None:
    assert len(header) <= MAX
    (home / "model.safetensors").write_bytes(file_of(header, data))


def _tiny(home: Path, name: str = "model.safetensors") -> None:
    tensors = {
        "lm_head.weight": entry("F32", [2, 2], [0, 16]),
        "model.embed_tokens.weight": entry("F32", [2, 2], [16, 32]),
    }
    (home / name).write_bytes(file_of(tensors, bytes(32)))


# --- safetensors -----------------------------------------------------------------------------------------


@_input
def safetensors_tensors_wide(home: Path) -> None:
    """A header of 55 MB with one character beyond ASCII."""
    row = '"model.layers.{}.mlp.experts.weight😀":{{"dtype":"BF16","shape":[0,4096],"data_offsets":[0,0]}},'
    _header(home, _repeated("{", row.format, '"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', 55_000_000))


@_input
def safetensors_equal(home: Path) -> None:
    """As many tensors as are read, all equal: each has the bytes of every other one."""
    count, names = 500_000, (f"layers.{i}.weight" for i in range(500_000))
    _header(
        home, json.dumps({name: entry("U8", [1], [i, i + 1]) for i, name in enumerate(names)}).encode(), bytes(count)
    )


_EXPERTS = '{"model_type":"mixtral","architectures":["MixtralForCausalLM"],"tie_word_embeddings":false}'


@_input
def safetensors_experts_read(home: Path) -> None:
    """As many tensors as `diff` compares, named as those of a mixture of experts; each model has other values."""
    count, size = 250_000, 16
    names = (f"model.layers.{i // 3000}.mlp.experts.{i // 3 % 1000}.{'abc'[i % 3]}.weight" for i in range(count))
    header = {name: entry("F32", [2, 2], [i * size, i * size + size]) for i, name in enumerate(names)}
    values = os.urandom(4 * count)
    data = b"".join(b"\0" + values[i : i + 2] + b"\x3f" for i in range(0, 4 * count, 4)) * 4
    _header(home, json.dumps(header, separators=(",", ":")).encode(), data)
    (home / "config.json").write_text(_EXPERTS)


def _torch_tensors(home: Path, number: int) -> None:
    import torch

    state = {f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.weight": torch.zeros(1) for i in range(number)}
    torch.save(state, home / "pytorch_model.bin")


@_input
def safetensors_candidates(home: Path) -> None:
    """Sixty thousand matrices of the head's shape, equal but for their last bytes."""
    size, count = 1024, 60_000
    header = {f"m.{i}.weight": entry("F32", [16, 16], [i * size, i * size + size]) for i in range(count - 2)}
    for i, name in enumerate(("lm_head.weight", "model.embed_tokens.weight"), count - 2):
        header[name] = entry("F32", [16, 16], [i * size, i * size + size])
    rows = b"".join(bytes(size - 8) + struct.pack("<Q", i % 1000) for i in range(count))
    _header(home, json.dumps(header).encode(), rows)


@_input
def safetensors_sparse(home: Path) -> None:
    """Two equal matrices of 512 GiB each, without a block on the disk."""
    side, width = 1 << 19, 1 << 18
    half = side * width * 4
    header = file_of(
        {
            "lm_head.weight": entry("F32", [side, width], [0, half]),
            "model.embed_tokens.weight": entry("F32", [side, width], [half, 2 * half]),
        }
    )
    (home / "model.safetensors").write_bytes(header)
    os.truncate(home / "model.safetensors", len(header) + TIB)
    (home / "config.json").write_text(
        '{"model_type":"llama","architectures":["LlamaForCausalLM"],"tie_word_embeddings":true}'
    )


MAKERS |= {
    "safetensors-metadata-entries": lambda home: _header(
        home, _repeated('{"__metadata__":{', lambda i: f'"{i:x}":"",', '"z":""}}')
    ),
    "safetensors-metadata-value": lambda home: _header(home, b'{"__metadata__":{"a":"' + b"x" * (MAX - 200) + b'"}}'),
    "safetensors-metadata-value-wide": lambda home: _header(
        home, b'{"__metadata__":{"a":"' + b"x" * (MAX - 200) + "😀".encode() + b'"}}'
    ),
    "safetensors-metadata-escapes": lambda home: _header(
        home, b'{"__metadata__":{"a":"' + b"\\ud83d\\ude00" * ((MAX - 200) // 12) + b'"}}'
    ),
    # As many tensors as a header of 100 MB holds: 1.8 million.
    "safetensors-tensors": lambda home: _header(
        home,
        _repeated(
            "{",
            lambda i: f'"{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},',
            '"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
        ),
    ),
    "safetensors-name": lambda home: _header(
        home, b'{"' + b"a" * (MAX - 200) + b'":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "safetensors-shape": lambda home: _header(
        home, b'{"a":{"dtype":"U8","shape":[' + b"1," * (MAX // 2 - 200) + b'1],"data_offsets":[0,1]}}', b"x"
    ),
    "safetensors-lists": lambda home: _header(
        home, b'{"a":{"dtype":"U8","shape":[' + b"[]," * (MAX // 3 - 200) + b'1],"data_offsets":[0,1]}}', b"x"
    ),
    "safetensors-keys": lambda home: _header(home, _repeated('{"a":{', lambda i: f'"{i:x}":0,', '"z":0}}')),
    "safetensors-spaces": lambda home: _header(
        home, b'{"a":' + b" " * (MAX - 200) + b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "safetensors-number": lambda home: _header(
        home, b'{"a":{"dtype":"U8","shape":[' + b"1" * (MAX - 200) + b'],"data_offsets":[0,0]}}'
    ),
    "safetensors-unclosed": lambda home: _header(home, b'{"a":{"dtype":"' + b'\\"' * (MAX // 2 - 200)),
    # As many tensors with storages of their own as are read.
    "torch-tensors-read": lambda home: _torch_tensors(home, 250_000),
    # As many tensors with storages of their own as `diff` compares.
    "torch-compared-read": lambda home: _torch_tensors(home, 125_000),
}


# --- index -----------------------------------------------------------------------------------------------

_SHARD = "model-00001-of-00001.safetensors"


def _index(home: Path, content: bytes) -> None:
    assert len(content) <= MAX
    _tiny(home, _SHARD)
    (home / "model.safetensors.index.json").write_bytes(content)


@_input
def index_read(home: Path) -> None:
    """As many names as are read, none of which is stored."""
    entries = {f"model.layers.{i}.experts.weight": _SHARD for i in range(500_000)}
    _index(home, json.dumps({"metadata": {"total_size": 1}, "weight_map": entries}).encode())


MAKERS |= {
    "index-entries": lambda home: _index(
        home, _repeated('{"weight_map":{', lambda i: f'"{i:x}":"{_SHARD}",', f'"z":"{_SHARD}"}}}}')
    ),
    "index-short-entries": lambda home: _index(
        home, _repeated('{"weight_map":{', lambda i: f'"{i:x}":"a",', '"z":"a"}}')
    ),
    "index-shards": lambda home: _index(home, _repeated('{"weight_map":{', lambda i: f'"{i:x}":"{i:x}",', '"z":"a"}}')),
    "index-wide": lambda home: _index(
        home, _repeated('{"weight_map":{', lambda i: f'"{i}{"a" * 100}😀":"{_SHARD}",', f'"z":"{_SHARD}"}}}}')
    ),
    "index-metadata": lambda home: _index(
        home, _repeated('{"metadata":{', lambda i: f'"{i:x}":0,', f'"z":0}},"weight_map":{{"z":"{_SHARD}"}}}}')
    ),
    "index-numbers": lambda home: _index(
        home, b'{"metadata":{"a":[' + b"1," * (MAX // 2 - 100) + f'1]}},"weight_map":{{"z":"{_SHARD}"}}}}'.encode()
    ),
    "index-lists": lambda home: _index(
        home, b'{"metadata":{"a":[' + b"[]," * (MAX // 3 - 100) + f'1]}},"weight_map":{{"z":"{_SHARD}"}}}}'.encode()
    ),
    "index-keys": lambda home: _index(
        home, _repeated("{", lambda i: f'"{i:x}":0,', f'"weight_map":{{"z":"{_SHARD}"}}}}')
    ),
}


# --- config ----------------------------------------------------------------------------------------------


def _config(home: Path, content: bytes) -> None:
    _tiny(home)
    (home / "config.json").write_bytes(content)


_LLAMA = '"model_type":"llama","architectures":["LlamaForCausalLM"]'


@_input
def config_levels_read(home: Path) -> None:
    """As many levels with a flag as are read."""
    levels = (f'"s{i}":{{"tie_word_embeddings":false}},' for i in range(999))
    _config(home, f'{{{_LLAMA},"tie_word_embeddings":true,{"".join(levels)}"z":0}}'.encode())


@_input
def config_flags_read(home: Path) -> None:
    """As many levels with a flag of the wrong type as are read: each one is a finding."""
    levels = (f'"s{i}":{{"tie_word_embeddings":"x"}},' for i in range(999))
    _config(home, f'{{{_LLAMA},{"".join(levels)}"z":0}}'.encode())


@_input
def config_flags_small(home: Path) -> None:
    """Levels with a flag whose values fit into memory."""
    levels = (f'"s{i}":{{"tie_word_embeddings":"x"}},' for i in range(240_000))
    _config(home, f'{{{_LLAMA},{"".join(levels)}"z":0}}'.encode())


@_input
def config_parts_read(home: Path) -> None:
    """As many sub-configs without a flag as fit into memory, beside as many as are read with one."""
    levels = (f'"s{i}":{{"a":0}},' for i in range(220_000))
    flags = (f'"t{i}":{{"tie_word_embeddings":false}},' for i in range(998))
    _config(home, f'{{{_LLAMA},"tie_word_embeddings":true,{"".join(levels)}{"".join(flags)}"z":0}}'.encode())


@_input
def config_levels_deep(home: Path) -> None:
    deep = '{"a":' * 60 + '{"tie_word_embeddings":true}' + "}" * 60
    _config(home, _repeated(f"{{{_LLAMA},", lambda i: f'"s{i}":{deep},', '"z":0}', 14_000_000))


MAKERS |= {
    # 300,000 sub-configs, each with a flag of its own.
    "config-levels": lambda home: _config(
        home,
        _repeated(
            f'{{{_LLAMA},"tie_word_embeddings":true,',
            lambda i: f'"s{i}":{{"tie_word_embeddings":false}},',
            '"z":0}',
            12_000_000,
        ),
    ),
    "config-hostile-levels": lambda home: _config(
        home, _repeated(f"{{{_LLAMA},", lambda i: f'"{i}_config":{{"tie_word_embeddings":1}},', '"z":0}', 12_000_000)
    ),
    "config-lists": lambda home: _config(home, b'{"a":[' + b"[]," * 5_000_000 + b"0]}"),
    "config-objects": lambda home: _config(home, b'{"a":[' + b"{}," * 5_000_000 + b"0]}"),
    "config-numbers": lambda home: _config(home, b'{"a":[' + b"1," * 7_000_000 + b"0]}"),
    "config-floats": lambda home: _config(home, b'{"a":[' + b"1.,".replace(b".", b".5") * 3_000_000 + b"0]}"),
    "config-strings": lambda home: _config(home, b'{"a":[' + b'"ab",' * 3_000_000 + b"0]}"),
    "config-keys": lambda home: _config(home, _repeated("{", lambda i: f'"{i:x}":0,', '"z":0}', 15_000_000)),
    "config-repeated-keys": lambda home: _config(home, b'{"a":[' + b'{"a":1,"a":1},' * 1_000_000 + b"0]}"),
    "config-architectures": lambda home: _config(
        home, _repeated('{"architectures":[', lambda i: f'"A{i}",', '"z"]}', 15_000_000)
    ),
    "config-wide": lambda home: _config(home, f'{{{_LLAMA},"a":"'.encode() + b"x" * 15_000_000 + '😀"}'.encode()),
}


# --- PEFT ------------------------------------------------------------------------------------------------


def _adapter(home: Path, content: bytes) -> None:
    (home / "adapter_config.json").write_bytes(content)
    (home / "adapter_model.safetensors").write_bytes(
        file_of({"base_model.model.a.lora_A.weight": entry("U8", [4], [0, 4])}, bytes(4))
    )


MAKERS |= {
    "peft-targets": lambda home: _adapter(
        home, _repeated('{"peft_type":"LORA","target_modules":[', lambda i: f'"m{i}",', '"lm_head"]}', 15_000_000)
    ),
    "peft-saved": lambda home: _adapter(
        home, _repeated('{"peft_type":"LORA","modules_to_save":[', lambda i: f'"m{i}",', '"lm_head"]}', 15_000_000)
    ),
}


# --- GGUF ------------------------------------------------------------------------------------------------


def _gguf(home: Path, tensors: int, keys: int, body: bytes) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body
    (home / "model.gguf").write_bytes(content + bytes(-len(content) % 32))


@_input
def gguf_strings(home: Path) -> None:
    count = 12_000_000
    _gguf(home, 0, 1, gguf_text("tokens") + struct.pack("<IIQ", 9, 8, count) + bytes(8 * count))


@_input
def gguf_arrays(home: Path) -> None:
    count = 8_000_000
    _gguf(home, 0, 1, gguf_text("tokens") + struct.pack("<IIQ", 9, 9, count) + struct.pack("<IQ", 0, 0) * count)


@_input
def gguf_tensors(home: Path) -> None:
    info = struct.Struct("<I4QIQ").pack(4, 0, 1, 1, 1, 24, 0)
    count = 1_000_000
    _gguf(home, count, 0, b"".join(gguf_text(f"{i:x}") + info for i in range(count)))


@_input
def gguf_tensors_read(home: Path) -> None:
    """As many tensors as are read, each of one byte."""
    info = struct.Struct("<IQIQ")
    count = 500_000
    infos = (gguf_text(f"blk.{i}.weight") + info.pack(1, 1, 24, 32 * i) for i in range(count))
    _gguf(home, count, 0, b"".join(infos) + bytes(32 * count + 64))


@_input
def gguf_names(home: Path) -> None:
    info = struct.Struct("<IQIQ").pack(1, 0, 24, 0)
    _gguf(home, 1500, 0, b"".join(gguf_text(f"{i}" + "n" * 65_000) + info for i in range(1500)))


MAKERS |= {
    "gguf-keys": lambda home: _gguf(
        home, 0, 100_000, b"".join(gguf_entry(f"{i}" + "k" * 900, 1) for i in range(100_000))
    ),
    "gguf-key-values": lambda home: _gguf(
        home, 0, 24_000, b"".join(gguf_entry(f"{i}", "😀" + "v" * 4000) for i in range(24_000))
    ),
}


# --- ONNX ------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


_OPSET = _field(8, _varint(2 << 3) + _varint(18))


def _onnx(home: Path, graph: bytes, more: bytes = b"") -> None:
    content = _varint(1 << 3) + _varint(10) + _field(7, graph) + _OPSET + more
    assert len(content) <= MAX
    (home / "model.onnx").write_bytes(content)


@_input
def onnx_equal_read(home: Path) -> None:
    tensors = (f"{i:x}".encode() for i in range(149_000))
    _onnx(home, b"".join(_field(5, _field(8, name) + b"\x08\x01\x10\x01" + _field(9, bytes(4))) for name in tensors))


@_input
def onnx_spelt(home: Path) -> None:
    """Two initializers of numbers that are spelt one by one."""
    count = 30_000_000
    shape = b"".join(_varint(1 << 3) + _varint(side) for side in (1000, count // 1000))
    tensors = [_field(5, shape + b"\x10\x07" + _field(8, name) + _field(7, bytes(count))) for name in (b"a", b"b")]
    _onnx(home, b"".join(tensors))


MAKERS |= {
    "onnx-nodes": lambda home: _onnx(home, _field(1, b"") * 40_000_000),
    "onnx-small-nodes": lambda home: _onnx(home, _field(1, _field(4, b"A") + _field(1, b"a")) * 600_000),
    # Just as many fields as are looked at.
    "onnx-nodes-read": lambda home: _onnx(home, _field(1, _field(4, b"A") + _field(1, b"a")) * 249_000),
    "onnx-initializers": lambda home: _onnx(
        home, b"".join(_field(5, _field(8, f"{i:x}".encode()) + b"\x10\x01") for i in range(600_000))
    ),
    "onnx-equal-initializers": lambda home: _onnx(
        home,
        b"".join(
            _field(5, _field(8, f"{i:x}".encode()) + b"\x08\x01\x10\x01" + _field(9, bytes(4))) for i in range(390_000)
        ),
    ),
    "onnx-names": lambda home: _onnx(
        home, b"".join(_field(5, _field(8, f"{i}{'n' * 65_000}".encode()) + b"\x10\x01") for i in range(1500))
    ),
    "onnx-inputs": lambda home: _onnx(
        home, _field(1, b"".join(_field(1, f"{i:x}".encode()) for i in range(1_990_000)))
    ),
    "onnx-metadata": lambda home: _onnx(
        home, b"", b"".join(_field(14, _field(1, f"{i:x}".encode()) + _field(2, b"v")) for i in range(660_000))
    ),
    "onnx-dims": lambda home: _onnx(home, _field(5, _field(1, b"\x01" * 1_900_000) + b"\x10\x01" + _field(8, b"a"))),
}


# --- torch -----------------------------------------------------------------------------------------------


def _zip(home: Path, entries: Iterator[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(home / "pytorch_model.bin", "w") as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)


@_input
def torch_entries(home: Path) -> None:
    def entries() -> Iterator[tuple[str, bytes]]:
        yield "data.pkl", b"\x80\x02}q\x00."
        yield "version", b"3\n"
        for number in range(700_000):
            yield f"data/{number}", b""

    _zip(home, islice(entries(), 700_000))


def _pickled(home: Path, data: bytes) -> None:
    assert len(data) <= MAX
    _zip(home, iter([("data.pkl", data), ("version", b"3\n")]))


@_input
def torch_dictionary(home: Path) -> None:
    state = {f"k{i}": i for i in range(4_000_000)}
    _pickled(home, pickle.dumps(state, 2))


MAKERS |= {
    # Numbers on the stack until the pickle ends.
    "torch-opcodes": lambda home: _pickled(home, b"\x80\x02" + b"K\x01" * 45_000_000 + b"."),
    "torch-lists": lambda home: _pickled(home, b"\x80\x02](" + b"]" * 90_000 + b"e" + b"}0" * 40_000_000 + b"."),
    "torch-memo": lambda home: _pickled(
        home, b"\x80\x02" + b"".join(b"]r" + struct.pack("<I", i) + b"0" for i in range(12_000_000)) + b"}."
    ),
    "torch-numbers": lambda home: _pickled(home, pickle.dumps({"a": [1.5] * 9_000_000}, 2)),
    "torch-string": lambda home: _pickled(home, pickle.dumps({"a": "😀" * 24_000_000}, 2)),
    "torch-strings": lambda home: _pickled(home, pickle.dumps({"a": [f"{i:x}" for i in range(4_000_000)]}, 2)),
}


# --- torch distributed -----------------------------------------------------------------------------------


@_input
def dcp_dictionary(home: Path) -> None:
    (home / "__0_0.distcp").write_bytes(b"")
    (home / ".metadata").write_bytes(pickle.dumps({f"k{i}": i for i in range(4_000_000)}, 2))


@_input
def dcp_string(home: Path) -> None:
    (home / "__0_0.distcp").write_bytes(b"")
    (home / ".metadata").write_bytes(pickle.dumps({"a": "😀" * 24_000_000}, 2))


@_input
def dcp_lists(home: Path) -> None:
    (home / "__0_0.distcp").write_bytes(b"")
    (home / ".metadata").write_bytes(b"\x80\x02](" + b"]" * 90_000_000 + b"e.")


# --- tokenizers: `analyze` reads them, and `inspect` where config and tensors disagree on the vocabulary -------------


def _tokenizer(home: Path, name: str, content: bytes) -> None:
    assert len(content) <= MAX
    _tiny(home)
    (home / "config.json").write_text(f'{{{_LLAMA},"vocab_size":3,"hidden_size":2}}')
    (home / name).write_bytes(content)


def _model(home: Path, vocabulary: str, merges: str = "[]", more: str = '"version":"1.0"') -> None:
    """A tokenizer.json as the tokenizers library lays it out."""
    text = f'{{{more},"model":{{"type":"BPE","vocab":{vocabulary},"merges":{merges}}}}}'
    _tokenizer(home, "tokenizer.json", text.encode())


def _tokens(count: int, text: str = "{:x}") -> str:
    return "{" + ",".join(f'"{text.format(i)}":{i}' for i in range(count)) + "}"


_WIDE = "▁СЛОВО😀{}"


@_input
def tokenizer_wide_read(home: Path) -> None:
    """More than the largest published ones: 262,000 tokens and 520,000 merges, all beyond Latin, 40 MB."""
    words = [_WIDE.format(i) for i in range(262_000)]
    merges = [[word[:3], word[3:]] for word in words] * 2
    _model(home, json.dumps({w: i for i, w in enumerate(words)}, ensure_ascii=False), json.dumps(merges))


@_input
def tokenizer_merges_read(home: Path) -> None:
    """Merges as texts, in front of the vocabulary."""
    merges = json.dumps([f"{i:x} {i:x}" for i in range(1_000_000)])
    text = f'{{"model":{{"merges":{merges},"vocab":{_tokens(200_000)}}}}}'
    _tokenizer(home, "tokenizer.json", text.encode())


@_input
def tokenizer_added_read(home: Path) -> None:
    """65,536 added tokens, as for images and speech."""
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": 130_000 + i, "content": f"<|s_{i}|>", **entry} for i in range(65_536)]
    _model(home, _tokens(130_000), more=f'"added_tokens":{json.dumps(added, indent=2)}')
    decoder = {str(row["id"]): {key: row[key] for key in row if key != "id"} for row in added}
    (home / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": decoder}, indent=2)
    )


@_input
def tokenizer_two_read(home: Path) -> None:
    """The vocabulary stands in two files."""
    _model(home, _tokens(240_000, _WIDE))
    (home / "vocab.json").write_text(_tokens(240_000, _WIDE), encoding="utf-8")


MAKERS |= {
    "tokenizer-vocabulary": lambda home: _tokenizer(
        home, "tokenizer.json", _repeated('{"model":{"vocab":{', lambda i: f'"{i:x}":{i},', '"z":0}}}')
    ),
    # Texts of 4 bytes a character, though one character alone needs them.
    "tokenizer-vocabulary-wide": lambda home: _tokenizer(
        home,
        "tokenizer.json",
        _repeated('{"model":{"vocab":{', lambda i: f'"😀{"x" * 400}{i}":{i},', '"z":0}}}', 94_000_000),
    ),
    # As many tokens as are read.
    "tokenizer-vocabulary-read": lambda home: _model(home, _tokens(499_000)),
    "tokenizer-unigram-read": lambda home: _model(
        home, json.dumps([[_WIDE.format(i), -1.5] for i in range(262_000)], ensure_ascii=False, indent=2)
    ),
    "tokenizer-merges": lambda home: _tokenizer(
        home, "tokenizer.json", _repeated('{"model":{"merges":[', lambda i: f'"{i:x} a",', '"z"]}}')
    ),
    "tokenizer-merges-numbers": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"model":{"merges":[' + b"1," * (MAX // 2 - 200) + b"1]}}"
    ),
    "tokenizer-merges-lists": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"model":{"merges":[' + b"[]," * (MAX // 3 - 200) + b"1]}}"
    ),
    # Two million merges, each of numbers.
    "tokenizer-merges-within": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"model":{"merges":[' + b"[1,1,1,1,1,1,1,1,1,1]," * 1_999_000 + b'"z"]}}'
    ),
    "tokenizer-merges-repeated": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"model":{' + b'"merges":[],' * (MAX // 12 - 200) + b'"vocab":{}}}'
    ),
    "tokenizer-added": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"added_tokens":[' + b"{}," * (MAX // 3 - 200) + b"{}]}"
    ),
    "tokenizer-lists": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"post_processor":[' + b"[]," * (MAX // 3 - 200) + b"1]}"
    ),
    # As many numbers that may be ids as are read.
    "tokenizer-numbers": lambda home: _model(
        home, _tokens(10), more=f'"post_processor":{json.dumps(list(range(1_000_000)))}'
    ),
    "tokenizer-spaces": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"model":{"vocab"' + b" " * (MAX - 200) + b':{"a":0}}}'
    ),
    "tokenizer-text": lambda home: _tokenizer(home, "tokenizer.json", b'{"a":"' + b'\\"' * (MAX // 2 - 200)),
    "tokenizer-token": lambda home: _tokenizer(
        home, "tokenizer.json", b'{"model":{"vocab":{"' + "😀".encode() + b"x" * 90_000_000 + b'":0}}}'
    ),
    "tokenizer-vocab-json": lambda home: _tokenizer(
        home, "vocab.json", _repeated("{", lambda i: f'"{i:x}":{i},', '"z":0}')
    ),
    "tokenizer-vocab-json-lists": lambda home: _tokenizer(
        home, "vocab.json", b'{"a":[' + b"[]," * (MAX // 3 - 200) + b"1]}"
    ),
    "tokenizer-vocab-json-read": lambda home: _tokenizer(home, "vocab.json", _tokens(262_000, _WIDE).encode()),
    "tokenizer-words": lambda home: _tokenizer(home, "vocab.txt", b"\n" * MAX),
    "tokenizer-short-words": lambda home: _tokenizer(home, "vocab.txt", b"\n" * 7_900_000),
    "tokenizer-words-read": lambda home: _tokenizer(
        home, "vocab.txt", "\n".join(f"слово{i}" for i in range(400_000)).encode()
    ),
    "tokenizer-config-decoder": lambda home: _tokenizer(
        home, "tokenizer_config.json", _repeated('{"added_tokens_decoder":{', lambda i: f'"{i}":{{}},', '"0":{}}}')
    ),
    "tokenizer-config-template": lambda home: _tokenizer(
        home, "tokenizer_config.json", b'{"chat_template":"' + "😀".encode() + b"x" * (MAX - 200) + b'"}'
    ),
    "tokenizer-config-keys": lambda home: _tokenizer(
        home, "tokenizer_config.json", _repeated("{", lambda i: f'"{i:x}_token":"",', '"z":0}', 7_000_000)
    ),
    "tokenizer-special": lambda home: _tokenizer(
        home, "special_tokens_map.json", b'{"a":[' + b'"x",' * (MAX // 4 - 200) + b'"x"]}'
    ),
    "tokenizer-special-texts": lambda home: _tokenizer(
        home, "special_tokens_map.json", _repeated('{"a":[', lambda i: f'"{i:x}",', '"x"]}', 7_000_000)
    ),
    "generation-ids": lambda home: _tokenizer(
        home, "generation_config.json", _repeated('{"eos_token_id":[', lambda i: f"{i},", "0]}")
    ),
    "generation-ids-read": lambda home: _tokenizer(
        home, "generation_config.json", _repeated('{"eos_token_id":[', lambda i: f"{i},", "0]}", 900_000)
    ),
    # As many ids as are read.
    "config-ids-read": lambda home: _config(
        home, f'{{{_LLAMA},"eos_token_id":{json.dumps(list(range(1_900_000)))}}}'.encode()
    ),
}


# --- files of `check` --------------------------------------------------------------------------------------


def _checked(home: Path, content: bytes) -> None:
    _tiny(home)
    assert len(content) <= MAX
    (home / "beside").mkdir()
    (home / "beside" / "file").write_bytes(content)


_BASELINE = '{"schema":"tieconv.baseline/1","depth":"full","entries":['
_ENTRY = '{{"model":"m{}","rule":"TIE001","file":"x","tensors":[]}}'


@_input
def baseline_entries_read(home: Path) -> None:
    entries = ",".join(_ENTRY.format(i) for i in range(60_000))
    _checked(home, f"{_BASELINE}{entries}]}}".encode())


@_input
def settings_models_read(home: Path) -> None:
    table = '[[per-model]]\nmodel = "m{}"\nignore = ["TIE001"]\nreason = "known"\n'
    _checked(home, "".join(map(table.format, range(14_000))).encode())


MAKERS |= {
    "baseline-entries": lambda home: _checked(
        home, _repeated(_BASELINE, lambda i: _ENTRY.format(i) + ",", _ENTRY.format("") + "]}")
    ),
    "baseline-lists": lambda home: _checked(home, _BASELINE.encode() + b"[]," * 5_000_000 + b"0]}"),
    "baseline-wide": lambda home: _checked(
        home, _BASELINE.encode() + "😀".encode().join((b'"', b'"]')) + b" " * 15_900_000 + b"}"
    ),
    "settings-keys": lambda home: _checked(home, _repeated("", lambda i: f"k{i:x} = 0\n", "")),
    "settings-lists": lambda home: _checked(home, b"select = [" + b"[]," * 300_000 + b"]"),
}
