"""What tieconv and the formats' own readers make of a model; these run in a process of their own."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import tieconv
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.errors import TieconvError
from tieconv.formats.onnx.tensor import SpeltReader
from tieconv.opened import tensor_reader
from tieconv.sources.local import open_files

SILENCE = 120.0
"""Wall seconds after which a reference reader counts as hung: its first answer waits for its imports."""
PATIENCE = 2.0
"""CPU seconds that a reference reader gets where Python can stop it."""
MEMORY = 12 << 30
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Verdict:
    """What a reference reader says: ``why`` it refuses, empty where it accepts, and the tensors that it sees."""

    why: str
    tensors: dict[str, list[object]] = field(default_factory=dict)


class Reference:
    """A process that reads with the readers of the formats, started again where it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, kind: str, path: Path) -> Verdict | None:
        """Return what the reader of ``kind`` makes of ``path``; ``None`` where it crashes, hangs or takes too long."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps([kind, str(path)]).encode() + b"\n")
            process.stdin.flush()
            ready = select.select([process.stdout], [], [], SILENCE)[0]
            line = process.stdout.readline() if ready else b""
        except BrokenPipeError:
            line = b""
        if not line:
            self.close()
            return None
        answer = json.loads(line)
        if isinstance(answer, str):
            raise ModuleNotFoundError(answer)
        return Verdict(*answer) if answer else None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.reference"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            )
        return self._process


# -- inside the process


def _safetensors(path: str) -> dict[str, list[object]]:
    from safetensors import deserialize, safe_open

    with safe_open(path, "np") as file:
        file.metadata()
        names = set(file.keys())
    found = {
        name: [info["dtype"], list(info["shape"]), zlib.crc32(info["data"])]
        for name, info in deserialize(Path(path).read_bytes())
    }
    assert set(found) == names
    return found


def _torch(path: str) -> dict[str, list[object]]:
    import torch

    found: dict[str, list[object]] = {}
    value = torch.load(path, map_location="cpu", weights_only=True)
    for name, tensor in value.items() if isinstance(value, dict) else ():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return {}
        if tensor.numel() > 1 << 20:
            return {}
        data = (
            tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()
            if tensor.numel()
            else b""
        )
        found[name] = ["", list(tensor.shape), zlib.crc32(data)]
    return found


def _dcp(path: str) -> dict[str, list[object]]:
    """Read the metadata as `FileSystemReader` does, and plan the load of every tensor; chunks stay unread.

    torch unpickles without an allow-list, so here only the names that tieconv allows are imported.
    """
    import pickle
    from types import SimpleNamespace

    from torch.distributed.checkpoint import FileSystemReader, filesystem
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

    from tieconv.formats.dcp import ALLOWED

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            if f"{module}.{name}" not in ALLOWED:
                raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
            return super().find_class(module, name)

    filesystem.pickle = SimpleNamespace(load=lambda file: Restricted(file).load())  # type: ignore[attr-defined]
    reader = FileSystemReader(Path(path).parent)
    metadata = reader.read_metadata()
    sizes = [getattr(entry, "size", ()) for entry in metadata.state_dict_metadata.values()]
    if any(math.prod(size) > 1 << 22 for size in sizes):
        raise MemoryError
    metadata.planner_data = None  # a load into a model does not use it
    planner = _EmptyStateDictLoadPlanner()
    planner.set_up_planner({}, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    for item in planner.create_local_plan().items:
        reader.storage_data[item.storage_index].relative_path  # noqa: B018
    return {}


def _gguf(path: str) -> dict[str, list[object]]:
    import gguf

    return {
        tensor.name: [tensor.tensor_type.name, [int(n) for n in reversed(tensor.shape)], zlib.crc32(tensor.data)]
        for tensor in gguf.GGUFReader(path).tensors
    }


def _onnx(path: str) -> dict[str, list[object]]:
    import onnx
    import onnxruntime

    try:
        onnx.checker.check_model(path)
    except Exception as error:
        raise ValueError(f"checker: {error}") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"session: {error}") from None
    model = onnx.load(path, load_external_data=True)
    return {one.name: ["", list(one.dims), zlib.crc32(one.raw_data)] for one in model.graph.initializer if one.raw_data}


def _json(path: str) -> dict[str, list[object]]:
    if not isinstance(json.loads(Path(path).read_text(encoding="utf-8")), dict):
        raise ValueError("not an object")
    return {}


READERS: dict[str, Callable[[str], dict[str, list[object]]]] = {
    "safetensors": _safetensors, "torch": _torch, "dcp": _dcp, "gguf": _gguf, "onnx": _onnx, "json": _json,
}  # fmt: skip


NEEDED = {
    "safetensors": ("safetensors", "numpy"), "torch": ("torch",), "dcp": ("torch.distributed.checkpoint",),
    "gguf": ("gguf",), "onnx": ("onnx", "onnxruntime"),
}  # fmt: skip


def _serve() -> None:
    import resource
    import warnings

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGPROF, _stop)
    for line in sys.stdin:
        kind, path = json.loads(line)
        for module in NEEDED.get(kind, ()):
            with suppress(ImportError):
                import_module(module)
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        print(json.dumps(_verdict(kind, path)), file=answers, flush=True)


def _stop(_number: int, _frame: object) -> NoReturn:
    raise TimeoutError


def _verdict(kind: str, path: str) -> list[Any] | str | None:
    """Return the reason of a refusal and the tensors, or which package is not here; ``None`` without a verdict."""
    try:
        for module in NEEDED.get(kind, ()):
            import_module(module)
    except ImportError as error:
        return str(error)
    try:
        return ["", READERS[kind](path)]
    except (TimeoutError, MemoryError):
        return None
    except Exception as error:
        return [f"{type(error).__name__}: {error}"[:2000], {}]


if __name__ == "__main__":
    _serve()


ABOUT_FILES = frozenset({"FMT001", "ONX005", "IDX001"})
"""Rules whose findings, at level error, say that a file is not what its format asks for."""
UNEXPECTED = "unexpected "
"""How the report of an exception starts that is none of tieconv's."""
LARGEST = 1 << 20


@dataclass(frozen=True)
class Reading:
    """``refused`` is the code of the refusal, ``reported`` the rules of findings about files at level error."""

    refused: str = ""
    reported: tuple[str, ...] = ()
    tensors: dict[str, list[object]] = field(default_factory=dict)

    @property
    def silent(self) -> bool:
        """Whether a user would take the model for a good one."""
        return not self.refused and not self.reported


def read(path: Path) -> Reading:
    """Return what tieconv says of the model at ``path`` by its header, and the bytes of its small tensors."""
    try:
        inspection = tieconv.inspect(path, depth="header")
    except TieconvError as error:
        return Reading(error.code)
    except Exception as error:
        return Reading("", (f"{UNEXPECTED}{error!r}",))
    reported = {one.rule for one in inspection.findings if str(one.level) == "error"} & ABOUT_FILES
    try:
        return Reading("", tuple(sorted(reported)), _tensors(inspection.checkpoint))
    except TieconvError as error:
        return Reading(error.code)


def _tensors(checkpoint: Checkpoint) -> dict[str, list[object]]:
    with open_files(checkpoint.root) as files:
        reader = tensor_reader(checkpoint, files) if checkpoint.table else SpeltReader(files, files)
        return {name: _seen(record, reader) for name, record in checkpoint.tensors.items()}


def _seen(record: TensorRecord, reader: ByteReader) -> list[object]:
    """Return dtype, shape and checksum; ``None`` for the bytes of a view and of what is large."""
    if record.stride is not None or record.range.size > LARGEST:
        return [record.dtype, list(record.shape), None]
    buffer = bytearray(record.range.size)
    reader.read_into(record.range, 0, memoryview(buffer))
    return [record.dtype, list(record.shape), zlib.crc32(buffer)]
