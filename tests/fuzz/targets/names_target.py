"""Names: tensors, files, keys and values called what terminals, CI runners and file systems obey."""

from __future__ import annotations

import json
import random
import struct

from fixtures.gguf_bytes import gguf
from fixtures.torch_files import pickled, state, storage, tensor, text, torch_zip
from tests.fuzz.case import Case
from tests.fuzz.models import CONFIG, EMBED, HEAD, numbers, safetensors, tensors
from tests.fuzz.mutate.edits import NAMES

CHARACTERS = (
    "\n\r\t\x00\x07\x08\x1b\x7f\x80\x85\x9b\xa0\xad\u061c\u200b\u200e\u2028\u2029\u202e\u2066\ufeff\ufff9\U000e0001"
    ":#%[]{}'\"`$/\\. "
)


def odd(rng: random.Random) -> str:
    """Return a name of interest, or one of characters of interest."""
    if rng.random() < 0.5:
        return rng.choice(NAMES)
    made = "".join(rng.choice(CHARACTERS + "abc") for _ in range(rng.randint(1, 12)))
    return made if rng.random() < 0.7 else f"{rng.choice(('model.', 'lm_head', EMBED))}{made}::error::x"


def make(rng: random.Random) -> Case:
    """Return a model of any format in which nothing is wrong but its names."""
    return rng.choice((_safetensors, _safetensors, _shards, _torch, _gguf))(rng)


def _config(rng: random.Random) -> bytes:
    values = dict(CONFIG)
    for _ in range(rng.randint(0, 3)):
        key = rng.choice((*CONFIG, "architectures", "model_type", odd(rng)))
        values[key] = rng.choice((odd(rng), [odd(rng)], {odd(rng): odd(rng), "tie_word_embeddings": True}))
    return json.dumps(values).encode("utf-8", "surrogatepass")


def _stored(rng: random.Random) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    stored = tensors(tied=rng.random() < 0.5, copy=rng.random() < 0.5)
    for _ in range(rng.randint(0, 3)):
        name = odd(rng)
        if name != "__metadata__":
            stored[name] = rng.choice((("F32", (8, 4), numbers(32, rng.choice((1, 7)))), ("U8", (0,), b"")))
    if rng.random() < 0.3:
        stored[odd(rng).replace("__metadata__", "m")] = stored.pop(EMBED)
    return stored


def _file(rng: random.Random, suffix: str) -> str:
    made = odd(rng).replace("\0", "").replace("/", "_")[:80]
    return f"{made}{suffix}" if rng.random() < 0.4 and made.strip(".") else f"model{suffix}"


def _safetensors(rng: random.Random) -> Case:
    files = {_file(rng, ".safetensors"): safetensors(_stored(rng)), "config.json": _config(rng)}
    for _ in range(rng.randint(0, 2)):
        files[_file(rng, rng.choice((".txt", ".py", ".safetensors", ".json", "")))] = b"x"
    folder = rng.choice(("", f"{odd(rng)[:60]}/".replace("\0", "").replace("//", "/").lstrip("/")))
    folder = "" if ".." in folder else folder
    first = next(iter(files))
    files = {f"{folder}{name}": data for name, data in files.items()}
    return Case("names", files, rng.choice((folder.rstrip("/") or ".", f"{folder}{first}")))


def _shards(rng: random.Random) -> Case:
    stored = _stored(rng)
    names = list(stored)
    cut = rng.randint(0, len(names))
    shards = {f"model-0000{place}-of-00002.safetensors": part for place, part in ((1, names[:cut]), (2, names[cut:]))}
    mapped = {name: shard for shard, part in shards.items() for name in part}
    if rng.random() < 0.5:
        mapped[odd(rng)] = rng.choice((odd(rng), *shards))
    files = {shard: safetensors({name: stored[name] for name in part}) for shard, part in shards.items()}
    index = {"metadata": {"total_size": 1, odd(rng): odd(rng)}, "weight_map": mapped}
    files["model.safetensors.index.json"] = json.dumps(index).encode("utf-8", "surrogatepass")
    return Case("names", {**files, "config.json": _config(rng)})


def _torch(rng: random.Random) -> Case:
    items = [text(name) + tensor((8, 4), (4, 1), pid=storage("0", 32)) for name in {EMBED, HEAD, odd(rng), odd(rng)}]
    items += [text(odd(rng)) + text(odd(rng))] * rng.choice((0, 1))
    data = torch_zip(pickled(state(*items)), struct.pack("<32f", *range(32)))
    return Case("names", {"pytorch_model.bin": data, "config.json": _config(rng)})


def _gguf(rng: random.Random) -> Case:
    named = [("token_embd.weight", (8, 4), 0, numbers(32, 1)), (odd(rng), (8, 4), 0, numbers(32, 1))]
    data = gguf(named, {"general.architecture": odd(rng), odd(rng): odd(rng)})  # type: ignore[arg-type]
    return Case("names", {_file(rng, ".gguf"): data})
