"""One model as the subject of an analysis: its tables, last norm, bias and tokens. Imports numpy: import it lazily."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tieconv.analysis.tables import Array, Table, open_table
from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import ByteReader, Files
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.relation.proved import Scaled
from tieconv.checkpoint.results.analysis import Measure, Section
from tieconv.checkpoint.tie_group import BiasState, Tie
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import FLOATS, TensorRecord
from tieconv.checkpoint.write_plan import NOT_ASKED, RetieForecast
from tieconv.errors import UnreadableError
from tieconv.formats.directory import read_generation
from tieconv.inspection import token_ids
from tieconv.inspection.chunk_reader import ChunkReader
from tieconv.inspection.config_values import WithheldError, class_values, guard_class, number
from tieconv.inspection.equality import relate
from tieconv.inspection.numeric.bits import FORMATS, decode
from tieconv.inspection.ties import EQUAL
from tieconv.inspection.view_reader import readable
from tieconv.reference.windows import Apart
from tieconv.sources.local import FileSet
from tieconv.sources.ranged import RangedFiles
from tieconv.text import Hint, call, shown

# The last norm and the factors between it and the logits, for the classes with a known last norm.
#
# logits = cap(s · U (γ ⊙ x̂ + β) + b) with ‖x̂‖₂ ≤ √d, for both RMSNorm and LayerNorm. The tests compare this list
# with the classes of transformers. tieconv claims no bound for a class that is not listed.


@record
class Final:
    """γ (d,), β (d,) or ``None``, s, and the soft cap of the logits, 0 for none.

    ``norm`` and ``shift_name`` are the names of the stored scale and shift, ``dtype`` and ``shift_dtype`` their types.
    They are empty if the norm has none. ``gain_key`` says how a factor g on the head's columns changes the scale.
    ``scale`` means γ' = γ·g, and ``one_plus`` means weight' = (1 + weight)·g − 1.
    """

    gains: Array
    shift: Array | None
    scale: float
    cap: float
    norm: str
    gain_key: str
    shift_name: str = ""
    dtype: str = ""
    shift_dtype: str = ""

    @property
    def capped(self) -> bool:
        return self.cap > 0

    @property
    def offset(self) -> float:
        """The difference of γ and the stored weight."""
        return 1.0 if self.gain_key == "one_plus" else 0.0


@record
class Known:
    """The last norm of a class. ``norm`` is the module.

    ``{last}`` in it is the number of the last layer, counted by the config key ``layers``. `class_values` gives the
    measured config keys that decide whether the entry applies.
    """

    norm: str
    one_plus: bool = False
    multiply: str = ""
    divide: str = ""
    cap: str = ""
    layers: str = "decoder_layers"


_LLAMA = Known("model.norm")
_LIKE_LLAMA = (
    "llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "phimoe", "smollm3",
    "olmo2", "olmo3", "olmoe", "flex_olmo", "apertus", "arcee", "bitnet", "cwm", "diffllama", "doge", "ernie4_5",
    "ernie4_5_moe", "exaone4", "glm", "glm4", "gpt_oss", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "jetmoe",
    "seed_oss",
)  # fmt: skip
KNOWN: Mapping[str, Known] = {
    **dict.fromkeys(_LIKE_LLAMA, _LLAMA),
    "olmo": Known(""),
    "stablelm": _LLAMA,
    "starcoder2": _LLAMA,
    "phi": Known("model.final_layernorm"),
    "gemma": Known("model.norm", one_plus=True),
    "gemma2": Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    "gemma3_text": Known("model.norm", one_plus=True, cap="final_logit_softcapping"),
    **dict.fromkeys(("cohere", "cohere2"), Known("model.norm", multiply="logit_scale")),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared"), Known("model.norm", divide="logits_scaling")),
    "nemotron": Known("model.norm", one_plus=True),
    **dict.fromkeys(("jamba", "persimmon"), Known("model.final_layernorm")),
    "lfm2": Known("model.embedding_norm"),
    "xglm": Known("model.layer_norm"),
    "biogpt": Known("biogpt.layer_norm"),
    "gpt2": Known("transformer.ln_f"),
    "gpt_neo": Known("transformer.ln_f"),
    "gptj": Known("transformer.ln_f"),
    "codegen": Known("transformer.ln_f"),
    "gpt_bigcode": Known("transformer.ln_f"),
    "falcon": Known("transformer.ln_f"),
    "bloom": Known("transformer.ln_f"),
    "gpt_neox": Known("gpt_neox.final_layer_norm"),
    **dict.fromkeys(("mamba", "falcon_mamba"), Known("backbone.norm_f")),
    "opt": Known("model.decoder.final_layer_norm"),
    **dict.fromkeys(("bert", "deberta", "deberta-v2"), Known("cls.predictions.transform.LayerNorm")),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), Known("lm_head.layer_norm")),
    "albert": Known("predictions.LayerNorm"),
    "distilbert": Known("vocab_layer_norm"),
    "electra": Known("generator_predictions.LayerNorm"),
    "modernbert": Known("head.norm"),
    **dict.fromkeys(("bart", "marian", "plbart"), Known("model.decoder.layers.{last}.final_layer_norm")),
    **dict.fromkeys(("mbart", "pegasus", "m2m_100", "blenderbot"), Known("model.decoder.layer_norm")),
}
"""By model_type: the module of the last norm, and the config keys of the factors after it."""


def final_norm(evidence: Inspection, reader: ByteReader, width: int) -> Final:
    """Return the last norm and the factors before the logits. Raises `WithheldError` if they are unknown."""
    known = KNOWN.get(str(evidence.checkpoint.config_values.get("model_type")))
    if known is None:
        raise WithheldError("the factors between the last norm and the logits of this class are unknown")
    layers = known.layers if "{last}" in known.norm else ""
    values = class_values(evidence, tuple(filter(None, (known.multiply, known.divide, known.cap, layers))))
    divisor = number(values, known.divide, 1.0)
    if not divisor:
        raise WithheldError(f"{known.divide} is 0, and the logits are divided by it")
    scale, cap = number(values, known.multiply, 1.0) / divisor, _cap(known, values)
    if not known.norm:
        return Final(np.ones(width), None, scale, cap, "", "")
    norm = known.norm.format(last=int(number(values, layers, 0)) - 1)
    weight = _record(evidence, f"{norm}.weight", width)
    if weight is None:
        raise WithheldError(f"{norm}.weight is not stored as {width:,} floats")
    bias = _record(evidence, f"{norm}.bias", width)
    gains = vector(reader, weight) + (1.0 if known.one_plus else 0.0)
    key = "one_plus" if known.one_plus else "scale"
    if bias is None:
        return Final(gains, None, scale, cap, weight.name, key, dtype=weight.dtype)
    shift = vector(reader, bias)
    return Final(gains, shift, scale, cap, weight.name, key, bias.name, weight.dtype, bias.dtype)


def _cap(known: Known, values: Mapping[str, object]) -> float:
    """Return the soft cap of the logits, or 0 for none (also ``null`` in the config)."""
    if not known.cap or values[known.cap] is None:
        return 0.0
    cap = number(values, known.cap, 0.0)
    if cap <= 0:
        raise WithheldError(f"{known.cap} is {cap:g}, but a cap must be greater than 0")
    return cap


def _record(evidence: Inspection, name: str, width: int) -> TensorRecord | None:
    """Return a stored vector of ``width`` floats, with or without the base model's prefix, or ``None``."""
    tensors = evidence.checkpoint.tensors
    record = tensors.get(name) or tensors.get(name.partition(".")[2])
    if record is None or record.dtype not in FLOATS or record.elements != width:
        return None
    return record


def vector(reader: ByteReader, record: TensorRecord) -> Array:
    """Return every element of a small float tensor as float64: (n,)."""
    reader, (record,) = readable(reader, (record,))
    bits = np.empty(record.elements, FORMATS[record.dtype].bits)
    if len(bits):
        reader.read_into(record.range, 0, bits.view("u1").data)
    values: Array = decode(bits, FORMATS[record.dtype]).astype("<f8")
    return values


# The other effects of a re-tie: on the factor of the logits, and on further tensors that the class ties.


@record
class Flip:
    """The other effects of a re-tie on two tables.

    If tied, the class multiplies its logits by 2**``exponent`` (as T5 does). ``taken_up`` says that the head is exactly
    the embedding times that factor, so a re-tie changes nothing. ``refused`` says why no re-tie is possible with any
    values; it is empty if one is. ``third`` names another tensor that the class ties to the embedding, such as a
    decoder's table, if it differs. A re-tie would replace it too.
    """

    exponent: int = 0
    taken_up: bool = False
    refused: str = ""
    third: str = ""

    @property
    def barred(self) -> bool:
        """Whether tying would do more than replace one table by the other."""
        return bool(self.refused) or (self.exponent != 0 and not self.taken_up)

    @property
    def reason(self) -> str:
        """Why it is barred, as a clause."""
        if self.refused:
            return self.refused
        return f"if tied, this class multiplies its logits by 2**{self.exponent}, which it does not do now"


PLAIN = Flip()
"""A re-tie without other effects."""


def flip_of(evidence: Inspection, reader: ByteReader, embed: Table, head: Table, forecast: RetieForecast) -> Flip:
    """Return the other effects. Reads both tables if the class rescales its logits, and the other tied tensors."""
    if forecast.refused:
        return Flip(refused=forecast.refused)
    exponent = forecast.exponent
    word = [tie for tie in evidence.ties if tie.role is Role.WORD_EMBEDDING]
    others = [tie for tie in evidence.ties if tie.gated and tie not in word]
    for name, reference in (pair for tie in others for pair in _apart(evidence, reader, tie)):
        return Flip(exponent, refused=f"{shown(name)} differs from {shown(reference)}, and a re-tie would merge them")
    third = next((name for tie in word for name, _ in _apart(evidence, reader, tie, embed, head)), "")
    if not exponent:
        return Flip(third=third)
    if third:
        return Flip(exponent, refused=f"{shown(third)} differs from {shown(embed.record.name)}", third=third)
    relation = relate(reader, embed.record, head.record)
    alike = embed.record.dtype == head.record.dtype  # a multiple of another type was rounded
    return Flip(
        exponent, alike and isinstance(relation, Scaled) and relation.exact and relation.factor == 2.0**exponent
    )


def _apart(evidence: Inspection, reader: ByteReader, tie: Tie, *ends: Table) -> Iterator[tuple[str, str]]:
    """Yield (name, name of the reference) for each stored member of a group that differs from the reference.

    The reference is the first of ``ends``, or else the first stored member. ``ends`` are compared elsewhere.
    """
    tensors = evidence.checkpoint.tensors
    against = ends[0].record if ends else tensors[tie.stored_members[0].name]
    left_out = {against.name, *(end.record.name for end in ends)}
    for member in tie.stored_members:
        record = tensors[member.name]
        if record.name not in left_out and record.elements and relate(reader, against, record).state not in EQUAL:
            yield record.name, against.name


# The model under analysis: its two tables, its last norm, its bias and its tokens.


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
    flip, output = PLAIN, evidence.head.output_head
    # One tensor may be stored under two names, while the config declares them untied.
    may_retie = head or (output is not None and output.stored and forecast.sets_flag)
    if forecast is not NOT_ASKED and may_retie:
        flip = flip_of(evidence, reader, embed, head or embed, forecast)
    bias = _bias(evidence, reader)
    return Subject(evidence, embed, head, final, bias, tokens, flip, forecast, withheld, fed, unfed, unlisted)


def open_tables(evidence: Inspection, files: FileSet | RangedFiles) -> tuple[ByteReader, Table, Table | None]:
    """Return the reader of a model's tensors, the input table, and the head's if it is stored separately.

    Raises `UnreadableError` as `open_subject` does. Reads no tensor.
    """
    checkpoint = evidence.checkpoint
    if checkpoint.headers_only:
        problem = f"{shown(checkpoint.source)}: tieconv does not read the tensor bytes of this format"
        raise UnreadableError(problem, "analyse the model before its conversion", "analyze.headers-only")
    view = evidence.head
    source = view.input_embedding.name if view.input_embedding else _shared(evidence)
    if source is None:
        problem = f"{shown(checkpoint.source)} stores no input embedding that tieconv recognises"
        raise UnreadableError(problem, Hint("name it: ", call("analyze", embed=Hint("NAME"))), "analyze.no-embedding")
    tensors = checkpoint.tensors
    for name in (source, *([view.output_head.name] if view.output_head else [])):
        twin = quantised_twin(name, tensors)
        if twin and name not in tensors:
            problem = f"{shown(checkpoint.source)}: {shown(name)} is stored as codes and scales ({shown(twin)})"
            raise UnreadableError(problem, "analyse the model before its quantisation", "analyze.quantised")
    reader = ChunkReader(files, tensors.values(), checkpoint.table) if checkpoint.table else files
    embed = open_table(reader, tensors[source])
    return reader, embed, _head(evidence, reader, embed)


def _final(evidence: Inspection, files: ByteReader, width: int) -> tuple[Final | None, str]:
    try:
        return final_norm(evidence, files, width), ""
    except WithheldError as why:
        return None, str(why)


def _fed(evidence: Inspection, files: FileSet, rows: int) -> tuple[frozenset[int], str]:
    """Return the ids below ``rows`` that the model reads with every text, and why there may be more (or empty)."""
    generation, unread = read_generation(files, evidence.checkpoint.companions)
    ids = frozenset(token_ids.fed_ids(evidence.checkpoint.config_values, generation, rows))
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
            Hint("see how they are stored: ", call("inspect")),
            "analyze.width",
        )
    return head


def _bias(evidence: Inspection, files: ByteReader) -> Array | None:
    bias = evidence.head.output_bias
    if bias is None or bias.state is BiasState.ABSENT:
        return None
    record = evidence.checkpoint.tensors[bias.name]
    return vector(files, record) if record.dtype in FLOATS else None


# Find the rows with a token: ids in the tokenizer's files, and ids that transformers may assign on loading.


@record
class Tokens:
    """The ids with a token in the files, with their text. ``file`` holds the vocabulary.

    ``spans`` are ids that transformers may assign on loading. ``undecided`` says why a text may also become other ids;
    it is empty if that is impossible.
    """

    file: str
    text: Mapping[int, str]
    spans: tuple[range, ...] = ()
    undecided: str = ""

    def used(self, rows: int) -> Array:
        """Return which of the first ``rows`` rows have a token in the files: (rows,) of bool."""
        marks = np.zeros(rows, bool)
        ids = np.fromiter(self.text, "i8", len(self.text))
        marks[ids[ids < rows]] = True
        return marks

    def possible(self, rows: int) -> Array:
        """Return which of the first ``rows`` rows have a token or may get one on loading: (rows,) of bool."""
        marks = self.used(rows)
        for span in self.spans:
            marks[span.start : min(span.stop, rows)] = True
        return marks


def read_tokens(files: Files, names: Mapping[str, int], config: Mapping[str, object]) -> tuple[Tokens | None, str]:
    """Return the tokens of the model with the other files ``names``; without a vocabulary ``None`` and the reason.

    The reason is empty for a malformed vocabulary, which counts as absent.
    """
    tokenizer = token_ids.read_files(files, names)
    vocabularies = (
        (token_ids.TOKENIZER, tokenizer.model),
        (token_ids.VOCABULARY, tokenizer.vocabulary),
        (token_ids.WORDS, tokenizer.words),
    )
    for file, vocabulary in vocabularies:
        if vocabulary:
            ids = token_ids.token_ids(tokenizer, config)
            text = dict.fromkeys(sorted(ids.listed), "") | tokenizer.added | vocabulary
            return Tokens(file, text, ids.spans, ids.undecided), ""
    return None, next(token_ids.too_large(tokenizer), "")


# Split the gradient of the tied table into its input part and its output part, in weight space.
#
# The head becomes a separate parameter with the same values, so one backward pass gives both parts. Their sum is
# exactly the gradient of the tied table. A measurement on activations would give a smaller input part.

TITLE = "Gradients"


def split(reference: Apart) -> tuple[Any, Any]:
    """Return the gradient of the mean loss over the text, split into input and output part: two tensors (V, d)."""
    torch = reference.torch
    parts = [torch.nn.Parameter(table.detach().clone()) for table in (reference.embed, reference.head)]
    with reference.tables(*parts), torch.enable_grad():
        for window in reference.windows:
            log_p = reference.log_probabilities(window)
            loss = -log_p.gather(-1, reference.targets(window)[:, None]).mean() / len(reference.windows)
            loss.backward()
    return tuple(torch.zeros_like(part) if part.grad is None else part.grad for part in parts)


def gradients_section(reference: Apart, *, tied: bool) -> Section:
    """Return the section: the share of the output part, and the cosine of the two parts."""
    into, out = split(reference)
    length_in, length_out = float(into.norm()), float(out.norm())
    whole = length_in + length_out
    if not whole:
        return Section(TITLE, "The gradient is zero.", ())
    share, n = length_out / whole, reference.predicted
    measures = [
        Measure("share of the output end", share, floor=0.5, n=n, says="|g_out| / (|g_in| + |g_out|); 0.5 is even"),
        Measure("gradient of the input end", length_in, n=n),
        Measure("gradient of the output end", length_out, n=n),
    ]
    if into.shape == out.shape and length_in and length_out:
        cosine = float((into * out).sum()) / (length_in * length_out)
        measures.append(Measure("cosine of the two", cosine, floor=0.0, n=n))
    tables = "tied table" if tied else "two tables"
    sentence = f"On this text the output head contributes {share:.0%} of the gradient of the {tables}."
    return Section(TITLE, sentence, tuple(measures))
