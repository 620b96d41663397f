"""The model under analysis: its two tables, its last norm, its bias and its tokens."""

from __future__ import annotations

from tieconv.analysis.certificate.config_values import WithheldError, guard_class
from tieconv.analysis.certificate.fed_ids import fed_ids, read_generation
from tieconv.analysis.model.last_norm import Final, final_norm, vector
from tieconv.analysis.model.retie_effects import PLAIN, Flip, flip_of
from tieconv.analysis.model.tables import Array, Table, open_table
from tieconv.analysis.model.tokens import Tokens, read_tokens
from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.head import BiasState
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.quantised import quantised_twin
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.retie_forecast import NOT_ASKED, RetieForecast
from tieconv.errors import UnreadableError
from tieconv.inspection.chunks.chunk_reader import ChunkReader
from tieconv.sources.local.files import FileSet
from tieconv.sources.ranged.ranged_files import RangedFiles
from tieconv.text import shown


@record
class Subject:
    """The parts of a model. ``head`` is ``None`` if it is the input table; ``tokens`` and ``final`` if unknown.

    ``withheld`` says why ``final`` is unknown, ``unlisted`` why ``tokens`` are unknown although there are files.
    ``fed`` are the ids that the model reads with every text, and ``unfed`` says why there may be more. ``forecast`` is
    the planner's forecast of a re-tie, and ``flip`` holds its other effects on these tables.
    """

    evidence: Inspection
    embed: Table
    head: Table | None
    final: Final | None
    bias: Array | None
    tokens: Tokens | None
    flip: Flip = PLAIN
    forecast: RetieForecast = NOT_ASKED
    withheld: str = ""
    fed: frozenset[int] = frozenset()
    unfed: str = ""
    unlisted: str = ""

    @property
    def output(self) -> Table:
        """The table of the output head."""
        return self.head or self.embed

    @property
    def used(self) -> Array | None:
        """Which rows of the output table have a token."""
        return self.tokens.used(self.output.rows) if self.tokens else None


def open_subject(evidence: Inspection, files: FileSet, forecast: RetieForecast = NOT_ASKED) -> Subject:
    """Open the tables of a model. ``forecast`` is given if the question is about a re-tie.

    Raises `UnreadableError` if the input table or a stored head is not a table of floats.
    """
    checkpoint = evidence.checkpoint
    reader, embed, head = open_tables(evidence, files)
    final, withheld = _final(evidence, reader, (head or embed).width)
    fed, unfed = _fed(evidence, files, embed.rows)
    tokens, unlisted = read_tokens(files, checkpoint.companions, checkpoint.config_values)
    flip = PLAIN
    if forecast is not NOT_ASKED and (head or _may_retie(evidence, forecast)):
        flip = flip_of(evidence, reader, embed, head or embed, forecast)
    bias = _bias(evidence, reader)
    return Subject(evidence, embed, head, final, bias, tokens, flip, forecast, withheld, fed, unfed, unlisted)


def open_tables(evidence: Inspection, files: FileSet | RangedFiles) -> tuple[ByteReader, Table, Table | None]:
    """Return the reader of a model's tensors, the input table, and the head's if it is stored separately.

    Raises `UnreadableError` as `open_subject` does. Reads no tensor.
    """
    checkpoint = evidence.checkpoint
    if checkpoint.headers_only:
        raise UnreadableError(
            f"{shown(checkpoint.source)}: tieconv does not read the tensor bytes of this format",
            "analyse the model before its conversion",
            "analyze.headers-only",
        )
    view = evidence.head
    source = view.input_embedding.name if view.input_embedding else _shared(evidence)
    if source is None:
        raise UnreadableError(
            f"{shown(checkpoint.source)} stores no input embedding that tieconv recognises",
            "name it: tieconv analyze --embed NAME",
            "analyze.no-embedding",
        )
    tensors = checkpoint.tensors
    for name in (source, *([view.output_head.name] if view.output_head else [])):
        twin = quantised_twin(name, tensors)
        if twin and name not in tensors:
            raise UnreadableError(
                f"{shown(checkpoint.source)}: {shown(name)} is stored as codes and scales ({shown(twin)})",
                "analyse the model before its quantisation",
                "analyze.quantised",
            )
    reader = ChunkReader(files, tensors.values(), checkpoint.table) if checkpoint.table else files
    embed = open_table(reader, tensors[source])
    return reader, embed, _head(evidence, reader, embed)


def _final(evidence: Inspection, files: ByteReader, width: int) -> tuple[Final | None, str]:
    """Return the last norm, or why it is unknown."""
    try:
        return final_norm(evidence, files, width), ""
    except WithheldError as why:
        return None, str(why)


def _fed(evidence: Inspection, files: FileSet, rows: int) -> tuple[frozenset[int], str]:
    """Return the ids below ``rows`` that the model reads with every text, and why there may be more (or empty)."""
    generation, unread = read_generation(files, evidence.checkpoint.companions)
    ids = frozenset(fed_ids(evidence.checkpoint.config_values, generation, rows))
    if unread:
        return ids, unread
    try:
        guard_class(evidence)
    except WithheldError as why:
        return ids, str(why)
    return ids, ""


def _shared(evidence: Inspection) -> str | None:
    """Return the stored tensor of a tied input table whose canonical name is not stored (Marian)."""
    tie = evidence.word_tie
    names = {member.name for member in tie.members} if tie and tie.declared else set()
    stored = tie.stored_members if tie and evidence.family.input_embedding in names else ()
    return stored[0].name if stored else None


def _may_retie(evidence: Inspection, forecast: RetieForecast) -> bool:
    """Return whether one tensor is stored under two names and the config declares them untied."""
    output = evidence.head.output_head
    return output is not None and output.stored and forecast.sets_flag


def _head(evidence: Inspection, files: ByteReader, embed: Table) -> Table | None:
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
            f"{embed.width}, so tieconv cannot compare their rows",
            "see how they are stored: tieconv inspect",
            "analyze.width",
        )
    return head


def _bias(evidence: Inspection, files: ByteReader) -> Array | None:
    bias = evidence.head.output_bias
    if bias is None or bias.state is BiasState.ABSENT:
        return None
    record = evidence.checkpoint.tensors[bias.name]
    return vector(files, record) if record.dtype in FLOATS else None
