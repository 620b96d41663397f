"""The device without a GPU: it serves what a library asks of CUDA, counts what is taken, and refuses where CUDA is."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu import measure, memory, standin
from tests.gpu.record import PLACEMENT

CUDA = "CUDAExecutionProvider"


MISSING = [tool for tool in standin.TOOLS if standin.shutil.which(tool) is None]
compiled = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} to build the stand-in with")

CLIENT = """
int cudaMalloc(void **, unsigned long), cudaFree(void *), cudaMemGetInfo(unsigned long *, unsigned long *);
int cudaMallocHost(void **, unsigned long), cudaMemcpy(void *, void *, unsigned long, int), cudaStrange(int);
int cuTensorMap(void);
static unsigned long unused(void) { unsigned long f, t; cudaMemGetInfo(&f, &t); return f; }
long taken(unsigned long bytes) {
    void *device, *host;
    unsigned long before = unused();
    cudaMalloc(&device, bytes);
    cudaMallocHost(&host, bytes);
    long held = before - unused();
    cudaFree(device);
    return before == unused() ? held : -1;
}
int carried(void) {
    void *device;
    int there = 41, back = 0;
    cudaMalloc(&device, 4);
    cudaMemcpy(device, &there, 4, 1);
    cudaMemcpy(&back, device, 4, 2);
    return back;
}
int strange(void) { return cudaStrange(7) + cuTensorMap(); }
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that was linked with CUDA's, as onnxruntime's provider is: by soname and symbol version."""
    folder = tmp_path_factory.mktemp("linked")
    names = "cudaMalloc cudaFree cudaMemGetInfo cudaMallocHost cudaMemcpy cudaStrange"
    (folder / "runtime.c").write_text("".join(f"int {name}(void) {{ return 9; }}\n" for name in names.split()))
    (folder / "runtime.map").write_text("libcudart.so.13 { global: *; };")
    (folder / "driver.c").write_text("int cuTensorMap(void) { return 9; }\n")
    (folder / "client.c").write_text(CLIENT)

    def cc(*given: str) -> None:
        subprocess.run(["cc", "-shared", "-fPIC", "-w", *given], cwd=folder, check=True)

    cc("-o", "libcudart.so.13", "runtime.c", "-Wl,-soname,libcudart.so.13", "-Wl,--version-script=runtime.map")
    cc("-o", "libcuda.so.1", "driver.c", "-Wl,-soname,libcuda.so.1")
    cc("-o", "client.so", "client.c", "libcudart.so.13", "libcuda.so.1")
    for name in ("libcudart.so.13", "libcuda.so.1"):
        (folder / name).unlink()
    return folder / "client.so"


def ask(client: Path, folder: Path, expression: str) -> str:
    """What ``expression`` of the client is, its CUDA in ``folder``."""
    code = f"import ctypes; c = ctypes.CDLL({str(client)!r}); c.taken.restype = ctypes.c_long; print({expression})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={"LD_LIBRARY_PATH": str(folder)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@compiled
def test_what_is_asked_of_cuda(client: Path) -> None:
    """Functions by the library that they are linked to, the driver's by their name."""
    assert standin.needs(client) == ["libcudart.so.13", "libcuda.so.1"]
    asked = standin.undefined(client)
    assert asked["libcuda.so.1"] == {"cuTensorMap"}
    assert {"cudaMalloc", "cudaStrange"} < asked["libcudart.so.13"]


@compiled
def test_the_standin_serves_and_counts(client: Path, tmp_path: Path) -> None:
    """The client loads; device memory is counted to the byte and given back, that of the host is not; a copy arrives;
    a function that nobody wrote says success."""
    standin.build(client, "13.0", tmp_path)
    assert ask(client, tmp_path, "c.taken(1_000_003)") == "1000003"
    assert ask(client, tmp_path, "c.carried()") == "41"
    assert ask(client, tmp_path, "c.strange()") == "0"


@compiled
def test_its_device(client: Path, tmp_path: Path) -> None:
    """One device of compute capability 9.0, and a driver that serves the CUDA that was asked for."""
    standin.build(client, "13.1", tmp_path)
    made = ctypes.CDLL(str(tmp_path / "standin.so"))
    number, properties = ctypes.c_int(), ctypes.create_string_buffer(1008)
    made.cuDriverGetVersion(ctypes.byref(number))
    assert number.value == 13010
    made.cudaGetDeviceCount(ctypes.byref(number))
    assert number.value == 1
    made.cudaGetDeviceProperties(properties, 0)
    assert properties.value == b"no device (stand-in)"
    fields = [int.from_bytes(properties.raw[at : at + 4], "little") for at in (360, 364, 384)]
    assert fields == [9, 0, 132]


def package(monkeypatch: pytest.MonkeyPatch, folder: Path, providers: list[str], cuda: str | None) -> None:
    """An onnxruntime in ``folder`` with these providers, and a torch of this CUDA."""
    (folder / "capi").mkdir()
    (folder / "capi" / "libonnxruntime_providers_cuda.so").touch()
    made = SimpleNamespace(
        __version__="1.31.1", __file__=str(folder / "__init__.py"), get_available_providers=lambda: providers
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", made)
    monkeypatch.setattr(standin.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr(standin, "_has_runtime", lambda: False)


@pytest.mark.parametrize(
    ("providers", "cuda", "needed", "why"),
    [
        (["CPUExecutionProvider"], None, ["libcudart.so.13"], "has no CUDA provider"),
        ([CUDA], None, ["libcudart.so.12"], "not built for CUDA 13"),
        ([CUDA], "13.0", ["libcudart.so.13"], "take a CPU build of torch"),
        ([CUDA], None, ["libcudart.so.13"], ""),
    ],
)
def test_where_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, providers: list[str], cuda: str | None, needed: list[str], why: str
) -> None:
    """Without the provider, with one of another CUDA, and where CUDA's own libraries would be loaded in its place."""
    package(monkeypatch, tmp_path, providers, cuda)
    monkeypatch.setattr(standin, "needs", lambda library: needed)
    told = standin.without_standin()
    assert (why in told) if why else not told
    monkeypatch.setattr(standin.shutil, "which", lambda tool: None if tool == "nm" else f"/usr/bin/{tool}")
    assert standin.without_standin().startswith("not found: nm")


def test_cuda_beside_a_cpu_build_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel of CUDA's runtime is enough for onnxruntime to load it."""
    monkeypatch.setattr(
        standin.importlib.metadata, "distributions", lambda: [SimpleNamespace(name="nvidia-cuda-runtime")]
    )
    assert standin._has_runtime()


@pytest.mark.parametrize(
    ("parts", "why"), [([], "the reason"), (["--parts", "verdicts,memory"], "verdicts cannot be without a GPU")]
)
def test_nothing_is_measured_without(tmp_path: Path, monkeypatch, capsys, parts: list[str], why: str) -> None:
    """Exit 2 with the reason and no file; a verdict is never asked of a device that computes nothing."""
    monkeypatch.setattr(measure, "without_standin", lambda: "the reason")
    assert measure.main(["-o", str(tmp_path / "x.json"), "--provider", "standin", *parts]) == 2
    assert capsys.readouterr().err == f"nothing was measured: {why}\n"
    assert list(tmp_path.iterdir()) == []


def test_what_is_planned_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model's placement and the memory of every form, asked of processes that load the stand-in."""
    told = tmp_path / "python"
    told.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH $3" >&2\nexit 3\n')
    told.chmod(0o755)
    monkeypatch.setattr(measure.sys, "executable", str(told))
    monkeypatch.setattr(measure, "without_standin", lambda: "")
    monkeypatch.setattr(measure, "_device", lambda folder: "/stand-in")
    output = tmp_path / "x.json"
    assert measure.main(["-o", str(output), "--provider", "standin", "--small"]) == 1
    found = json.loads(output.read_text())
    assert (found["provider"], found["rehearsal"], found["machine"]["gpu"]) == ("standin", True, None)
    asked = {row["error"].partition("status 3: ")[2].partition(" ")[0] for row in found["parts"]["memory"]}
    assert asked == {"/stand-in"}
    keys = {part: {row["key"] for row in rows} for part, rows in found["parts"].items()}
    assert "llama/fp32" in keys[PLACEMENT]
    assert len(keys["memory"]) == 24
    assert not any(keys[part] for part in ("verdicts", "faults", "refusals", "latency"))


def test_memory_is_that_of_the_standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row says whose memory it is: no page takes it for a device's."""
    left: Any = iter([900, 400, 300])
    monkeypatch.setattr(memory, "free_bytes", lambda: next(left))
    monkeypatch.setattr(memory, "warm", lambda workshop, provider: None)
    monkeypatch.setattr(memory, "run_once", lambda session, graph: None)
    session = SimpleNamespace(use=SimpleNamespace(active=CUDA))
    monkeypatch.setattr(memory, "open_with", lambda graph, provider, arena, dtype: session)
    (tmp_path / "model.onnx").write_bytes(b"12345")
    workshop: Any = SimpleNamespace(form=lambda precision, form: tmp_path / "model.onnx", small=True)
    row = memory.memory_row(workshop, "standin", "fp32", "gemm", "exact")
    assert (row["memory"], row["loaded"], row["ran"]) == ("stand-in", 500, 600)
