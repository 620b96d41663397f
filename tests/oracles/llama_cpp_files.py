"""Fetch llama.cpp into an environment: its converter from a source package of PyPI, libllama from a package of npm."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from pathlib import Path

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
