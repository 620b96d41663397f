"""Choose the execution provider of a session, and find package conflicts."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.errors import MissingPackageError, NotRunError
from tieconv.install import install_command
from tieconv.reference.packages import need
from tieconv.text import shown

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
_CLASH = f"pip uninstall -y onnxruntime onnxruntime-gpu && {install_command('gpu')}"


@record
class Choice:
    """The ``providers`` argument of onnxruntime, and notes for the report."""

    providers: list[Any]
    notes: tuple[str, ...] = ()


def runtime() -> Any:
    """Return the module onnxruntime. Raises `MissingPackageError` if it is missing or incomplete."""
    ort = need("onnxruntime", "onnx", "running an ONNX graph")
    if not hasattr(ort, "InferenceSession"):
        # Removing one of the two packages also removes files of the other.
        raise MissingPackageError(
            "the installation of the package onnxruntime is incomplete", _CLASH, "session.packages"
        )
    return ort


@record
class Package:
    """A distribution that provides the module onnxruntime, and the module's directory."""

    name: str
    version: str
    directory: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def installed() -> list[Package]:
    """Return the distributions that provide the module onnxruntime, the first of each name on the path."""
    packages = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            made = importlib.metadata.distribution(name)
            packages.append(Package(name, made.version, os.path.realpath(str(made.locate_file("onnxruntime")))))
    return packages


def device_id(provider: str) -> int:
    """Return the device of ``cuda:1``, and 0 where none is named."""
    return int(provider.partition(":")[2] or 0)


def choose(ort: Any, provider: str, *, tf32: bool) -> Choice:
    """Return the providers for a name that `open_session` accepts. Raises `NotRunError` if CUDA is impossible."""
    notes = _clash_notes(provider)
    if provider == "cpu":
        return Choice([CPU], notes)
    if CUDA not in ort.get_available_providers():
        if provider == "auto":
            return Choice([CPU], notes)
        raise _no_provider(ort)
    preload(ort)
    # Without use_tf32=0 the tensor cores round float32 products to 10 bits; torch does not.
    return Choice([(CUDA, {"device_id": str(device_id(provider)), "use_tf32": "1" if tf32 else "0"}), CPU], notes)


def _no_provider(ort: Any) -> NotRunError:
    message, hint = f"the installed onnxruntime {ort.__version__} has no CUDA provider", ""
    here = os.path.realpath(os.path.dirname(getattr(ort, "__file__", None) or ""))
    for package in installed():
        if package.name == "onnxruntime-gpu" and package.directory != here:
            message += f"; {package} has one but is later on Python's path"
            hint = f"pip uninstall -y onnxruntime, or PYTHONPATH={shown(os.path.dirname(package.directory))}"
    return NotRunError(message, hint or f"pip uninstall -y onnxruntime && {install_command('gpu')}", "session.no-cuda")


def _clash_notes(provider: str) -> tuple[str, ...]:
    """Return a note if two packages share one directory, because they overwrite each other.

    In separate directories, the first package on the path works.
    """
    both = installed()
    if len({package.directory for package in both}) == len(both):
        return ()
    names = " and ".join(map(str, both))
    sentence = f"{names} are both installed in one directory, so the last one overwrote the other"
    if provider.startswith("cuda"):
        raise NotRunError(sentence, _CLASH, "session.packages")
    return (f"{sentence}; to keep one: {_CLASH}",)


def preload(ort: Any) -> None:
    """Load the CUDA and cuDNN libraries of the nvidia packages. A missing one is reported when the session opens."""
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(OSError, RuntimeError, ImportError):
            ort.preload_dlls()


def versions(ort: Any) -> dict[str, str]:
    """Return the versions of onnxruntime, its CUDA, and related packages."""
    releases = {"onnxruntime": str(ort.__version__)}
    cuda = getattr(ort, "cuda_version", "")
    if cuda:
        releases["cuda"] = str(cuda)
    for name in ("onnx", "onnx-ir", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases[name] = importlib.metadata.version(name)
    return releases
