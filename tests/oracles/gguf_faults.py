"""Load faulty GGUF files of each class: ``python -m tests.oracles.gguf_faults PYTHON CLASS ...``.

They lack a layer, a matrix, a norm or the embedding, or their metadata contradicts the tensors. PYTHON is the
interpreter of the environment `llama.cpp` of `tests.oracles.environments`. It converts a small model of each class,
writes the faulty files, and loads each with libllama. This prints the row of tieconv and the error that was seen. It
exits with 1 if an error was predicted and not seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Tensors = dict[str, Any]
Fields = dict[str, tuple[Any, ...]]
"""The value of each key, its type, and the type of an array's entries."""
Fault = tuple[str, Callable[[Tensors, Fields], object]]
"""A title, and what happens to the tensors and the metadata of a model with two layers."""


def faults(names: list[str], architecture: str, asked: dict[str, Any]) -> Iterator[Fault]:
    """Yield the faults of a file with these tensors. Layer 1 becomes layer 2 where more than two are compared.

    ``asked`` is what tieconv knows of the architecture: its needed keys and tensors.
    """
    starts = ["enc.blk.", "dec.blk."] if "enc.blk.0.attn_norm.weight" in names else ["blk."]

    def repeat(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(f"{starts[0]}1.")]:
            tensors[name.replace("blk.1.", "blk.2.", 1)] = tensors[name]

    def three(tensors: Tensors, fields: Fields) -> None:
        repeat(tensors)
        for key, (value, *types) in fields.items():
            if isinstance(value, list) and len(value) == 2:  # a number for each layer
                fields[key] = ([*value, value[-1]], *types)
        change(fields, "block_count", lambda number: number + 1)

    def drop(tensors: Tensors, ends: tuple[str, ...], *, first: bool = False) -> None:
        for name in [name for name in names if name.startswith(ends)][: 1 if first else None]:
            del tensors[name]

    def toggle_bias(tensors: Tensors) -> None:
        if tensors.pop("output.bias", None) is None:
            tensors["output.bias"] = tensors["token_embd.weight"][:, 0].copy()

    def change(fields: Fields, key: str, to: Callable[[Any], Any]) -> None:
        key = f"{architecture}.{key}"
        if key in fields and not isinstance(fields[key][0], list):
            fields[key] = (to(fields[key][0]), *fields[key][1:])

    def another_size(fields: Fields, more: int) -> None:
        length = len(fields["tokenizer.ggml.tokens"][0])
        for key, (value, *types) in fields.items():
            if isinstance(value, list) and len(value) == length:
                longer = [f"{value[-1]}{number}" if isinstance(value[-1], str) else value[-1] for number in range(more)]
                fields[key] = ([*value, *longer][: length + more], *types)

    yield "whole", lambda tensors, fields: None
    yield "surplus", lambda tensors, fields: repeat(tensors)
    yield "another bias", lambda tensors, fields: toggle_bias(tensors)
    yield "no embedding", lambda tensors, fields: tensors.pop("token_embd.weight")
    for start in starts:
        yield f"no {start}1", lambda tensors, fields, start=start: drop(tensors, (f"{start}1.",))
    if starts == ["blk."] and ABORTS.get(architecture) != "block_count":
        yield "three", three
        matrices = tuple(f"blk.1.{name}" for name in ("attn_output", "attn_q.w", "attn_qkv.w", "ssm_in"))
        yield "no matrix", lambda tensors, fields: (three(tensors, fields), drop(tensors, matrices, first=True))
    yield "unknown tensor", lambda tensors, fields: tensors.update({"my.tensor": tensors[names[0]]})
    yield "more tokens", lambda tensors, fields: another_size(fields, 8)
    yield "fewer tokens", lambda tensors, fields: another_size(fields, -8)
    yield "no tokens", lambda tensors, fields: fields.pop("tokenizer.ggml.tokens")
    for key in asked.get("needed keys", ()):
        name = f"{architecture}.{key}"
        yield f"no {key}", lambda tensors, fields, name=name: fields.pop(name)
        yield f"text for {key}", lambda tensors, fields, name=name: fields.update({name: ("1", STRING, None)})
    for name in asked.get("needed tensors", ()):
        yield f"no {name}", lambda tensors, fields, name=name: tensors.pop(name)
    for key in {"feed_forward_length", "attention.head_count", "embedding_length"} - {ABORTS.get(architecture)}:
        yield f"another {key}", lambda tensors, fields, key=key: change(fields, key, lambda number: number + 1)


ABORTS = {
    "granitehybrid": "embedding_length",
    "hrm_text": "block_count",
    "jamba": "embedding_length",
    "nemotron": "attention.head_count",
}
"""A key of which another number fails an assertion of libllama. Such a file is not loaded."""
STRING = 8
"""The number of the type."""


def write(source: Path, folder: Path) -> None:
    """Convert the model in ``source``, write each faulty file to ``folder``, and print what libllama says of it."""
    sys.path.insert(0, str(Path(__file__).parent))
    import numpy as np
    import run_llama_cpp

    converter, library = run_llama_cpp.Converter(), run_llama_cpp.Library()
    import gguf

    whole = folder / "converted.gguf"
    converter.convert(converter.prepared(source, folder / "copy"), whole)
    reader = gguf.GGUFReader(whole)
    architecture = reader.fields["general.architecture"].contents()
    tables = json.loads((Path(__file__).parents[2] / "tieconv/loaders/data/llama.cpp.json").read_text())["tables"]
    asked = tables["files"].get(architecture, {})
    for title, change in faults([tensor.name for tensor in reader.tensors], architecture, asked):
        path = folder / f"{title}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        fields = {
            name: (value := field.contents(), field.types[0], field.types[-1] if isinstance(value, list) else None)
            for name, field in reader.fields.items()
            if not name.startswith("GGUF.") and name != "general.architecture"
        }
        tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        change(tensors, fields)
        for name, (value, kind, subtype) in fields.items():
            writer.add_key_value(name, value, gguf.GGUFValueType(kind), sub_type=subtype)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        try:
            library.logits(path, [1, 2, 3])
            print(f"{title}|", flush=True)
        except RuntimeError as error:
            print(f"{title}|{error}".replace("\n", " "), flush=True)


def main(python: str, *classes: str) -> int:
    """Print each file, and return how many predicted errors were not seen, at most 1."""
    from tests.oracles import checkpoints
    from tieconv import inspect

    wrong = 0
    for kind in classes:
        with tempfile.TemporaryDirectory() as name:
            made = checkpoints.base(kind, Path(name) / "base")
            cell = checkpoints.Cell(kind, (True,) * checkpoints.levels(made.family), "equal")
            model = checkpoints.write(cell, made, Path(name) / "model")
            command = [python, __file__, "--write", str(model), name]
            for line in subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
                title, _, seen = line.partition("|")
                row = inspect(Path(name) / f"{title}.gguf", consumers="llama.cpp").consumers[-1]
                print(f"{kind}, {title}: predicted {row.outcome}, saw {seen or 'logits'}"[:200], flush=True)
                wrong += row.outcome == "error" and not seen
    return min(wrong, 1)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(main(*sys.argv[1:]))
