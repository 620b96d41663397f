"""A device without a GPU: shared libraries in place of CUDA's, made from what onnxruntime's provider asks for.

They take memory, count it, and compute nothing (``standin.c``). What onnxruntime does before it computes, it does as on
a GPU: which nodes it places there, and which weights it copies there, how often.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

from tests.lazy import ort_session

STANDIN = "standin"
"""What it is called where a provider is chosen."""
SOURCE = Path(__file__).with_suffix(".c")
TOOLS = ("cc", "nm", "readelf")
DRIVER, RUNTIME = "libcuda.so.1", "libcudart.so.13"
LIBRARIES = re.compile(r"lib(?:cuda|cudart|cublas|cublasLt|curand)\.so\.\d+")
_DEFINED = re.compile(r"^EXPORT [\w ]+?\**(\w+)\(", re.MULTILINE)
_ALONE = re.compile(r"cu[A-Z]\w+")
"""A function of the driver: those have no version."""


def provider_library() -> Path:
    """onnxruntime's CUDA provider."""
    import onnxruntime

    return Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"


def without_standin() -> str:
    """Why the stand-in cannot be used here, in one sentence; empty where it can."""
    import onnxruntime
    import torch

    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not found: {', '.join(missing)} (a C compiler and binutils)"
    if ort_session.CUDA not in onnxruntime.get_available_providers() or not provider_library().is_file():
        return f"onnxruntime {onnxruntime.__version__} has no CUDA provider (pip install onnxruntime-gpu)"
    if RUNTIME not in needs(provider_library()):
        return f"onnxruntime {onnxruntime.__version__} is not built for CUDA 13, which the stand-in is of"
    if torch.version.cuda or _has_runtime():
        return (
            "CUDA's own libraries are installed, which onnxruntime would load in its place: take a CPU build of torch"
        )
    return ""


def _has_runtime() -> bool:
    return any("nvidia-cuda-runtime" in (made.name or "").lower() for made in importlib.metadata.distributions())


def free_bytes() -> int:
    """What the stand-in has free, in this process."""
    unused, total = ctypes.c_size_t(), ctypes.c_size_t()
    ctypes.CDLL(RUNTIME).cudaMemGetInfo(ctypes.byref(unused), ctypes.byref(total))
    return unused.value


def undefined(library: Path) -> dict[str, set[str]]:
    """The functions that ``library`` asks of CUDA, by the library that it asks for them."""
    told = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True).stdout
    found: dict[str, set[str]] = defaultdict(set)
    for name, _, owner in (line.split()[-1].partition("@") for line in told.splitlines()):
        if LIBRARIES.fullmatch(owner):
            found[owner].add(name)
        elif not owner and _ALONE.fullmatch(name):
            found[DRIVER].add(name)
    return found


def build(library: Path, version: str, folder: Path) -> None:
    """Into ``folder``, under the name of every library of CUDA that ``library`` needs, one that serves it.

    ``version`` is the CUDA to pretend ("13.0"). Raises `subprocess.CalledProcessError` where the compiler fails.
    """
    asked = undefined(library)
    source = SOURCE.read_text(encoding="utf-8")
    defined = set(_DEFINED.findall(source))
    idle = sorted(set().union(*asked.values()) - defined)
    major, minor = (int(part) for part in version.split(".")[:2])
    made = folder / "standin.so"
    stubs = "".join(f"EXPORT int {name}(void) {{ return 0; }}\n" for name in idle)
    (folder / "standin.c").write_text(f"{source}\n{stubs}", encoding="utf-8")
    (folder / "standin.map").write_text(_versions(asked, defined), encoding="utf-8")
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", f"-DCUDA_VERSION={1000 * major + 10 * minor}", "-o", made,
               folder / "standin.c", f"-Wl,--version-script={folder / 'standin.map'}"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    for name in needs(library):
        (folder / name).symlink_to(made.name)


def _versions(asked: dict[str, set[str]], defined: set[str]) -> str:
    """The loader looks for every function under the version that the provider was linked with."""
    taken = set().union(*(names for owner, names in asked.items() if owner != DRIVER))
    versions = [
        f"{owner} {{ global: {'; '.join(sorted(names))}; }};"
        for owner, names in sorted(asked.items())
        if owner != DRIVER
    ]
    alone = sorted((asked.get(DRIVER, set()) | defined) - taken)
    return "\n".join([f"STANDIN {{ global: {'; '.join(alone)}; local: *; }};", *versions, ""])


def needs(library: Path) -> list[str]:
    """The libraries of CUDA that the loader looks for before it loads ``library``."""
    told = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return [name for name in re.findall(r"\(NEEDED\).*\[(.+)\]", told) if LIBRARIES.fullmatch(name)]
