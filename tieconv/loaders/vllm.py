"""Predict vLLM: before 0.29 only the tie flag decides; from 0.29 on, vLLM first loads and compares a stored head.

A class `ties` by the flag, has its `own` head, or always uses the `embedding`. If it `demands` a value of the flag, it
asserts that value. The tables name further properties of a class (fixtures/vllm_classes.py). An absent weight stays
uninitialised without a message: the check for missing weights ignores every layer with an embedding method.

If any folder has a file named `consolidated*.safetensors`, newer releases load Mistral's own format
(transformers_utils/repo_utils.py, is_mistral_model_repo; model_loader/default_loader.py, _prepare_weights).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tieconv.architectures.effective_flag import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import TWO_FORMATS, Layout
from tieconv.checkpoint.value_type import record
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Absence, Cause, Loaded, Refusal, stopped, unknown
from tieconv.loaders.transformers5 import flag_refusals, load_dtype
from tieconv.text import shown

_LOADER = "vLLM"
_OLD, _READ = "0.5.3", "vllm 0.5.3.post1, models/llama.py, load_weights"
_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


def load(inspection: Inspection, *, release: str) -> Loaded:
    """Return the head and the embedding in vLLM's class of the architecture."""
    if release == _OLD and inspection.family.architecture != "LlamaForCausalLM":
        return stopped(_LOADER, unknown(f"tieconv read vLLM {_OLD} for LlamaForCausalLM alone"))
    is_old, release = release == _OLD, "0.28" if release == _OLD else release
    inspection = _safetensors_first(inspection)
    refusal = _native(inspection) or next(_class_refused(inspection, release), None)
    refusal = refusal or evidence.by_pattern(
        inspection, _LOADER, (evidence.SAFETENSORS, evidence.TORCH), *_PATTERNS, indexed=True
    )
    known = refusal or evidence.known_pair(inspection, f"vLLM {release}", f"vllm-{release}")
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    # vLLM's Transformers backend looks for one name of the bias.
    one_name = all(name.endswith("lm_head.bias") for name in evidence.stored_bias(inspection))
    has_bias = "bias" in kind and ("any bias" not in kind or one_name)
    model = evidence.PairModel(_LOADER, inspection, pair, has_bias=has_bias, absence=Absence.MEMORY)
    tables = Tables(model, kind)
    if is_old and tables.old_error:
        return stopped(_LOADER, Refusal(Cause.NAMES, tables.old_error))
    return tables.loaded_028() if release == "0.28" else tables.loaded_033()


def _safetensors_first(inspection: Inspection) -> Inspection:
    """Return the inspection without the caution about a second format: vLLM reads torch files only without others."""
    checkpoint = inspection.checkpoint
    if checkpoint.format != evidence.SAFETENSORS:
        return inspection
    cautions = tuple(caution for caution in checkpoint.cautions if caution.code != TWO_FORMATS)
    return replace(inspection, checkpoint=replace(checkpoint, cautions=cautions))


def _native(inspection: Inspection) -> Refusal | None:
    """Return the refusal for a model with files in Mistral's own format, which has other names and settings."""
    checkpoint = inspection.checkpoint
    if not checkpoint.native or checkpoint.layout is Layout.FILE:
        return None
    name, read = shown(checkpoint.native), shown(checkpoint.entry or checkpoint.files[0].name)
    if checkpoint.native in {file.name for file in checkpoint.files}:
        return unknown(f"{name} has Mistral's own format, and tieconv has no measurement of its ties in vLLM")
    return unknown(
        f"{name} exists, so vLLM loads Mistral's own format and reads only consolidated*.safetensors. "
        f"Older releases read {read}, as do all releases with --load-format hf --config-format hf."
    )


def _class_refused(inspection: Inspection, release: str) -> Iterator[Refusal]:
    """Yield why vLLM cannot build the model, whatever its weights are."""
    checkpoint, family = inspection.checkpoint, inspection.family
    if checkpoint.layout is Layout.FILE or checkpoint.config is None or checkpoint.adapter is not None:
        return
    data = f"vllm-{release}"
    if family.architecture in release_tables.names(data, "fails"):
        yield Refusal(Cause.CONFIG, f"vLLM cannot run {shown(family.architecture)}")
    key = release_tables.by_type(data, "needs key").get(family.architecture)
    if key is not None and key not in checkpoint.config_values:
        yield Refusal(Cause.CONFIG, f"vLLM's class reads {key} from the config, which does not declare it")
    wrong = _wrong_size(inspection, release_tables.by_type(data, "fixed size").get(family.architecture))
    if wrong is not None:
        yield wrong
    own = family.model_type in release_tables.names(data, "own config")
    for refusal in () if own else flag_refusals(inspection):
        yield replace(refusal, sentence=f"vLLM reads the config with transformers 5, and {refusal.sentence}")


def _wrong_size(inspection: Inspection, rule: tuple[str, int, str] | None) -> Refusal | None:
    """Return the refusal of a size that vLLM's class computes and does not read from the config."""
    if rule is None:
        return None
    key, factor, base = rule
    config = inspection.checkpoint.config_values
    size, expected = config.get(key), config.get(base)
    if not isinstance(size, int) or not isinstance(expected, int) or size == factor * expected:
        return None
    sentence = f"vLLM's class uses {factor} times {base}, and the config declares {key} {size:,}"
    return Refusal(Cause.CONFIG, sentence)


_READ_028 = "vllm 0.28.0, vllm/model_executor/models/ and model_loader/default_loader.py; vllm-project/vllm#6758"
_READ_033 = "vllm 0.29.0 and 0.33.0, vllm/config/model.py, maybe_untie_word_embeddings; vllm-project/vllm#51665"
_RELEASES = (
    ("<0.29", "0.28", (0, 6), (0, 29), ("0.28.0",), _READ_028),
    (">=0.29", "0.33", (0, 29), None, ("0.32.0",), _READ_033),
    (_OLD, _OLD, (0, 5, 3), (0, 5, 4), (), _READ),
)
"""Each version, the release of its tables, its range, the releases that ran, and its source."""
*CONSUMERS, OLD = (
    Consumer("vllm", version, since, cited, partial(load, release=release), before, own_rows=True, ran=ran)
    for version, release, since, before, ran, cited in _RELEASES
)
"""All releases, and one that only its exact version selects."""


# Say which stored tensors vLLM's embedding and head get, by the kind of the class and the tie flag.

_HEAD = "lm_head.weight"
_TRACKED = re.compile(r"norm|\bln_|\bwpe\.|\bembed_positions\.")
_PER_LAYER = "hidden_size_per_layer_input"


@record
class Tables:
    """The embedding and the head of one model. ``kind`` is the name of the table that lists its class."""

    model: evidence.PairModel
    kind: str

    @property
    def old_error(self) -> str:
        """What vLLM before 0.5.4 does with a copy of a tied Llama's head; empty without one.

        Read in the sources of 0.5.3.post1, which looks up every stored name, and of 0.5.4, which skips this one.
        """
        pair, llama = self.model.pair, self.model.inspection.family.architecture == "LlamaForCausalLM"
        copied = llama and self._flag and pair.has_embedding and pair.has_head
        return f"vLLM before 0.5.4 fails with KeyError: '{shown(pair.head)}', by its source" if copied else ""

    def loaded_028(self) -> Loaded:
        """Return the model before 0.29: the tie flag decides."""
        tied = self._flag
        if self.kind.startswith("own"):
            skips = "skips" in self.kind and tied
            return self._checked(self.model.without_head() if skips else self.model.untied(), tied)
        if not tied and not self._always:
            return self._checked(self.model.untied(), tied)
        pair = self.model.pair
        skips = "skips always" in self.kind or ("skips" in self.kind and tied)
        if skips or pair.has_embedding or not pair.has_head:
            return self._checked(self.model.tied(pair.embedding, in_order=not skips, remark=self.old_error), tied)
        return self._checked(self.model.tied(pair.head), tied)

    def loaded_033(self) -> Loaded:
        """Return the model from 0.29 on: vLLM unties a model whose files store a head, and ties equal tensors again."""
        untied_by_file = self._flag and self._file_has_head()
        tied = self._flag and not untied_by_file
        if not self._always and not tied:
            return self._checked(self._untied(compare=untied_by_file), tied)
        pair = self.model.pair
        if self._always and "skips always" in self.kind:
            return self._checked(self.model.tied(pair.embedding), tied)
        if self.kind.startswith("own"):
            return self._checked(self._untied(compare=False), tied)
        if pair.has_head and not pair.has_embedding:
            sentence = f"vLLM skips {shown(pair.head)} in a tied model, and {shown(pair.embedding)} is not stored"
            return stopped(_LOADER, Refusal(Cause.NAMES, sentence, (pair.embedding, pair.head)))
        return self._checked(self.model.tied(pair.embedding), tied)

    @property
    def _flag(self) -> bool:
        inspection = self.model.inspection
        declared = inspection.checkpoint.config_values
        # vLLM reads the flag also for a class that transformers never ties. Its own config classes accept null.
        if FLAG in declared and not inspection.family.levels:
            return bool(declared[FLAG])
        return bool(inspection.config.effective)

    @property
    def _always(self) -> bool:
        return self.kind.startswith(("embedding", "demands true"))

    def _file_has_head(self) -> bool:
        """Return whether any safetensors file of the directory has a head, also a file that the index does not list."""
        checkpoint = self.model.inspection.checkpoint
        if checkpoint.format != evidence.SAFETENSORS:
            return False
        files = (*checkpoint.files, *checkpoint.orphans)
        return any(tensor.name.endswith(_HEAD) for file in files for tensor in file.tensors)

    def _untied(self, *, compare: bool) -> Loaded:
        """Return two parameters; ``compare``: vLLM makes them one if they are equal after loading."""
        model, pair = self.model, self.model.pair
        # vLLM compares only if the model has exactly one embedding layer.
        second = "per layer" in self.kind and model.inspection.checkpoint.config_values.get(_PER_LAYER) != 0
        if second or not (compare and pair.has_head and pair.has_embedding):
            return model.untied()
        # vLLM loads float32 as bfloat16, and so float16 for a few model types (config/model.py, _resolve_auto_dtype).
        dtype = load_dtype(model.inspection)
        without_f16 = model.inspection.family.model_type in release_tables.names("vllm-0.33", "float16 not supported")
        dtype = "BF16" if dtype in ("F32", "F64") or (dtype == "F16" and without_f16) else dtype
        members = {member.name: member for tie in model.inspection.ties for member in tie.members}
        if pair.embedding not in members or pair.head not in members:
            equal = None
        else:
            equal = evidence.equal_members(model.inspection, members[pair.embedding], members[pair.head], dtype)
        if equal is None:
            return replace(model.untied(), undecided=(pair.embedding, pair.head))
        if not equal:
            return model.untied()
        if pair.same:
            return model.tied(pair.embedding)
        return model.tied_after_loading(remark=f"they are equal only in {dtype}, the type that --dtype auto selects")

    def _checked(self, loaded: Loaded, tied: bool) -> Loaded:
        """Return ``loaded``, or the reason why vLLM fails. ``tied`` is the flag when vLLM builds the class."""
        refusal = next(self._refusals(loaded, tied), None)
        return loaded if refusal is None else stopped(_LOADER, refusal)

    def _refusals(self, loaded: Loaded, tied: bool) -> Iterator[Refusal]:
        pair = self.model.pair
        if "demands" in self.kind and tied is self.kind.startswith("demands false"):
            sentence = f"vLLM's class requires tie_word_embeddings to be {'false' if tied else 'true'}"
            yield Refusal(Cause.CONFIG, sentence)
        stored = (*((pair.head,) if pair.has_head else ()), *evidence.stored_bias(self.model.inspection))
        if stored and "refuses" in self.kind:
            yield Refusal(Cause.NAMES, f"vLLM's class has no parameter for {shown(stored[0])}", stored[:1])
        yield from self.model.undeclared_rows(loaded)
        inspection = self.model.inspection
        if inspection.quantised is None and "quantization_config" not in inspection.checkpoint.config_values:
            yield from evidence.layers_refused(inspection, pair, self._is_missed)

    def _is_missed(self, name: str) -> bool:
        """Return whether vLLM misses a layer or a tensor: it tracks norms and positions (track_weights_loading)."""
        start = name.rpartition(".")[0] if name[-1].isdigit() else name
        names = (name, *self.model.inspection.checkpoint.tensors)
        return any(_TRACKED.search(each) for each in names if each.startswith(start))
