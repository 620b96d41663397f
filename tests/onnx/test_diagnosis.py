"""Why CUDA does not start: each cause is told from the loader's and the driver's own words, with the next command."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lazy import ort_session
from tests.loops import case
from tieconv.install import install_command

INSTALL = install_command("gpu", upgrade=True)
LOADED = "undefined symbol: Provider_GetHost"
"""What the loader says of the provider's library when every library that it needs was found."""


@pytest.fixture
def runtime(tmp_path: Path) -> SimpleNamespace:
    """A package onnxruntime built for CUDA 13, with its provider's library."""
    (tmp_path / "capi").mkdir()
    windows = sys.platform == "win32"
    (
        tmp_path / "capi" / ("" if windows else "lib" + f"onnxruntime_providers_cuda.{'dll' if windows else 'so'}")
    ).touch()
    return SimpleNamespace(__version__="1.31.1", cuda_version="13.0", __file__=str(tmp_path / "__init__.py"))


@pytest.fixture(autouse=True)
def _visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tieconv.onnx.ort_session._torch_cuda", lambda: "13.0")


def loader(said: str = LOADED, version: int = 13000, status: int = 0, count: int = 1) -> Callable[[str], Any]:
    """A dynamic loader that fails on the provider's library with ``said``, and a driver with these answers."""

    def number(pointer: Any, value: int) -> int:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = value
        return 0

    driver = SimpleNamespace(
        cuDriverGetVersion=lambda pointer: number(pointer, version),
        cuInit=lambda flags: status,
        cuDeviceGetCount=lambda pointer: number(pointer, count),
    )

    def load(path: str) -> Any:
        if "providers_cuda" in path:
            raise OSError(f"{path}: {said}" if said == LOADED else said)
        return driver

    return load


ABSENT = "{}: cannot open shared object file: No such file or directory"


CAUSES = (
    # what the loader and the driver answer, the code, a part of the reason, a part of the next command
    (ABSENT.format("libcublasLt.so.13"), {}, "cuda-libraries", "libcublasLt.so.13 of CUDA 13 is missing", INSTALL),
    (ABSENT.format("libcudart.so.13"), {}, "cuda-libraries", "libcudart.so.13 of CUDA 13 is missing", INSTALL),
    (ABSENT.format("libcurand.so.10"), {}, "cuda-libraries", "libcurand.so.10 of CUDA 13 is missing", INSTALL),
    (ABSENT.format("libcudnn.so.9"), {}, "cudnn", "libcudnn.so.9 of cuDNN is missing", INSTALL),
    (ABSENT.format("libcuda.so.1"), {}, "no-driver", "libcuda.so.1, a library of the NVIDIA driver", "nvidia-smi"),
    ("/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", {}, "library", "GLIBCXX_3.4.32", INSTALL),
    # a driver of CUDA 11 lacks a function that the provider links to
    ("p.so: undefined symbol: cuTensorMapEncodeTiled", {"version": 11080}, "old-driver", "CUDA 11.8", "580 or newer"),
    # told before a device is asked for
    (LOADED, {"version": 12040, "status": 35}, "old-driver", "supports CUDA 12.4", "580 or newer"),
    # another status is given as it is: here the module and the library are of two versions
    (LOADED, {"status": 803}, "no-driver", "error 803", "nvidia-smi"),
)


def test_each_cause(runtime: SimpleNamespace) -> None:
    """What is missing or too old is named, and the extra that brings it; no wheel brings a driver."""
    for said, answers, code, why, hint in CAUSES:
        with case(said, answers):
            found = ort_session.diagnose(runtime, load=loader(said, **answers))
            assert found.code == f"session.{code}"
            assert why in found.why
            assert hint in found.hint
            assert ("pip" in found.hint) == (hint == INSTALL)


def test_another_major_of_cuda(runtime: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch came with CUDA 12, onnxruntime wants 13: both majors are named."""
    monkeypatch.setattr("tieconv.onnx.ort_session._torch_cuda", lambda: "12.8")
    found = ort_session.diagnose(runtime, load=loader(ABSENT.format("libcublasLt.so.13")))
    assert found.code == "session.cuda-major"
    assert "torch installs CUDA 12.8" in found.why
    assert found.hint.startswith(INSTALL)


def test_an_error_of_the_driver(runtime: SimpleNamespace) -> None:
    """onnxruntime's own words tell of an old driver too."""
    found = ort_session.diagnose(runtime, "CUDA failure 35: insufficient", load=loader(version=12020))
    assert "supports CUDA 12.2" in found.why


@pytest.mark.parametrize("answers", [{"status": 100}, {"count": 0}])
def test_no_device(runtime: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, answers: dict[str, int]) -> None:
    """A driver without a GPU; where the variable hides it, the variable is what to change."""
    found = ort_session.diagnose(runtime, load=loader(**answers))
    assert (found.code, "--gpus all" in found.hint) == ("session.no-device", True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert ort_session.diagnose(runtime, load=loader(**answers)).hint == "unset CUDA_VISIBLE_DEVICES"


def test_a_package_without_its_library(runtime: SimpleNamespace, tmp_path: Path) -> None:
    """The file is not in the package."""
    for path in (tmp_path / "capi").iterdir():
        path.unlink()
    assert ort_session.diagnose(runtime, load=loader()).code == "session.incomplete"


def test_nothing_is_found(runtime: SimpleNamespace) -> None:
    """Where all is in place, what onnxruntime said is passed on, and how it is made to say more."""
    said = "[ONNXRuntimeError] : 1 : FAIL : cuda_call.cc:154 void CudaCall() [with THRW = true] "
    found = ort_session.diagnose(
        runtime, said + "CUBLAS failure 3: the resource allocation failed ; GPU=0", load=loader()
    )
    assert found.why == "CUBLAS failure 3: the resource allocation failed"
    assert ort_session.diagnose(runtime, "another reason", load=loader()).why == "another reason"
    assert "print_debug_info" in found.hint
