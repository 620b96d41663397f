"""Sessions on a GPU, as far as a machine without one can say: what is asked of onnxruntime, and what is refused."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.lazy import bindings, graph_forward, ort_session, passes, torch
from tests.onnx.nodes import model, op, save, token_ids, value
from tests.refusals import failure_of
from tieconv.errors import MissingPackageError, NotRunError
from tieconv.install import install_command
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.reference.packages import need


@dataclass
class Node:
    op_type: str
    name: str
    domain: str = ""


@dataclass
class Part:
    ep_name: str
    nodes: list[Node]

    def get_nodes(self) -> list[Node]:
        return self.nodes


class Driver:
    """The NVIDIA driver of a machine with ``count`` GPUs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.count
        return 0


@dataclass
class Runtime:
    """What the fake onnxruntime has, does, and was asked."""

    providers: list[str] = field(default_factory=lambda: [ort_session.CUDA, ort_session.CPU])
    starts: bool = True
    fails: str = ""
    run_fails: str = ""
    parts: list[Part] = field(default_factory=lambda: [Part(ort_session.CUDA, [Node("MatMul", "head")])])
    asked: list[Any] = field(default_factory=list)
    entries: dict[str, str] = field(default_factory=dict)
    bound: list[tuple[str, str, int]] = field(default_factory=list)
    preloaded: int = 0
    severity: int = 2
    module: ModuleType = field(default_factory=lambda: ModuleType("onnxruntime"))

    def install(self, monkeypatch: pytest.MonkeyPatch, *, placement: bool = True) -> Runtime:
        runtime = self

        class Options:
            log_severity_level = 2

            def add_session_config_entry(self, key: str, value: str) -> None:
                runtime.entries[key] = value

        class Inference:
            def __init__(self, path: str, options: Options, providers: list[Any], enable_fallback: int) -> None:
                assert not enable_fallback
                runtime.asked = providers
                if runtime.fails and providers != [ort_session.CPU]:
                    raise RuntimeError(runtime.fails)

            def get_providers(self) -> list[str]:
                names = [entry if isinstance(entry, str) else entry[0] for entry in runtime.asked]
                return names if runtime.starts else [ort_session.CPU]

            def io_binding(self) -> Any:
                return SimpleNamespace(
                    bind_output=lambda *place: runtime.bound.append(place),
                    synchronize_inputs=lambda: None,
                    synchronize_outputs=lambda: None,
                    get_outputs=list,
                )

            def run_with_iobinding(self, binding: Any) -> None:
                if runtime.run_fails:
                    raise RuntimeError(runtime.run_fails)

            if placement:

                def get_provider_graph_assignment_info(self) -> list[Part]:
                    return runtime.parts

        def preload() -> None:
            runtime.preloaded += 1

        def severity(level: int) -> None:
            runtime.severity = level

        self.module.__dict__.update(
            __version__="1.31.1", cuda_version="13.0", SessionOptions=Options, InferenceSession=Inference,
            get_available_providers=lambda: runtime.providers, preload_dlls=preload,
            set_default_logger_severity=severity, __file__="/site/onnxruntime/__init__.py",
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "onnxruntime", self.module)
        return runtime


@dataclass
class Distribution:
    version: str
    site: str = "/site"

    def locate_file(self, name: str) -> str:
        return f"{self.site}/{name}"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, Distribution]:
    """Which of the two packages is installed and where, for the test to change."""
    found = {"onnxruntime-gpu": Distribution("1.31.1")}
    genuine = importlib.metadata.distribution

    def distribution(name: str) -> Any:
        if not name.startswith("onnxruntime"):
            return genuine(name)
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return found


def not_run(provider: str, match: str | None = None, **options: Any) -> NotRunError:
    """What a session with this provider is refused with."""
    with pytest.raises(NotRunError, match=match) as refused:
        ort_session.open_session("model.onnx", provider, **options)
    return refused.value


@pytest.mark.parametrize("provider", ["auto", "cuda"])
@pytest.mark.parametrize("tf32", [False, True])
def test_cuda_is_asked_for_without_tf32(monkeypatch, packages, provider: str, tf32: bool) -> None:
    """The verdict's session sets use_tf32=0, records the placement, and loads the CUDA libraries first."""
    runtime = Runtime().install(monkeypatch)
    session = ort_session.open_session("model.onnx", provider, tf32=tf32)
    assert runtime.asked == [(ort_session.CUDA, {"device_id": "0", "use_tf32": "1" if tf32 else "0"}), ort_session.CPU]
    assert runtime.entries["session.record_ep_graph_assignment_info"] == "1"
    assert runtime.preloaded == 1
    assert (session.device, session.use.active, session.use.tf32) == ("cuda", ort_session.CUDA, tf32)
    assert session.use.placement == {ort_session.CUDA: 1}
    assert session.use.versions["cuda"] == "13.0"


def test_a_silent_fallback_is_no_run(monkeypatch, packages) -> None:
    """A session that came up on the CPU though CUDA was asked for is refused with the next command."""
    Runtime(starts=False).install(monkeypatch)
    refused = not_run("cuda", "silently")
    assert refused.active == ort_session.CPU
    assert install_command("gpu", upgrade=True) in refused.hint


def test_auto_takes_the_cpu_and_says_so(monkeypatch, packages) -> None:
    """Where CUDA does not start, auto runs on the CPU with a note; without a CUDA provider without one."""
    Runtime(starts=False).install(monkeypatch)
    session = ort_session.open_session("model.onnx", "auto")
    assert (session.device, session.use.active) == ("cpu", ort_session.CPU)
    assert any("does not start" in note for note in session.use.notes)
    runtime = Runtime(providers=[ort_session.CPU]).install(monkeypatch)
    assert ort_session.open_session("model.onnx", "auto").use.notes == ()
    assert runtime.asked == [ort_session.CPU]
    assert runtime.preloaded == 0


def test_no_cuda_provider(monkeypatch, packages) -> None:
    """The CPU package alone: refused with the command that replaces it."""
    Runtime(providers=[ort_session.CPU]).install(monkeypatch)
    assert not_run("cuda", "no CUDA provider").hint == f"pip uninstall -y onnxruntime && {install_command('gpu')}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("operator", ["MatMul", "Gemm", "FusedMatMul", "LayerNormalization", "ReduceMean",
                                      "RMSNormalization", "Attention", "GroupQueryAttention", "Softmax", "Gelu",
                                      "FastGelu", "QuickGelu", "BiasGelu", "Erf", "Sigmoid", "MoE", "QMoE", "TopK",
                                      "ScatterND"])  # fmt: skip
def test_a_heavy_node_on_the_cpu_is_no_run(monkeypatch, packages, operator: str) -> None:
    """Products, norms, attention, activations and experts on the CPU of a CUDA session are named, also under auto."""
    parts = [
        Part(ort_session.CUDA, [Node("Add", "a")]),
        Part(ort_session.CPU, [Node(operator, "slow"), Node("Shape", "s")]),
    ]
    Runtime(parts=parts).install(monkeypatch)
    for provider in ("cuda", "auto"):
        refused = not_run(provider, "1 heavy node")
        assert (refused.fallback, refused.active) == ((f"{operator} slow",), ort_session.CUDA)


def test_a_gather_of_a_weight_is_heavy_and_one_of_a_shape_is_not(monkeypatch, packages) -> None:
    """onnxruntime puts shape arithmetic on the CPU on purpose; a lookup in the embedding does not belong there."""
    parts = [
        Part(ort_session.CUDA, [Node("MatMul", "head")]),
        Part(ort_session.CPU, [Node("Gather", "dim"), Node("Gather", "embed")]),
    ]
    Runtime(parts=parts).install(monkeypatch)
    assert ort_session.open_session("model.onnx", "cuda").use.placement == {ort_session.CUDA: 1, ort_session.CPU: 2}
    assert not_run("cuda", weight_gathers={"embed"}).fallback == ("Gather embed",)


def test_whole_numbers_may_stay_on_the_cpu(monkeypatch, packages) -> None:
    """A ScatterND or TopK of a shape is arithmetic of shapes; of the values of a layer it is not."""
    parts = [
        Part(ort_session.CUDA, [Node("MatMul", "head")]),
        Part(ort_session.CPU, [Node("ScatterND", "sides"), Node("TopK", "experts")]),
    ]
    Runtime(parts=parts).install(monkeypatch)
    assert not_run("cuda", shape_nodes={"sides"}).fallback == ("TopK experts",)
    assert ort_session.open_session("model.onnx", "cuda", shape_nodes={"sides", "experts"}).use.placement == {
        ort_session.CUDA: 1,
        ort_session.CPU: 2,
    }


def test_which_nodes_compute_whole_numbers(tmp_path: Path) -> None:
    """Those whose results are all known to be whole numbers; a TopK gives values too."""
    inputs = [value("x", ["n"]), token_ids("k", [1])]
    nodes = [
        op("Shape", "x", "sides", name="shape"),
        op("ScatterND", "sides at sides", "changed", name="scatter"),
        op("TopK", "x k", "best where", name="top"),
    ]
    sides, *outputs = (token_ids(name, [1]) for name in ("sides", "changed", "where"))
    outputs.append(value("best", [1]))
    save(model(nodes, inputs, outputs, {"at": np.array([[0]])}, value_info=[sides]), tmp_path / "g.onnx")
    assert passes.shape_nodes(read_graph(str(tmp_path / "g.onnx"))) == {"shape", "scatter"}


def test_an_unknown_placement_is_no_run(monkeypatch, packages) -> None:
    """A runtime that does not report where its nodes are proves nothing about CUDA; on the CPU it does not matter."""
    Runtime().install(monkeypatch, placement=False)
    not_run("cuda", "does not report")
    assert ort_session.open_session("model.onnx", "cpu").use.placement == {}
    Runtime(parts=[]).install(monkeypatch)
    not_run("cuda", "no placement")


def test_both_packages_at_once(monkeypatch, packages) -> None:
    """onnxruntime and onnxruntime-gpu share a directory: refused for CUDA, explained otherwise."""
    packages["onnxruntime"] = Distribution("1.30.0")
    Runtime().install(monkeypatch)
    refused = not_run("cuda", r"1\.30\.0 and onnxruntime-gpu 1\.31\.1 are both installed")
    assert refused.hint.startswith("pip uninstall -y onnxruntime onnxruntime-gpu && ")
    (note,) = ort_session.open_session("model.onnx", "cpu").use.notes
    assert "in one directory" in note


def test_two_packages_in_two_directories(monkeypatch, packages) -> None:
    """A package that lies elsewhere on the path overwrites nothing: the first one runs, on CUDA where it can."""
    packages["onnxruntime"] = Distribution("1.30.0", "/other")
    runtime = Runtime().install(monkeypatch)
    assert ort_session.open_session("model.onnx", "cuda").use.notes == ()
    runtime.providers = [ort_session.CPU]
    runtime.module.__file__ = "/other/onnxruntime/__init__.py"
    refused = not_run("cuda", r"onnxruntime-gpu 1\.31\.1 has one but is later")
    assert refused.hint == "pip uninstall -y onnxruntime, or PYTHONPATH=/site"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version", "session.old-driver"),
        ("CUDA failure 100: no CUDA-capable device is detected", "session.no-device"),
        ("CUDA failure 209: no kernel image is available for execution on the device", "session.architecture"),
    ],
)
def test_a_driver_that_says_no(monkeypatch, packages, capfd, said: str, code: str) -> None:
    """An error of the driver is a refusal with its cause under cuda, and the CPU with a note under auto."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    runtime = Runtime(fails=f"cuda_call.cc:123 {said} ; GPU=0 ; hostname=h").install(monkeypatch)
    refused = not_run("cuda", "does not start")
    assert refused.code == code and refused.hint
    session = ort_session.open_session("model.onnx", "auto")
    assert (session.use.active, runtime.asked) == (ort_session.CPU, [ort_session.CPU])
    assert any("runs on the CPU" in note for note in session.use.notes)
    assert runtime.severity == 2
    assert capfd.readouterr() == ("", "")


NO_CUDNN = (
    "Non-zero status code returned while running ReduceMax node. Name:'max' Status Message: cuDNN is unavailable for "
    "CUDA Execution Provider: dlopen failed for libcudnn.so: libcudnn.so: cannot open shared object file"
)
"""What onnxruntime-gpu 1.31.1 says: it loads cuDNN when the first node needs it, so that a session starts without."""


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        (NO_CUDNN, "session.cudnn", "a node of the graph needs cuDNN, which onnxruntime 1.31.1 cannot load"),
        (NO_CUDNN.replace("cuDNN", "cuFFT"), "session.cufft", "needs cuFFT"),
        (
            "cuda_call.cc:146 std::conditional_t<THRW> CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED ; GPU=0",
            "session.device",
            "failed while the graph ran: CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED",
        ),
        ("CUDA failure 209: no kernel image is available ; GPU=0", "session.architecture", "no kernels"),
    ],
)
def test_a_device_that_fails_while_the_graph_runs(monkeypatch, packages, said: str, code: str, why: str) -> None:
    """A library or the device is to blame, so nothing was measured; a node that fails is the graph's own fault."""
    runtime = Runtime(run_fails=said).install(monkeypatch)
    session = ort_session.open_session("model.onnx", "cuda")
    refused = failure_of(session.run, NotRunError, {}, [], "")
    assert (refused.code, refused.active) == (code, ort_session.CUDA)
    assert why in refused.message and refused.hint
    runtime.run_fails = "Non-zero status code returned while running Mul node: right operand cannot broadcast"
    with pytest.raises(RuntimeError, match="cannot broadcast"):
        session.run({}, [], "")


def test_a_device_without_cudnn_is_no_verdict(monkeypatch, packages) -> None:
    """parity does not call a graph wrong on a machine without cuDNN."""
    Runtime(run_fails=NO_CUDNN).install(monkeypatch)
    session = ort_session.open_session("model.onnx", "cuda")
    graph = SimpleNamespace(logits=lambda batch: session.run({}, [], ""))
    work = passes.Work(bindings.Kind.PLAIN, SimpleNamespace(vocab_size=8), types=False)
    with pytest.raises(NotRunError, match="needs cuDNN"), passes.LogitStore() as store:
        passes.run_graph(graph, work, store, "graph")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "said",
    [
        "CUDA failure 2: out of memory ; GPU=0",
        # What an H100 without free memory said.
        "CUBLAS failure 3: the resource allocation failed ; GPU=0 ; hostname=h",
        "CUDNN failure 4003: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ],
)
def test_a_full_device(monkeypatch, packages, said: str) -> None:
    """Memory that runs out is no fault of the graph's, and not measured rather than unreadable."""
    Runtime(fails=said).install(monkeypatch)
    assert "nvidia-smi" in not_run("cuda", "memory ran out").hint


@pytest.mark.parametrize(("count", "visible"), [(1, "only visible GPU is 0"), (2, "visible GPUs are 0 to 1")])
def test_a_device_that_does_not_exist(monkeypatch, packages, count: int, visible: str) -> None:
    """The driver is asked before a session is made, and the sentence names the devices that exist."""
    runtime = Runtime().install(monkeypatch)
    monkeypatch.setattr("tieconv.onnx.ort_session._driver", lambda load: Driver(count))
    stop = not_run(f"cuda:{count}", f"no device {count}: the {visible}")
    assert (stop.code, runtime.asked) == ("session.no-such-device", [])


def test_a_second_device(monkeypatch, packages) -> None:
    """The session and what it returns are on the device that was asked for."""
    runtime = Runtime().install(monkeypatch)
    monkeypatch.setattr("tieconv.onnx.ort_session._driver", lambda load: Driver(2))
    session = ort_session.open_session("model.onnx", "cuda:1")
    assert runtime.asked[0] == (ort_session.CUDA, {"device_id": "1", "use_tf32": "0"})
    assert session.use.requested == "cuda:1"
    with pytest.raises(ValueError, match="zip"):  # the imitation returns nothing
        session.run({}, ["logits", "cache"], "logits")
    assert runtime.bound == [("logits", "cpu", 0), ("cache", "cuda", 1)]


def test_bf16_where_cuda_does_not_start(monkeypatch, packages) -> None:
    """The CPU cannot do the graph's first product: told is why CUDA did not start, not that a kernel is missing."""
    said = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Mul(14) node"
    Runtime(fails=said).install(monkeypatch)
    found = ort_session.Cause("libcuda.so.1 is missing", "install the driver", "session.no-driver")
    monkeypatch.setattr("tieconv.onnx.ort_session.diagnose", lambda ort, said="": found)
    refused = not_run("cuda", r"does not start: libcuda\.so\.1", precision="bfloat16")
    assert (refused.hint, refused.active) == ("install the driver", ort_session.CPU)
    not_run("auto", "bf16", precision="bfloat16")
    found = ort_session.Cause("all is well", "", ort_session.UNKNOWN)
    not_run("cuda", r"no kernel for a node.*Mul\(14\)", precision="bfloat16")


def test_half_a_package(monkeypatch) -> None:
    """What is left when one of the two was removed is told, with the way out."""
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    with pytest.raises(MissingPackageError, match="incomplete"):
        ort_session.open_session("model.onnx", "cpu")


@pytest.mark.parametrize("provider", ["cpu", "auto"])
def test_bf16_needs_a_gpu(monkeypatch, packages, provider: str) -> None:
    """On the CPU a bf16 graph is refused before or after the session came up there; on CUDA it is not."""
    Runtime(starts=False).install(monkeypatch)
    not_run(provider, "bf16", precision="bfloat16")
    Runtime().install(monkeypatch)
    assert ort_session.open_session("model.onnx", "cuda", precision="bfloat16").device == "cuda"


def test_a_missing_package_gives_the_command(monkeypatch) -> None:
    """One sentence and pip, whatever is missing; a package that is there and broken is told apart."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackageError, match="onnxruntime") as missing:
        ort_session.open_session("model.onnx", "cpu")
    assert missing.value.hint == install_command("onnx")
    with pytest.raises(MissingPackageError, match="needs the package no_such_package, which is not installed"):
        need("no_such_package", "onnx", "a test")


def test_bf16_logits_are_read() -> None:
    """numpy has no bf16: the values come over as torch has them."""
    import onnxruntime

    logits = torch.tensor([[1.5, -2.25, 3e38]], dtype=torch.bfloat16)
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(logits.view(torch.uint16).numpy(), 16)
    assert torch.equal(graph_forward.as_tensor(value), logits)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_parity_on_cuda(exported, dtype: str) -> None:
    """On a GPU: passed on CUDA with nothing heavy on the CPU, TF32 reported apart for float32."""
    import tieconv

    made = exported("llama", dtype)
    report = tieconv.parity(made.graph, made.model, provider="cuda")
    assert report.verdict == "passed", report.reason or [gate for gate in report.gates if not gate.passed]
    assert (report.provider.active, report.provider.fallback_nodes) == (ort_session.CUDA, 0)
    assert (report.metrics is not None and report.metrics.tf32 is not None) == (dtype == "float32")
