"""vLLM: before 0.29 the flag alone decides, from 0.29 on a stored head is loaded first and compared.

A class `ties` by the flag; one that `skips` leaves a stored head out while tied, the others load both names into one
tensor; one that `demands` a value of the flag asserts it. A weight that the file lacks stays uninitialised without a
word: the check for missing weights leaves out every layer with an embedding method.

A file named `consolidated*.safetensors`, in whatever folder, makes the newer ones load Mistral's own format
(transformers_utils/repo_utils.py, is_mistral_model_repo; model_loader/default_loader.py, _prepare_weights).
"""

from __future__ import annotations

from functools import partial

from tieconv.architectures.flag_levels import reading_v4
from tieconv.checkpoint.files.model_files import Layout
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.loaders import questions as facts
from tieconv.loaders import release_tables
from tieconv.loaders import weight_files as files
from tieconv.loaders.interface import Consumer, Verdict, error, unknown
from tieconv.loaders.questions import Pair, listed, verdict
from tieconv.text import shown


def judge(inspection: Inspection, *, release: str) -> Verdict:
    """What vLLM's own class of the architecture does with the head and the embedding."""
    if inspection.checkpoint.native and inspection.checkpoint.layout is not Layout.FILE:
        return unknown(_native(inspection))
    found = files.by_pattern(
        inspection, "vLLM", (facts.SAFETENSORS, facts.TORCH), "*.safetensors", "*.bin", "*.pt", indexed=True
    )
    if found is not None:
        return found
    kind, pair = release_tables.kind(f"vllm-{release}", inspection.family.architecture), facts.pair(inspection)
    if kind is None or pair is None:
        return unknown(f"what vLLM {release} does with {facts.class_name(inspection)} is not known")
    tied = inspection.config.effective
    if release == "0.28" and reading_v4(inspection) not in (None, tied):
        return unknown("the flag is absent, and which default holds depends on the transformers beside it")
    if "demands" in kind and tied is kind.startswith("demands false"):
        return error(f"its class asserts that tie_word_embeddings is {'false' if tied else 'true'}")
    dropped = () if "bias" in kind else facts.class_bias(inspection)
    return _newer(inspection, pair, tied, dropped) if release == "0.33" else _older(kind, pair, tied, dropped)


def _native(inspection: Inspection) -> str:
    """Which weights are read where some lie in Mistral's own format: under names and settings that are not HF's."""
    checkpoint = inspection.checkpoint
    name, read = shown(checkpoint.native), shown(checkpoint.entry or checkpoint.files[0].name)
    if checkpoint.native in {file.name for file in checkpoint.files}:
        return f"{name} is of Mistral's own format, which vLLM reads with params.json; what it ties there is not known"
    return (
        f"{name} is there too: vLLM takes the model for one of Mistral's own format and its weights from "
        f"consolidated*.safetensors, older releases from {read}, as all do with --load-format hf --config-format hf"
    )


def _older(kind: str, pair: Pair, tied: bool, dropped: tuple[str, ...]) -> Verdict:
    if not tied:
        return _separate(pair, dropped)
    if not pair.has_embedding:
        fate = "left out" if "skips" in kind else "loaded into both"
        if "skips" not in kind:
            return verdict(Outcome.TIED, f"{shown(pair.head)} is {fate}", (pair.head, pair.embedding), dropped)
        return _uninitialised([pair.embedding], f"; {shown(pair.head)} is {fate}", dropped)
    if not pair.has_head or pair.same:
        return verdict(Outcome.TIED, facts.tied(pair), (pair.head, pair.embedding), dropped)
    if pair.same is None:
        return unknown(f"{shown(pair.head)} was not compared with {shown(pair.embedding)}")
    fate = (
        "left out"
        if "skips" in kind
        else f"loaded into the same tensor as {shown(pair.embedding)}, so that one of them is lost"
    )
    return verdict(Outcome.DISCARDED, f"{shown(pair.head)} is {fate}", (pair.head,), dropped)


def _newer(inspection: Inspection, pair: Pair, tied: bool, dropped: tuple[str, ...]) -> Verdict:
    # Only a head of this name, in safetensors files, is looked for.
    seen = inspection.checkpoint.format == facts.SAFETENSORS and pair.head.endswith("lm_head.weight")
    if not tied or (pair.has_head and seen and not pair.same):
        if tied and pair.has_embedding and pair.same is None:
            return unknown(f"{shown(pair.head)} was not compared with {shown(pair.embedding)}")
        return _separate(pair, dropped)
    if not pair.has_embedding:
        if pair.has_head:
            return error(
                f"{shown(pair.head)} is skipped as tied, and {shown(pair.embedding)} is not stored",
                pair.embedding,
                pair.head,
            )
        return _uninitialised([pair.embedding], "", dropped)
    if pair.has_head and not pair.same:
        return verdict(Outcome.DISCARDED, f"{shown(pair.head)} is left out", (pair.head,), dropped)
    return verdict(Outcome.TIED, facts.tied(pair), (pair.head, pair.embedding), dropped)


def _separate(pair: Pair, dropped: tuple[str, ...]) -> Verdict:
    stored = ((pair.head, pair.has_head), (pair.embedding, pair.has_embedding))
    missing = [name for name, held in stored if not held]
    if missing:
        return _uninitialised(missing, "", dropped)
    return verdict(Outcome.UNTIED, facts.separate(pair), (pair.head, pair.embedding), dropped)


def _uninitialised(names: list[str], more: str, dropped: tuple[str, ...]) -> Verdict:
    verb = "is not stored and keeps" if len(names) == 1 else "are not stored and keep"
    return verdict(Outcome.RANDOM, f"{listed(names)} {verb} whatever the memory held{more}", names, dropped)


CONSUMERS = (
    Consumer(
        "vllm",
        "<0.29",
        since=(0, 6),
        before=(0, 29),
        measured=False,
        cited="vllm 0.28.0, vllm/model_executor/models/ and model_loader/default_loader.py; vllm-project/vllm#6758",
        judge=partial(judge, release="0.28"),
    ),
    Consumer(
        "vllm",
        ">=0.29",
        since=(0, 29),
        before=None,
        measured=False,
        cited="vllm 0.29.0 and 0.33.0, vllm/config/model.py, maybe_untie_word_embeddings; vllm-project/vllm#51665",
        judge=partial(judge, release="0.33"),
    ),
)
