"""Cut the finished graph at `inputs_embeds`, and count the copies that a session of each part holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from tieconv.checkpoint.write_plan.graph import SessionProof, SharedMatrix
from tieconv.errors import VerificationError
from tieconv.onnx.export.embeds.join_graphs import IDS
from tieconv.onnx.export.embeds.text_part import EMBEDS
from tieconv.onnx.parity.graph.embedding_pair import EMBEDDING
from tieconv.onnx.write.session_proof import prove
from tieconv.onnx.write.split import split_at


def separate(directory: Path, name: str, matrices: Sequence[SharedMatrix]) -> tuple[SessionProof, ...]:
    """Leave the decoder in the graph ``name``, and write its embedding beside it. Both read one data file.

    ``matrices`` are those that the graph stores once. Raises `VerificationError` if the decoder still reads token ids.
    Raises it also if a session of a part holds a matrix more often than promised.
    """
    split_at(directory, name, [EMBEDS], EMBEDDING)
    proofs = []
    for part in (name, EMBEDDING):
        graph = onnx.load(str(directory / part), load_external_data=False).graph
        if part == name and any(value.name == IDS for value in graph.input):
            raise VerificationError(
                "the decoder reads input_ids besides inputs_embeds",
                "nothing was written; report this with the model's class",
                "export.embeds",
            )
        weights = {tensor.name for tensor in graph.initializer}
        held = [replace(m, graph=part) for m in matrices if m.done and m.initializer in weights]
        proofs.append(prove(directory, directory / part, part, held))
    return tuple(proofs)
