"""The options of `export`: what the command line and the Python functions pass on as one value."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import HeadForm


@record
class ExportOptions:
    """The values of the options of `tieconv export`, as `tieconv.plan_export` describes them.

    ``fuse`` and ``quantise`` are ``None`` if the graph is neither fused nor quantised.
    """

    precision: str = "fp32"
    head_form: HeadForm = HeadForm.GEMM
    opset: int | None = None
    provider: str = "auto"
    parity: bool = True
    fuse: str | None = None
    layout: str = "plain"
    quantise: str | None = None
    inputs_embeds: bool = False
