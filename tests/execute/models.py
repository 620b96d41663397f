"""Small models, plans over them, and a stand-in for an inspection: what the tests of `execute` work with."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from tieconv.checkpoint.model_files import Checkpoint, Document, FileState, Layout
from tieconv.checkpoint.weight_file import TensorRecord, WeightFile
from tieconv.checkpoint.write_plan import (
    LinkFile,
    OutputTensor,
    OutputText,
    OutputWeights,
    Plan,
    Promises,
    TiePromise,
    Zeros,
)
from tieconv.formats.safetensors import encode_header, read_weight_file

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
INDEX = "model.safetensors.index.json"
Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def write_weights(path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None, pad: int = 0) -> None:
    """A safetensors file with its header padded by ``pad`` bytes."""
    entries = [(name, dtype, shape, len(data)) for name, (dtype, shape, data) in tensors.items()]
    head = encode_header(entries, metadata, congruent=lambda _start: pad)
    path.write_bytes(head + b"".join(data for _dtype, _shape, data in tensors.values()))


def read_header(path: Path, name: str | None = None) -> WeightFile:
    """The file's header, as tieconv reads it."""
    with path.open("rb") as stream:
        descriptor = stream.fileno()
        size = os.fstat(descriptor).st_size
        return read_weight_file(lambda n, offset: os.pread(descriptor, n, offset), size, name or path.name)


def tensor_bytes(path: Path) -> dict[str, bytes]:
    """Every tensor's bytes."""
    data = path.read_bytes()
    return {t.name: data[t.range.start : t.range.end] for t in read_header(path).tensors}


def numbers(count: int, seed: int) -> bytes:
    """``count`` BF16 normal numbers between 1 and 2."""
    source = random.Random(seed)
    return b"".join(int(0x3F80 + source.randrange(128)).to_bytes(2, "little") for _ in range(count))


def tensors_of(rows: int = 64, seed: int = 1) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """An embedding, a layer, and a head that is a copy of the embedding; 64 columns."""
    blob = random.Random(seed).randbytes(rows * 128)
    layer = random.Random(seed + 1).randbytes(rows * 3 * 128)
    return {
        EMBED: ("BF16", (rows, 64), blob),
        "model.layers.0.weight": ("BF16", (rows * 3, 64), layer),
        HEAD: ("BF16", (rows, 64), blob),
    }


def write_documents(root: Path) -> None:
    """What lies beside the weights, in a subdirectory too."""
    (root / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": False}))
    (root / "tokenizer.json").write_text('{"tokens": "' + "t" * 9000 + '"}')
    (root / "original").mkdir()
    (root / "original" / "params.json").write_text("{}\n")


def single(root: Path, rows: int = 64, metadata: Mapping[str, str] | None = None) -> Path:
    """A model of one weight file."""
    root.mkdir(parents=True)
    write_weights(root / "model.safetensors", tensors_of(rows), metadata)
    write_documents(root)
    return root


def sharded(root: Path, rows: int = 64) -> Path:
    """A model of two shards; the head is in the second."""
    root.mkdir(parents=True)
    tensors = tensors_of(rows)
    names = list(tensors)
    places = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for shard, held in places.items():
        write_weights(root / shard, {name: tensors[name] for name in held}, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, held in places.items() for name in held}}
    (root / INDEX).write_text(json.dumps(index))
    write_documents(root)
    return root


def state_of(path: Path) -> FileState:
    """What identifies the file's content."""
    status = path.stat()
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def files_under(root: Path) -> list[str]:
    """Every file, relative."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def checkpoint(source: Path, **changes: Any) -> Checkpoint:
    """The checkpoint at ``source``, read without the rooms that execute does not need."""
    root = source if source.is_dir() else source.parent
    names = [name for name in files_under(root) if name.endswith(".safetensors") and "/" not in name]
    if source.is_file():
        names = [source.name]
    files = tuple(read_header(root / name, name) for name in names)
    config = None
    if source.is_dir() and (root / "config.json").exists():
        text = (root / "config.json").read_text()
        config = Document("config.json", text, json.loads(text))
    layout = Layout.FILE if source.is_file() else (Layout.SHARDED if len(files) > 1 else Layout.SINGLE)
    values = {"source": str(source), "root": str(root), "layout": layout, "files": files, "config": config}
    return Checkpoint(**values | {"format": "safetensors", "special": ()} | changes)


def plan_of(
    source: Path,
    weights: Iterable[OutputWeights] = (),
    texts: Iterable[OutputText] = (),
    removed: Iterable[str] = (),
    promises: Promises | None = None,
    **changes: Any,
) -> Plan:
    """A plan in which all that is not named comes along unchanged."""
    found = checkpoint(source, **changes)
    root = Path(found.root)
    weights, texts, removed = tuple(weights), tuple(texts), tuple(removed)
    gone = {*(output.name for output in weights), *(output.name for output in texts), *removed}
    whole = found.layout is not Layout.FILE
    names = [name for name in files_under(root) if ".git/" not in name] if whole else [source.name]
    links = tuple(LinkFile(name, (root / name).stat().st_size) for name in names if name not in gone)
    states = {file.name: state_of(root / file.name) for file in found.files}
    if found.config:
        states["config.json"] = state_of(root / "config.json")
    return Plan(
        "test", found, states, (), weights, texts, links, removed, promises or Promises(None, ()), "a test plan"
    )


def kept(record: TensorRecord) -> OutputTensor:
    """The tensor as it is."""
    return OutputTensor(record.name, record.dtype, record.shape, record.range)


def tied_config(value: bool) -> OutputText:
    """The config with its flag set."""
    return OutputText("config.json", json.dumps({"model_type": "llama", "tie_word_embeddings": value}))


def retie(source: Path) -> Plan:
    """Drop the head and set the flag (a lone file has none); nothing where there is no head."""
    found = checkpoint(source)
    file = next((file for file in found.files if any(t.name == HEAD for t in file.tensors)), None)
    if file is None:
        return plan_of(source)
    left = tuple(kept(t) for t in file.tensors if t.name != HEAD)
    whole = found.layout is not Layout.FILE
    texts = [tied_config(True)] if whole else []
    weights, removed = [OutputWeights(file.name, left, file.metadata)], list[str]()
    if found.layout is Layout.SHARDED:
        value = json.loads((source / INDEX).read_text())
        del value["weight_map"][HEAD]
        texts.append(OutputText(INDEX, json.dumps(value)))
        if not left:
            weights, removed = [], [file.name]
    promises = Promises(True if whole else None, (TiePromise(EMBED, whole, (EMBED,), (HEAD,)),))
    return plan_of(source, weights, texts, removed, promises)


def with_bias(source: Path) -> Plan:
    """Keep all and add a bias of zeros, 56 bytes at the front: nothing lines up without padding."""
    file = checkpoint(source).files[0]
    bias = OutputTensor("lm_head.bias", "U8", (56,), Zeros(56))
    weights = (OutputWeights(file.name, (bias, *(kept(t) for t in file.tensors)), file.metadata),)
    return plan_of(source, weights)


def set_config(source: Path, value: bool = True) -> Plan:
    """Change config.json and nothing else."""
    return plan_of(source, texts=[tied_config(value)], promises=Promises(value, ()))


def inspect(path: Path) -> Any:
    """What `execute` looks at in an inspection, from the written files."""
    root = path if path.is_dir() else path.parent
    weights = sorted(root.glob("*.safetensors")) if path.is_dir() else [path]
    names = [tensor.name for file in weights for tensor in read_header(file).tensors]
    config = root / "config.json"
    tied = config.exists() and bool(json.loads(config.read_text()).get("tie_word_embeddings"))
    members = tuple(SimpleNamespace(name=name, stored=name in names) for name in (EMBED, HEAD))
    tie = SimpleNamespace(canonical=EMBED, canonical_stored=EMBED in names, declared=tied, members=members)
    return SimpleNamespace(config=SimpleNamespace(effective=tied), ties=(tie,))


def digest(root: Path) -> dict[str, str]:
    """A hash of every file (of a link: what it says), by relative name."""
    if root.is_file():
        return {root.name: hashlib.sha256(root.read_bytes()).hexdigest()}
    return {name: _digest(root / name) for name in files_under(root)}


def _digest(path: Path) -> str:
    data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
    return hashlib.sha256(data).hexdigest()


def failing(number: int) -> Mock:
    """A function that fails as the operating system does."""
    return Mock(side_effect=OSError(number, os.strerror(number)))


def strays(directory: Path) -> list[str]:
    """What a run left beside OUT."""
    return sorted(path.name for path in directory.rglob("*tieconv-staging*"))
