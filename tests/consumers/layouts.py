"""Ways in which the files of a small Llama lie in its directory, and what transformers makes of each.

    python -m tests.consumers.layouts v448/bin/python v4/bin/python

loads every one with transformers 4.48.3 and 4.57.6 and writes layouts.json; transformers 5 is the installed one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fixtures import zoo
from tests.consumers.compare import LOADER
from tests.lazy import load_file, save_file, torch

KIND = "LlamaForCausalLM"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
FLAGS = (True, False, None)
RECORDED = Path(__file__).with_suffix(".json")
ASKED = {"transformers 4.48": "4.48.3", "transformers 4.57": "4.57.6"}
INDEX = "model.safetensors.index.json"

Tensors = "dict[str, torch.Tensor]"
Layout = Callable[[Path, Tensors], None]


def one(folder: Path, tensors: Tensors, name: str = "model.safetensors", **metadata: str) -> None:
    """All tensors in one file."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if path.suffix in (".bin", ".pt", ".pth"):
        torch.save(tensors, path)
    else:
        save_file(tensors, path, metadata=metadata or {"format": "pt"})


def shards(
    folder: Path, tensors: Tensors, name: str = "model.safetensors", index: str | None = "", lost: tuple[int, ...] = ()
) -> None:
    """Two shards and their index; ``index`` is another name for that, or ``None`` for none."""
    stem, _, suffix = name.rpartition(".")
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:3], names[3:]), 1):
        shard = f"{stem}-{number:05d}-of-00002.{suffix}"
        weight_map.update(dict.fromkeys(part, shard))
        if number not in lost:
            one(folder, {key: tensors[key] for key in part}, shard)
    if index is not None:
        points(folder, weight_map, index or f"{name}.index.json")


def points(folder: Path, weight_map: dict[str, str], name: str = INDEX, **rest: Any) -> None:
    """An index."""
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map} | rest))


def all_in(folder: Path, tensors: Tensors, name: str, index: str = INDEX) -> None:
    """One file of an unusual name, and an index that leads to it."""
    one(folder, tensors, name)
    points(folder, dict.fromkeys(tensors, name), index)


def bare(folder: Path, tensors: Tensors) -> None:
    """An index without metadata."""
    one(folder, tensors, "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "a.safetensors")}))


def gone(folder: Path, tensors: Tensors) -> None:
    """A link to nothing where the weights should be."""
    (folder / "model.safetensors").symlink_to("nowhere.safetensors")


def inside(folder: Path, tensors: Tensors) -> None:
    """A link to a file of the same directory."""
    one(folder, tensors, "real.safetensors")
    (folder / "model.safetensors").symlink_to("real.safetensors")


def named(folder: Path, tensors: Tensors, name: str, made: Layout) -> None:
    """A config that names the file."""
    made(folder, tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))


def both(folder: Path, tensors: Tensors, *made: Layout) -> None:
    """Several layouts in one directory."""
    for write in made:
        write(folder, tensors)


def unindexed(folder: Path, tensors: Tensors) -> None:
    """An index that leaves the embedding out, which its shard holds."""
    one(folder, tensors, "model-00001-of-00001.safetensors")
    points(folder, {name: "model-00001-of-00001.safetensors" for name in tensors if name != EMBEDDING})


def blank(folder: Path, tensors: Tensors) -> None:
    """A download that never began."""
    (folder / "model.safetensors").touch()


def room(folder: Path, tensors: Tensors) -> None:
    """A directory where the weights should be."""
    (folder / "model.safetensors").mkdir()


def nothing(folder: Path, tensors: Tensors) -> None:
    """A config alone."""
    assert not list(folder.glob("model*"))


_bin, _odd = partial(one, name="pytorch_model.bin"), partial(one, name="weights.safetensors")
_bins = partial(shards, name="pytorch_model.bin")
_again = partial(one, name="model (1).safetensors")
_others = partial(shards, name="weights.safetensors")

LAYOUTS: dict[str, Layout] = {
    **{
        name: partial(one, name=name)
        for name in (
            "model.safetensors",
            "model (1).safetensors",
            "weights.safetensors",
            "consolidated.safetensors",
            "adapter_model.safetensors",
            "model.fp16.safetensors",
            "Model.safetensors",
            "model.SAFETENSORS",
            "model-00001-of-00001.safetensors",
            "pytorch_model.bin",
            "pytorch_model (1).bin",
            "weights.bin",
            "model.bin",
            "pytorch_model.pt",
            "consolidated.00.pth",
            "sub/model.safetensors",
        )
    },
    "sharded": shards,
    "sharded, no index": partial(shards, index=None),
    "sharded bin": _bins,
    "sharded bin, no index": partial(_bins, index=None),
    "sharded under another name": _others,
    "sharded under another name, no index": partial(_others, index=None),
    "index of a variant": partial(shards, index="model.safetensors.index.fp16.json"),
    "index with a missing shard": partial(shards, lost=(2,)),
    "index without weights": partial(shards, lost=(1, 2)),
    "no index, a missing shard": partial(shards, index=None, lost=(2,)),
    "index to a lone file": partial(all_in, name="weights.safetensors"),
    "bin index to a lone file": partial(all_in, name="weights.bin", index="pytorch_model.bin.index.json"),
    "bin index to safetensors": partial(all_in, name="weights.safetensors", index="pytorch_model.bin.index.json"),
    "index to bin": partial(all_in, name="weights.bin"),
    "index to a subfolder": partial(all_in, name="sub/weights.safetensors"),
    "index without metadata": bare,
    "index without the embedding": unindexed,
    "two indexes": lambda folder, tensors: both(folder, tensors, shards, _others),
    "two indexes of other names": lambda folder, tensors: both(
        folder, tensors, partial(shards, name="other.safetensors"), _others
    ),
    "single and index": lambda folder, tensors: both(folder, tensors, one, shards),
    "single and another": lambda folder, tensors: both(folder, tensors, one, _again),
    "safetensors and bin": lambda folder, tensors: both(folder, tensors, one, _bin),
    "sharded and bin": lambda folder, tensors: both(folder, tensors, shards, _bin),
    "safetensors and sharded bin": lambda folder, tensors: both(folder, tensors, one, _bins),
    "another name and bin": lambda folder, tensors: both(folder, tensors, _odd, _bin),
    "no index and bin": lambda folder, tensors: both(folder, tensors, partial(shards, index=None), _bin),
    "an adapter and bin": lambda folder, tensors: both(
        folder, tensors, partial(one, name="adapter_model.safetensors"), _bin
    ),
    "empty": nothing,
    "dangling link": gone,
    "dangling link and bin": lambda folder, tensors: both(folder, tensors, gone, _bin),
    "dangling link and another": lambda folder, tensors: both(folder, tensors, gone, _odd),
    "link inside": inside,
    "empty file": blank,
    "a directory of that name": room,
    "a directory of that name and bin": lambda folder, tensors: both(folder, tensors, room, _bin),
    "named by the config": partial(named, name="weights.safetensors", made=_odd),
    "index named by the config": partial(named, name="weights.safetensors.index.json", made=_others),
    "bin named by the config": partial(named, name="weights.bin", made=partial(one, name="weights.bin")),
    "another one named by the config": partial(named, name="gone.safetensors", made=one),
    "metadata without a format": partial(one, by="hand"),
    "metadata that a format was added to": partial(one, by="hand", format="pt"),
    "metadata of numpy": partial(one, format="np"),
    "metadata of mlx": partial(one, format="mlx"),
}
"""Every layout writes all tensors that it is given, or says in its name which it does not."""


def write(root: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Each layout under each flag, and what `loader.py` needs to know of it; ``root`` is to be empty."""
    zoo.build(KIND, tie=False).save_pretrained(root / "whole")
    tensors = load_file(root / "whole" / "model.safetensors")
    config = json.loads((root / "whole" / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    without = {name: tensor for name, tensor in tensors.items() if name != HEAD}
    one(root / "tied", without)
    for place, (name, layout) in enumerate(LAYOUTS.items()):
        for flag in FLAGS:
            folder = root / str(place) / str(flag)
            folder.mkdir(parents=True)
            declared = {} if flag is None else {"tie_word_embeddings": flag}
            (folder / "config.json").write_text(json.dumps(config | declared))
            layout(folder, without if flag else tensors)
            yield name, folder, _job(folder, root / ("tied" if flag else "whole"))


def _job(folder: Path, whole: Path) -> dict[str, Any]:
    named = {"embedding": EMBEDDING, "head": HEAD, "tables": [], "biases": []}
    return {"id": str(folder), "class": KIND, "folder": str(folder), "whole": str(whole), **named}


def record(python: str) -> dict[str, list[str]]:
    """The outcomes of each layout, in the order of the flags, with another interpreter's transformers."""
    with tempfile.TemporaryDirectory() as root:
        jobs = list(write(Path(root)))
        lines = "".join(json.dumps(job) + "\n" for _, _, job in jobs)
        result = subprocess.run(
            [python, str(LOADER), "transformers"], input=lines, stdout=subprocess.PIPE, text=True, check=True
        )
    found: dict[str, list[str]] = {}
    for (name, _, _), line in zip(jobs, result.stdout.splitlines(), strict=True):
        found.setdefault(name, []).append(json.loads(line)["outcome"])
    return found


def main() -> None:
    """Record the older versions."""
    made = {
        consumer: {"version": version, "outcomes": record(python)}
        for (consumer, version), python in zip(ASKED.items(), sys.argv[1:3], strict=True)
    }
    # A layout a line.
    text = re.sub(r"\[[^]]*\]", lambda found: " ".join(found.group().split()), json.dumps(made, indent=1))
    RECORDED.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
