"""List the layouts by the words of `--layout`."""

from __future__ import annotations

from tieconv.onnx.export.layouts.genai import GenAI
from tieconv.onnx.export.layouts.interface import Layout
from tieconv.onnx.export.layouts.optimum import Optimum
from tieconv.onnx.export.layouts.transformers_js import TransformersJS

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (Layout(), Optimum(), GenAI(), TransformersJS())}
