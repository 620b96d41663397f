"""Open sessions of ONNX Runtime on the requested provider, or fail."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from tieconv.checkpoint.results.parity import ProviderUse
from tieconv.checkpoint.value_type import identity_record, record
from tieconv.errors import MissingPackageError, NotRunError, UnreadableError
from tieconv.install import install_command
from tieconv.onnx.child import session_call
from tieconv.reference.packages import need
from tieconv.text import Hint, count, option, shown

ELEMENTS = {"FLOAT": 1, "INT32": 6, "INT64": 7, "FLOAT16": 10, "DOUBLE": 11, "BFLOAT16": 16}
"""ONNX element types by number."""
_FLOATS = {"FLOAT": np.float32, "FLOAT16": np.float16, "DOUBLE": np.float64}
_NO_KERNEL = "session.kernel"


@record
class _Model:
    """A graph by path, or its bytes with the folder of its data."""

    path: str | bytes
    folder: str

    @property
    def name(self) -> str:
        return self.path if isinstance(self.path, str) else self.folder


@identity_record
class Session:
    """An open session. ``run`` binds inputs and outputs in place, so a cache stays on the device."""

    inner: Any
    ort: Any
    use: ProviderUse

    @property
    def device(self) -> str:
        return "cuda" if self.use.active == CUDA else "cpu"

    def value(self, array: Any) -> Any:
        """Return a numpy array as a value for `run`."""
        return self.ort.OrtValue.ortvalue_from_numpy(array)

    def floats(self, rows: Any, dtype: str) -> Any:
        """Return a torch tensor as a value of the ONNX type ``dtype``. numpy has no bf16, so its bits are used."""
        import torch

        if dtype != "BFLOAT16":
            return self.value(np.ascontiguousarray(rows.numpy(), dtype=_FLOATS[dtype]))
        bits = rows.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16)
        return self.ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, ELEMENTS[dtype])

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a value for the past before the first token: zeros if it has elements. ``dtype`` is an ONNX name."""
        kinds = {"FLOAT": np.float32, "DOUBLE": np.float64, "INT64": np.int64, "INT32": np.int32}
        zeros = np.zeros(shape, kinds.get(dtype, np.uint16))  # 16-bit floats by their bits
        return self.ort.OrtValue.ortvalue_from_numpy_with_onnx_type(zeros, ELEMENTS[dtype])

    def run(self, feeds: Mapping[str, Any], outputs: Collection[str], host: str) -> dict[str, Any]:
        """Return the named outputs as values: ``host`` in main memory, the others where the session runs.

        Raises `NotRunError` if the device or one of its libraries fails; that says nothing about the graph.
        """
        binding = self.inner.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, *(("cpu", 0) if name == host else (self.device, device_id(self.use.requested))))
        try:
            binding.synchronize_inputs()
            with session_call("a run"):
                self.inner.run_with_iobinding(binding)
            binding.synchronize_outputs()
        except Exception as error:
            cause = (
                failed_while_run(self.ort, str(error)) if self.device == "cuda" and not out_of_memory(error) else None
            )
            if cause is None:
                raise
            raise NotRunError(cause.why, cause.hint, cause.code, active=CUDA) from error
        return dict(zip(outputs, binding.get_outputs(), strict=True))


def open_session(
    path: str | bytes | os.PathLike[str],
    provider: str = "auto",
    *,
    precision: str = "float32",
    tf32: bool = False,
    weight_gathers: Collection[str] = (),
    shape_nodes: Collection[str] = (),
    folder: str = "",
) -> Session:
    """Return a session of the graph at ``path`` on ``provider`` (``auto``, ``cpu``, ``cuda`` or ``cuda:N``).

    ``path`` may also be the bytes of a graph whose data is in ``folder``.

    ``weight_gathers`` are the names of the `Gather` nodes that read a weight. ``shape_nodes`` are those of nodes that
    compute with whole numbers only. Raises `NotRunError` if CUDA is requested
    but the session or a heavy node would run on the CPU. Raises it also for bf16 on the CPU.
    """
    ort = runtime()
    release_memory()
    choice = choose(ort, provider, tf32=tf32)
    if choice.providers == [CPU]:
        _check_precision(precision)
    inner, notes = _start(ort, _Model(os.fspath(path), folder), provider, choice, precision)
    active = str(inner.get_providers()[0])
    nodes = check_placement(inner, active, weight_gathers, shape_nodes)
    rounds = tf32 and active == CUDA
    use = ProviderUse(provider, active, placement=nodes, tf32=rounds, versions=versions(ort), notes=notes)
    return Session(inner, ort, use)


def _start(ort: Any, path: _Model, provider: str, choice: Choice, precision: str) -> tuple[Any, tuple[str, ...]]:
    """Return the session, and notes for the report. Raises `NotRunError` if CUDA is requested but unavailable.

    If CUDA does not start, onnxruntime may return a session on the CPU. It may also fail with a driver error, or with
    an operator that the CPU does not support.
    """
    if choice.providers[0] == CPU:
        return _open(ort, path, choice.providers), choice.notes
    inner, error_text = None, ""
    absent = no_such_device(device_id(provider)) if device_id(provider) else None
    if absent:
        raise NotRunError(absent.why, absent.hint, absent.code)
    try:
        with _unlogged(ort):
            inner = _open(ort, path, choice.providers)
    except StartError as error:
        error_text = str(error)
    except NotRunError as stop:
        if stop.code != _NO_KERNEL or diagnose(ort).code == UNKNOWN:
            raise
    if inner is not None and str(inner.get_providers()[0]) == CUDA:
        return inner, choice.notes
    cause = diagnose(ort, error_text)
    if provider.startswith("cuda"):
        problem = f"onnxruntime silently uses the CPU: {cause.why}" if inner else f"CUDA does not start: {cause.why}"
        raise NotRunError(f"--provider cuda is not possible: {problem}", cause.hint, cause.code, active=CPU)
    _check_precision(precision)
    note = f"the session runs on the CPU, because the CUDA provider does not start: {cause.why}"
    return inner or _open(ort, path, [CPU]), (*choice.notes, note)


def release_memory() -> None:
    """Give freed memory back to the system. A session frees its weights, but glibc keeps them for later."""
    gc.collect()  # an exporter's graphs hold each other
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class StartError(Exception):
    """Raised if the provider, and not the graph, prevents a session."""


@contextmanager
def _unlogged(ort: Any) -> Iterator[None]:
    """Hide what onnxruntime logs about a provider that does not start. An error message gives the cause."""
    ort.set_default_logger_severity(4)
    try:
        yield
    finally:
        ort.set_default_logger_severity(2)


def out_of_memory(error: Exception) -> bool:
    """Return whether the runtime reports that main memory or device memory ran out."""
    message = str(error)
    phrases = ("llocate memory", "out of memory", "resource allocation failed", "ALLOCATION_FAILED", "ALLOC_FAILED")
    return isinstance(error, MemoryError) or any(phrase in message for phrase in phrases)


def _check_precision(precision: str) -> None:
    """Raise `NotRunError` for bf16: the CPU provider has no kernels for it."""
    if precision == "bfloat16":
        problem = "onnxruntime's CPU provider cannot run this bf16 graph: it has no bf16 kernels for products and norms"
        hint = Hint("run it on a GPU (", option(provider="cuda"), "), or export in fp32 or fp16")
        raise NotRunError(problem, hint, "session.bf16", active=CPU)


def _open(ort: Any, model: _Model, providers: list[Any]) -> Any:
    options = ort.SessionOptions()
    path = model.name
    if model.folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", model.folder)
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for threads in ("intra_op", "inter_op"):  # idle threads sleep: spinning ones compete with other programs
        options.add_session_config_entry(f"session.{threads}.allow_spinning", "0")
    try:
        # onnxruntime's fallback would print to stdout and continue on another provider.
        with session_call("the start of a session"):
            return ort.InferenceSession(model.path, options, providers=providers, enable_fallback=0)
    except Exception as error:
        # Each status of the runtime has a separate exception class, made in C++.
        if out_of_memory(error):
            problem = f"{shown(path)}: memory ran out while onnxruntime loaded the graph"
            hint = "use a larger machine or GPU, or free memory (see nvidia-smi)"
            raise NotRunError(problem, hint, "session.memory") from error
        if any(f"{library} failure" in str(error) for library in ("CUDA", "CUBLAS", "CUDNN")):
            raise StartError(str(error)) from error
        if "NOT_IMPLEMENTED" in str(error):
            raise NotRunError(
                f"{shown(path)}: onnxruntime {ort.__version__} has no kernel for a node: {shown(error, 300)}",
                Hint("use another ", option("provider"), ", or export in another precision or opset"),
                _NO_KERNEL,
            ) from error
        problem = f"onnxruntime {ort.__version__} cannot load {shown(path)}: {shown(error, 300)}"
        raise UnreadableError(problem, "export the graph again", "session.load") from error


_PRODUCTS = {"MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "MatMulInteger", "QGemm", "Einsum", "Conv"}
_NORMS = {
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "GroupNormalization", "EmbedLayerNormalization", "ReduceMean",
}  # fmt: skip
_ATTENTION = {
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention", "PackedAttention",
    "QAttention", "RotaryEmbedding", "Softmax",
}  # fmt: skip
_ACTIVATIONS = {"Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Erf", "Sigmoid"}
_EXPERTS = {"MoE", "QMoE", "TopK", "ScatterND"}
HEAVY = frozenset(_PRODUCTS | _NORMS | _ATTENTION | _ACTIVATIONS | _EXPERTS)
"""Operators that must run on the device: products, norms, attention, activations and the choice of experts.

`ReduceMean` is part of some norms. `TopK` and `ScatterND` choose experts, and write their results.
"""


def check_placement(
    inner: Any, active: str, weight_gathers: Collection[str], shape_nodes: Collection[str] = ()
) -> dict[str, int]:
    """Return how many nodes each provider runs, if the runtime reports it.

    Shape arithmetic may run on the CPU, and so may the ``shape_nodes`` of any operator. A `Gather` is heavy if it reads
    a weight. Raises `NotRunError` if the CPU runs
    a heavy node of a CUDA session, or if placements are unknown.
    """
    cuda = active == CUDA
    if not hasattr(inner, "get_provider_graph_assignment_info"):
        if cuda:
            raise NotRunError(
                "this onnxruntime does not report where each node runs, so tieconv could not see a fallback to the CPU",
                install_command("gpu", upgrade=True),
                "session.placement",
            )
        return {}
    placed: Counter[str] = Counter()
    heavy: list[str] = []
    for part in inner.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        placed[str(part.ep_name)] += len(nodes)
        if cuda and part.ep_name != CUDA:
            heavy += [
                f"{node.op_type} {node.name}"
                for node in nodes
                if node.name not in shape_nodes
                and (node.op_type in HEAVY or (node.op_type == "Gather" and node.name in weight_gathers))
            ]
    if cuda and not placed:
        problem = "onnxruntime reported no placement of nodes, so tieconv could not see a fallback to the CPU"
        raise NotRunError(problem, install_command("gpu", upgrade=True), "session.placement")
    if heavy:
        problem = f"CUDA is active, but the CPU runs {count(len(heavy), 'heavy node')}: {shown(', '.join(heavy))}"
        hint = "these operators have no CUDA kernel in this precision: export in another precision or opset"
        raise NotRunError(problem, hint, "session.fallback-nodes", active=active, fallback=tuple(heavy))
    return dict(placed)


@record
class Chained(Session):
    """A decoder's session, and the session that makes its input ``between`` from the input ``ids``."""

    first: Session
    ids: str
    between: str

    def run(self, feeds: Mapping[str, Any], outputs: Collection[str], host: str) -> dict[str, Any]:
        """Return the decoder's outputs. The embedding runs only if ``feeds`` has token ids."""
        values = dict(feeds)
        if self.ids in values:
            values |= self.first.run({self.ids: values.pop(self.ids)}, [self.between], "")
        return Session.run(self, values, outputs, host)


# Choose the execution provider of a session, and find package conflicts.

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
        problem = "the installation of the package onnxruntime is incomplete"
        raise MissingPackageError(problem, _CLASH, "session.packages")
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
        problem = "this onnxruntime has no kernels for the architecture of this GPU"
        hint = f"install an onnxruntime-gpu that is built for this GPU: {INSTALL}"
        return Cause(problem, hint, "session.architecture")
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
            library = absent[1]
            if library.startswith("libcuda.so"):
                return Cause(f"{library}, a library of the NVIDIA driver, is missing", _DRIVER, "session.no-driver")
            library_set = "cuDNN" if library.startswith("libcudnn") else f"CUDA {_major(ort) or ''}".rstrip()
            why = f"{library} of {library_set} is missing, and onnxruntime {ort.__version__} needs it"
            torch_cuda = _torch_cuda()
            if library_set != "cuDNN" and torch_cuda and torch_cuda.partition(".")[0] != str(_major(ort)):
                why += f"; torch installs CUDA {torch_cuda}, which has another major version"
                return Cause(why, f"{INSTALL} (installs the libraries of both major versions)", "session.cuda-major")
            return Cause(why, INSTALL, "session.cudnn" if library_set == "cuDNN" else "session.cuda-libraries")
        if "undefined symbol: cu" in str(error):
            return _old_driver(ort, load)
        # onnxruntime supplies the `Provider_` functions, so the loader reports them once all libraries are loaded.
        if "undefined symbol: Provider_" not in str(error):
            return Cause(f"{name} fails to load: {shown(error, 300)}", INSTALL, "session.library")
    return None


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
        problem = f"no GPU is visible: CUDA_VISIBLE_DEVICES is {shown(hidden) or 'empty'}"
        return Cause(problem, "unset CUDA_VISIBLE_DEVICES", "session.no-device")
    return Cause("the NVIDIA driver finds no GPU", _DRIVER, "session.no-device")
