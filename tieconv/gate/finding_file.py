"""Find the file of a model that a finding is about: where a user would look, or change something."""

from __future__ import annotations

from tieconv.checkpoint.finding import Finding
from tieconv.checkpoint.inspection import Inspection

CONFIG, ADAPTER = "config.json", "adapter_config.json"
_OF_THE_CONFIG = frozenset({"TIE007", "TIE008", "TIE009", "TIE013", "MTP001", "VOC001"})
_OF_THE_ADAPTER = frozenset({"PEF001", "PEF002"})


def file_of(inspection: Inspection, finding: Finding) -> str:
    """Return the file, relative to the model: that of the first stored tensor, the index, or the config.

    The same fault gives the same file, whatever numbers the message holds.
    """
    checkpoint = inspection.checkpoint
    weights = checkpoint.files[0].name if checkpoint.files else ""
    if finding.rule in _OF_THE_CONFIG and checkpoint.config:
        return checkpoint.config.name
    if finding.rule in _OF_THE_ADAPTER:
        return ADAPTER
    if finding.rule.startswith("IDX") and checkpoint.index:
        return checkpoint.index.name
    if finding.rule == "SEC001" and checkpoint.special:
        return next(iter(checkpoint.special))
    graph = next(
        (record.file for record in checkpoint.graphs if finding.tensors and finding.tensors[0] in record.names), None
    )
    if graph is not None:
        return graph
    tensors = checkpoint.tensors
    stored = next(
        (weights if checkpoint.table else tensors[name].range.file for name in finding.tensors if name in tensors), None
    )
    if stored is None and not finding.tensors and checkpoint.config and not finding.rule.startswith(("STO", "IDX")):
        return checkpoint.config.name
    return stored or weights
