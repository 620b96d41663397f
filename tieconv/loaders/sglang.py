"""Predict SGLang: the tie flag and the class decide, and a missing table keeps uninitialised memory without a message.

A class `ties` by the flag, has its `own` head, always uses the `embedding`, or `copies` it. The module
`fixtures/sglang_classes.py` explains the tables. SGLang has its own config classes for some model types, with other
defaults. No class adds a head bias to the logits (layers/logits_processor.py, _compute_lm_head).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.architectures.effective_flag import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import Layout
from tieconv.checkpoint.value_type import record
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Absence, Cause, Loaded, Parameter, Refusal, stopped, unknown
from tieconv.loaders.transformers5 import flag_refusals
from tieconv.text import shown

_LOADER = "SGLang"
_DATA = "sglang"
_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


def load(inspection: Inspection) -> Loaded:
    """Return the head and the embedding in SGLang's class of the architecture."""
    refusal = next(_refusals(inspection), None)
    refusal = refusal or evidence.by_pattern(
        inspection, _LOADER, (evidence.SAFETENSORS, evidence.TORCH), *_PATTERNS, indexed=True, prefers=True
    )
    known = refusal or evidence.known_pair(inspection, _LOADER, _DATA)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    renamed = _renamed(inspection, pair)
    if renamed is not None:
        return stopped(_LOADER, renamed)
    tables = _Tables(evidence.PairModel(_LOADER, inspection, pair, absence=Absence.MEMORY), kind.split(", "))
    loaded = tables.loaded()
    refusal = next(tables.refusals(loaded), None)
    return loaded if refusal is None else stopped(_LOADER, refusal)


def _refusals(inspection: Inspection) -> Iterator[Refusal]:
    """Yield why SGLang cannot build the model, or why tieconv makes no claim, whatever the weights are."""
    checkpoint, family = inspection.checkpoint, inspection.family
    if checkpoint.layout is Layout.FILE or checkpoint.config is None or checkpoint.adapter is not None:
        return
    if checkpoint.native:
        name = shown(checkpoint.native)
        yield unknown(f"{name} has Mistral's own format, and tieconv has no measurement of its ties in {_LOADER}")
    kind = release_tables.kind(_DATA, family.architecture) or ""
    if "auto_map" in checkpoint.config_values and (kind == "no class" or "backend" in kind):
        yield unknown(f"{_LOADER} may run the code beside the model, and tieconv does not run that code")
    if kind == "no class":
        yield Refusal(Cause.CLASS, f"{_LOADER} cannot run {shown(family.architecture)}")
    keys = release_tables.by_type(_DATA, "needs keys").get(family.architecture, ())
    absent = next((key for key in keys if not _has_key(checkpoint.config_values, key)), None)
    if absent is not None:
        yield Refusal(Cause.CONFIG, f"{_LOADER}'s class reads {absent} from the config, which does not declare it")
    text = release_tables.by_type(_DATA, "needs text").get(family.architecture, "")
    if isinstance(checkpoint.config_values.get(text), int):
        yield Refusal(Cause.CONFIG, f"{_LOADER}'s class fails if {text} in the config is a number")
    if family.levels and not _has_text_flag(inspection):
        yield unknown(f"tieconv has no measurement of {_LOADER} for {shown(family.architecture)}")
    takes_any = family.model_type in release_tables.names(_DATA, "takes any flag")
    for refusal in () if takes_any else flag_refusals(inspection):
        yield replace(refusal, sentence=f"{_LOADER} reads the config with transformers 5, and {refusal.sentence}")


def _text_config(inspection: Inspection) -> Mapping[str, object]:
    text = inspection.checkpoint.config_values.get("text_config")
    return text if isinstance(text, Mapping) else {}


def _has_text_flag(inspection: Inspection) -> bool:
    """Return whether the language model of a composite, one of the types that ran, reads the flag in its config."""
    types = release_tables.by_type(_DATA, "text flag").get(inspection.family.architecture, ())
    return _text_config(inspection).get("model_type") in types


def _has_key(config: Mapping[str, object], path: str) -> bool:
    key, _, rest = path.partition(".")
    value = config.get(key)
    return key in config and (not rest or (isinstance(value, Mapping) and _has_key(value, rest)))


def _renamed(inspection: Inspection, pair: evidence.Pair) -> Refusal | None:
    """Return the refusal of a claim for names that are not those of the class."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    names = ((pair.embedding, family.input_embedding), (pair.head, family.output_head))
    renamed = next((name for name, usual in names if name in tensors and name != usual), None)
    if renamed is None:
        return None
    return unknown(f"tieconv has no measurement of {_LOADER} for a table with the name {shown(renamed)}")


@record
class _Tables:
    """The embedding and the head of one model. ``kind`` are the words of the table that lists its class."""

    model: evidence.PairModel
    kind: list[str]

    def loaded(self) -> Loaded:
        """Return the model, if SGLang loads all stored names."""
        pair = self.model.pair
        if self._tied:
            both = "loads both" in self.kind
            source = pair.head if both and not pair.has_embedding else pair.embedding
            return self.model.tied(source, in_order=both)
        untied = self.model.untied()
        if self.kind[0] == "copies" and not pair.has_head and pair.has_embedding:
            return replace(untied, parameters={**untied.parameters, pair.head: Parameter(pair.embedding, pair.head)})
        return self.model.without_head() if self._skips else untied

    def refusals(self, loaded: Loaded) -> Iterator[Refusal]:
        inspection, pair = self.model.inspection, self.model.pair
        if self.kind[0] == "demands false" and self._flag:
            yield Refusal(Cause.CONFIG, f"{_LOADER}'s class requires tie_word_embeddings to be false")
        loads = self._skips or "loads both" in self.kind
        stored: tuple[str, ...] = (pair.head,) if pair.has_head and self._tied and not loads else ()
        if "any bias" not in self.kind and not ("backend" in self.kind and self._tied):
            stored += evidence.stored_bias(inspection)
        if stored and "strict" in self.kind:
            yield Refusal(Cause.NAMES, f"{_LOADER}'s class has no parameter for {shown(stored[0])}", stored[:1])
        yield from self.model.undeclared_rows(loaded)

    @property
    def _tied(self) -> bool:
        return self.kind[0] == "embedding" or (self.kind[0] == "ties" and self._flag)

    @property
    def _skips(self) -> bool:
        """Whether the class ignores a stored head that it could load, or that it lacks."""
        return "skips always" in self.kind or ("skips" in self.kind and self._flag)

    @property
    def _flag(self) -> bool:
        inspection = self.model.inspection
        declared = inspection.checkpoint.config_values
        if inspection.family.levels:
            return bool(_text_config(inspection).get(FLAG))
        defaults = release_tables.by_type(_DATA, "own default")
        if FLAG in declared:
            return bool(declared[FLAG])
        return bool(defaults.get(inspection.family.model_type, inspection.config.effective))


_SOURCE = "sglang 0.5.23, sglang/srt/model_loader/loader.py and sglang/srt/models/, with transformers 5.19.0"
CONSUMERS = (Consumer(_DATA, "0.5", since=(0, 5), cited=_SOURCE, load=load, own_rows=True, ran=("0.5.23",)),)
