"""The model under analysis: its two tables, what stands before the logits, its bias, its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from tieconv.analysis.final import Final, final_norm, vector
from tieconv.analysis.flip import PLAIN, Flip, flip_of
from tieconv.analysis.tables import Array, Table, open_table
from tieconv.analysis.tokens import Tokens, read_tokens
from tieconv.checkpoint.dtypes import FLOATS
from tieconv.checkpoint.inspection import BiasState, Inspection, State
from tieconv.checkpoint.quantised import quantised_twin
from tieconv.errors import UnreadableError
from tieconv.sources.local import FileSet
from tieconv.text import shown


@dataclass(frozen=True, slots=True)
class Subject:
    """``head`` is ``None`` where the head is the input table; ``tokens`` and ``final`` where they are unknown.

    ``flip`` is what a re-tie does besides.
    """

    evidence: Inspection
    embed: Table
    head: Table | None
    final: Final | None
    bias: Array | None
    tokens: Tokens | None
    flip: Flip = PLAIN

    @property
    def output(self) -> Table:
        """The table that makes the logits."""
        return self.head or self.embed

    @property
    def used(self) -> Array | None:
        """Which rows of the output table have a token."""
        return self.tokens.used(self.output.rows) if self.tokens else None


def open_subject(evidence: Inspection, files: FileSet) -> Subject:
    """Raises `UnreadableError` where there is no input table of floats, or a stored head is no such table."""
    checkpoint = evidence.checkpoint
    if checkpoint.headers_only:
        raise UnreadableError(
            f"{shown(checkpoint.source)}: tensor bytes of this format are not read, so nothing can be measured",
            "analyse the model that it was converted from",
            "analyze.headers-only",
        )
    view = evidence.head
    if view.input_embedding is None:
        raise UnreadableError(
            f"{shown(checkpoint.source)} stores no input embedding that tieconv knows of",
            "name it: tieconv analyze --embed NAME",
            "analyze.no-embedding",
        )
    tensors = checkpoint.tensors
    for name in (view.input_embedding.name, *([view.output_head.name] if view.output_head else [])):
        twin = quantised_twin(name, tensors)
        if twin and name not in tensors:
            raise UnreadableError(
                f"{shown(checkpoint.source)}: {shown(name)} is stored as codes and scales ({shown(twin)})",
                "analyse the model that it was quantised from",
                "analyze.quantised",
            )
    embed = open_table(files, tensors[view.input_embedding.name])
    head = _head(evidence, files, embed)
    final = final_norm(evidence, files, (head or embed).width)
    tokens = read_tokens(files, checkpoint.companions)
    flip = flip_of(evidence, files, embed, head) if head else PLAIN
    return Subject(evidence, embed, head, final, _bias(evidence, files), tokens, flip)


def _head(evidence: Inspection, files: FileSet, embed: Table) -> Table | None:
    output = evidence.head.output_head
    if output is None or not output.stored or output.name == embed.record.name:
        return None
    tie = evidence.word_tie
    members = {member.name: member.state for member in tie.members} if tie else {}
    if members.get(output.name) is State.ALIASED or members.get(embed.record.name) is State.ALIASED:
        return None
    head = open_table(files, evidence.checkpoint.tensors[output.name])
    if head.width != embed.width:
        raise UnreadableError(
            f"{shown(head.record.name)} has rows of {head.width} numbers and {shown(embed.record.name)} of "
            f"{embed.width}: row by row they cannot be compared",
            "see how they are stored: tieconv inspect",
            "analyze.width",
        )
    return head


def _bias(evidence: Inspection, files: FileSet) -> Array | None:
    bias = evidence.head.output_bias
    if bias is None or bias.state is BiasState.ABSENT:
        return None
    record = evidence.checkpoint.tensors[bias.name]
    return vector(files, record) if record.dtype in FLOATS else None
