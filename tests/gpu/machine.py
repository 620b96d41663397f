"""What measures: device, driver, libraries and packages; and why a GPU cannot, where it cannot."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import tieconv
from tests.lazy import ort_session

PACKAGES = (
    "torch", "transformers", "onnx", "onnx-ir", "onnxscript", "numpy", "safetensors", "onnxruntime", "onnxruntime-gpu",
    "nvidia-cublas", "nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-curand",
)  # fmt: skip
_QUERY = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]


def without_gpu() -> str:
    """Why nothing can be measured on CUDA here, in one sentence; empty where it can."""
    try:
        import onnxruntime
        import torch
    except ImportError as error:
        return f"a package is missing: {error}"
    if ort_session.CUDA not in onnxruntime.get_available_providers():
        return f"onnxruntime {onnxruntime.__version__} has no CUDA provider (pip install 'tieconv[gpu]')"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return ""


def describe(provider: str) -> dict[str, Any]:
    """The same on every run of one machine. Nothing of a GPU is told where the CPU is what runs."""
    import onnxruntime
    import torch

    return {
        "gpu": _gpu(torch) if provider == "cuda" else None,
        "cpu": {"name": _processor(), "cores": os.cpu_count()}
        | {"system": platform.system(), "machine": platform.machine()},
        "python": platform.python_version(),
        "onnxruntime": {"version": onnxruntime.__version__, "cuda": getattr(onnxruntime, "cuda_version", "") or None},
        "torch": {
            "version": str(torch.__version__),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        },
        "packages": _packages(),
    }


def _gpu(torch: Any) -> dict[str, Any]:
    made = torch.cuda.get_device_properties(0)
    found = {
        "name": made.name,
        "capability": f"{made.major}.{made.minor}",
        "multiprocessors": made.multi_processor_count,
        "bytes": made.total_memory,
        "driver": None,
        "driver_cuda": _driver_cuda(),
    }
    if shutil.which(_QUERY[0]):
        done = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode == 0 and done.stdout.strip():
            found["driver"] = done.stdout.splitlines()[0].split(",")[1].strip()
    return found


def _driver_cuda() -> str | None:
    """The newest CUDA that the driver serves."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        named = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        named = None
    return named[1].strip() if named else platform.processor()


def source() -> str:
    """The code that measures: a digest of tieconv's modules, as a version says too little of a checkout."""
    root = Path(tieconv.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def loaded_libraries() -> list[str]:
    """The CUDA libraries that this process has loaded, by file name."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted(set(re.findall(r"/(lib(?:cublas|cudnn|cudart|curand|cufft|nvrtc)[\w.-]*\.so[\d.]*)$", maps, re.M)))
