"""Choose the execution provider of a session, and find package conflicts."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import io
import os
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
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


# Find out why the CUDA provider does not start. onnxruntime only logs it, so ask loader and driver.


INSTALL = install_command("gpu", upgrade=True)
UNKNOWN = "session.fallback"
"""The code if no cause is identified."""
_DRIVER = "nvidia-smi must list a GPU: install the NVIDIA driver; in a container, start it with its GPU (--gpus all)"
_ABSENT = re.compile(r"(lib[\w-]+\.so(?:\.\d+)*): cannot open shared object file")
_FAILURE = re.compile(r"CUDA failure (\d+)")
_CALL = re.compile(r"\b(?:CUDA|CUBLAS|CUDNN|CUFFT) failure \d+: [^;]*")
_UNAVAILABLE = re.compile(r"\b(cuDNN|cuFFT) is unavailable")
_OLDEST = {13: "580", 12: "525"}
"""The oldest driver that runs each major of CUDA (NVIDIA's release notes, table 2)."""

Load = Callable[[str], Any]


@record
class Cause:
    """The problem as a clause, the next command, and a stable code."""

    why: str
    hint: str
    code: str


def diagnose(ort: Any, error_text: str = "", load: Load = ctypes.CDLL) -> Cause:
    """Return the first problem of CUDA: onnxruntime's ``error_text``, a library, the driver, or the device."""
    return (
        _cause_in(ort, error_text, load)
        or _libraries(ort, load)
        or _device(ort, load)
        or Cause(
            _call(error_text)
            or shown(error_text, 300)
            or "the cause is unknown: its libraries load and a device responds",
            f"print onnxruntime's report: python -c 'import onnxruntime as o; o.print_debug_info()'; then {INSTALL}",
            UNKNOWN,
        )
    )


def no_such_device(number: int, load: Load = ctypes.CDLL) -> Cause | None:
    """Return the cause if the driver has GPUs, but none with this ``number``."""
    count = ctypes.c_int(0)
    try:
        driver = _driver(load)
        status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError):
        return None
    if status or not 0 < count.value <= number:
        return None
    visible = "the only visible GPU is 0" if count.value == 1 else f"the visible GPUs are 0 to {count.value - 1}"
    return Cause(f"there is no device {number}: {visible}", "nvidia-smi -L lists the GPUs", "session.no-such-device")


def failed_while_run(ort: Any, error_text: str, load: Load = ctypes.CDLL) -> Cause | None:
    """Return what failed while a graph ran on CUDA, or ``None`` if device and libraries did not fail.

    onnxruntime loads cuDNN and cuFFT when the first node needs them, not when a session starts.
    """
    absent, failure = _UNAVAILABLE.search(error_text), _call(error_text)
    if absent:
        why = f"a node of the graph needs {absent[1]}, which onnxruntime {ort.__version__} cannot load"
        return Cause(why, INSTALL, f"session.{absent[1].lower()}")
    if failure:
        sentence = f"the device or its libraries failed while the graph ran: {failure}"
        return _cause_in(ort, error_text, load) or Cause(
            sentence, "check the GPU with nvidia-smi, then run the command again", "session.device"
        )
    return None


def _call(error_text: str) -> str:
    """Return the failed call without its C++ context: "CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED"."""
    call = _CALL.search(error_text)
    return shown(call[0].strip(), 300) if call else ""


def _major(ort: Any) -> int:
    """Return the major CUDA version that onnxruntime is built for, or 0 if it does not say."""
    major = str(getattr(ort, "cuda_version", "") or "").partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _cause_in(ort: Any, error_text: str, load: Load) -> Cause | None:
    failure = _FAILURE.search(error_text)
    number = int(failure[1]) if failure else 0
    if number in (35, 36):
        return _old_driver(ort, load)
    if number in (100, 101):
        return _no_device()
    if number == 209 or "no kernel image" in error_text:
        return Cause(
            "this onnxruntime has no kernels for the architecture of this GPU",
            f"install an onnxruntime-gpu that is built for this GPU: {INSTALL}",
            "session.architecture",
        )
    return None


def _libraries(ort: Any, load: Load) -> Cause | None:
    """Load the provider's library as onnxruntime does. The loader's error names what is missing."""
    windows = sys.platform == "win32"
    name = "onnxruntime_providers_cuda.dll" if windows else "libonnxruntime_providers_cuda.so"
    path = os.path.join(os.path.dirname(getattr(ort, "__file__", None) or ""), "capi", name)
    if not os.path.isfile(path):
        return Cause(f"the package has no {name}", INSTALL, "session.incomplete")
    try:
        load(path)
    except OSError as error:
        absent = _ABSENT.search(str(error))
        if absent:
            return _absent(ort, absent[1])
        if "undefined symbol: cu" in str(error):
            return _old_driver(ort, load)
        # onnxruntime supplies the `Provider_` functions, so the loader reports them once all libraries are loaded.
        if "undefined symbol: Provider_" not in str(error):
            return Cause(f"{name} fails to load: {shown(error, 300)}", INSTALL, "session.library")
    return None


def _absent(ort: Any, library: str) -> Cause:
    if library.startswith("libcuda.so"):
        return Cause(f"{library}, a library of the NVIDIA driver, is missing", _DRIVER, "session.no-driver")
    library_set = "cuDNN" if library.startswith("libcudnn") else f"CUDA {_major(ort) or ''}".rstrip()
    why = f"{library} of {library_set} is missing, and onnxruntime {ort.__version__} needs it"
    torch_cuda = _torch_cuda()
    if library_set != "cuDNN" and torch_cuda and torch_cuda.partition(".")[0] != str(_major(ort)):
        why += f"; torch installs CUDA {torch_cuda}, which has another major version"
        return Cause(why, f"{INSTALL} (installs the libraries of both major versions)", "session.cuda-major")
    return Cause(why, INSTALL, "session.cudnn" if library_set == "cuDNN" else "session.cuda-libraries")


def _torch_cuda() -> str:
    """Return the CUDA version that torch is built for, without importing torch only for that."""
    torch = sys.modules.get("torch")
    if torch is None and find_spec("torch") is None:
        return ""
    import torch.version as built

    return str(getattr(built, "cuda", None) or "")


def _device(ort: Any, load: Load) -> Cause | None:
    """Return a problem that the driver reports about itself or its devices."""
    count = ctypes.c_int(0)
    try:
        driver = _driver(load)
        if 0 < _serves(driver) // 1000 < _major(ort):
            return _old_driver(ort, load)
        status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError):
        return Cause("the NVIDIA driver's library fails to load", _DRIVER, "session.no-driver")
    if status == 100 or (not status and not count.value):
        return _no_device()
    return Cause(f"the NVIDIA driver fails to start (error {status})", _DRIVER, "session.no-driver") if status else None


def _driver(load: Load) -> Any:
    return load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _serves(driver: Any) -> int:
    """Return the newest CUDA version that the driver supports: 12040 is 12.4."""
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def _old_driver(ort: Any, load: Load) -> Cause:
    try:
        version = _serves(_driver(load))
    except (OSError, AttributeError):
        version = 0
    serves = f"CUDA {version // 1000}.{version % 1000 // 10}" if version else "an older CUDA"
    needed = _OLDEST.get(_major(ort), "")
    return Cause(
        f"the NVIDIA driver is too old: it supports {serves}, and onnxruntime {ort.__version__} needs CUDA "
        f"{getattr(ort, 'cuda_version', '') or 'of a newer version'}",
        f"update the driver{f' to {needed} or newer' if needed else ''}, or install an onnxruntime-gpu for the CUDA "
        "version that nvidia-smi shows",
        "session.old-driver",
    )


def _no_device() -> Cause:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return Cause(
            f"no GPU is visible: CUDA_VISIBLE_DEVICES is {shown(hidden) or 'empty'}",
            "unset CUDA_VISIBLE_DEVICES",
            "session.no-device",
        )
    return Cause("the NVIDIA driver finds no GPU", _DRIVER, "session.no-device")
