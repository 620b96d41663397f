"""The packages that graphs need, asked for by name before anything is read."""

from __future__ import annotations

from importlib.util import find_spec

from tieconv.errors import RefusedError
from tieconv.install import install_command

_PIP = {"onnx": "onnx", "onnx_ir": "onnx-ir", "onnxruntime": "onnxruntime"}


def require_graph_packages() -> None:
    """Raise `RefusedError` where a package that reads and writes graphs is not installed."""
    missing = [_PIP[name] for name in ("onnx", "onnx_ir") if find_spec(name) is None]
    if missing:
        raise RefusedError(
            f"an ONNX graph is read with {' and '.join(missing)}, not installed here",
            install_command("onnx"),
            "onnx.not-installed",
        )


def has_onnxruntime() -> bool:
    """Whether a session can be made."""
    return find_spec("onnxruntime") is not None
