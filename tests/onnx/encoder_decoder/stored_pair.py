"""Use graphs of an encoder-decoder that were traced before, so that a test of files traces no model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lazy import bindings, encoder_decoder, ir

Trace = Callable[..., None]


def stored_pair(folder: Path) -> Trace:
    """Return what replaces `trace_pair`: it writes the graphs of ``folder`` with other data files."""

    def write(reference: Any, raw: Path, data_of: Callable[[str], str], *settings: Any) -> None:
        graphs = {stem: ir.load(folder / f"{stem}.onnx") for stem in (bindings.ENCODER, bindings.DECODER)}
        for name in dict.fromkeys(map(data_of, graphs)):
            encoder_decoder.write_data([graph for stem, graph in graphs.items() if data_of(stem) == name], raw / name)
        for stem, graph in graphs.items():
            ir.save(graph, raw / f"{stem}.onnx")

    return write
