"""Which execution provider a session asks for, and what stands against it."""

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
    """What goes to onnxruntime as ``providers``, and notes for the report."""

    providers: list[Any]
    notes: tuple[str, ...] = ()


def runtime() -> Any:
    """The module onnxruntime; `MissingPackageError` with the pip command where it is missing or half removed."""
    ort = need("onnxruntime", "onnx", "running an ONNX graph")
    if not hasattr(ort, "InferenceSession"):
        # Removing one of the two packages takes files of the other along.
        raise MissingPackageError("the package onnxruntime is installed in part only", _CLASH, "session.packages")
    return ort


@record
class Package:
    """A distribution that provides the module onnxruntime, and the directory that it does so in."""

    name: str
    version: str
    directory: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def installed() -> list[Package]:
    """The distributions that provide the module onnxruntime, the first of each name on the path."""
    packages = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            made = importlib.metadata.distribution(name)
            packages.append(Package(name, made.version, os.path.realpath(str(made.locate_file("onnxruntime")))))
    return packages


def choose(ort: Any, provider: str, *, tf32: bool) -> Choice:
    """The providers for ``auto``, ``cpu`` or ``cuda``; `NotRunError` where CUDA is asked for and cannot be."""
    notes = _clash_notes(provider)
    if provider == "cpu":
        return Choice([CPU], notes)
    if CUDA not in ort.get_available_providers():
        if provider == "auto":
            return Choice([CPU], notes)
        raise _no_provider(ort)
    preload(ort)
    # Without use_tf32=0 float32 products are rounded to 10 bits on the tensor cores; torch does not do so.
    return Choice([(CUDA, {"use_tf32": "1" if tf32 else "0"}), CPU], notes)


def _no_provider(ort: Any) -> NotRunError:
    message, hint = f"the installed onnxruntime {ort.__version__} has no CUDA provider", ""
    here = os.path.realpath(os.path.dirname(getattr(ort, "__file__", None) or ""))
    for package in installed():
        if package.name == "onnxruntime-gpu" and package.directory != here:
            message += f"; {package} has one and comes behind it on Python's path"
            hint = f"pip uninstall -y onnxruntime, or PYTHONPATH={shown(os.path.dirname(package.directory))}"
    return NotRunError(message, hint or f"pip uninstall -y onnxruntime && {install_command('gpu')}", "session.no-cuda")


def _clash_notes(provider: str) -> tuple[str, ...]:
    """Two packages in one directory overwrite each other; in two, the first on the path is whole."""
    both = installed()
    if len({package.directory for package in both}) == len(both):
        return ()
    names = " and ".join(map(str, both))
    sentence = f"{names} are both installed: they share one directory, and whichever came last runs"
    if provider == "cuda":
        raise NotRunError(sentence, _CLASH, "session.packages")
    return (f"{sentence}; to have one: {_CLASH}",)


def preload(ort: Any) -> None:
    """Load the CUDA and cuDNN libraries of the nvidia packages; what is missing shows when the session opens."""
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(OSError, RuntimeError, ImportError):
            ort.preload_dlls()


def versions(ort: Any) -> dict[str, str]:
    """What ran: onnxruntime, its CUDA, and the packages around it."""
    releases = {"onnxruntime": str(ort.__version__)}
    cuda = getattr(ort, "cuda_version", "")
    if cuda:
        releases["cuda"] = str(cuda)
    for name in ("onnx", "onnx-ir", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases[name] = importlib.metadata.version(name)
    return releases
