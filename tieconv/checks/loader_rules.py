"""Rules about what loaders do with the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.finding import Finding, Level, Outcome, Prediction
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checks import evidence
from tieconv.checks.evidence import listed, rule
from tieconv.text import in_words, shown


def grouped(inspection: Inspection, outcome: Outcome) -> Iterator[list[Prediction]]:
    """Yield the predictions of an outcome, grouped by their tensors; without a head, only refusals of the model."""
    if inspection.family.output_head is None and outcome is not Outcome.ERROR:
        return
    by_tensors: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in inspection.consumers:
        if prediction.outcome is outcome:
            by_tensors.setdefault(prediction.tensors, []).append(prediction)
    yield from by_tensors.values()


def loaders(predictions: Iterable[Prediction]) -> str:
    """Return names and versions, such as ``transformers 4.57/5.x and vllm <0.29``, and what no test runs."""
    releases: dict[str, list[str]] = {}
    for prediction in predictions:
        read_only = not prediction.measured and prediction.outcome is not Outcome.UNKNOWN
        release = prediction.version + (" (unverified)" if read_only else "")
        releases.setdefault(prediction.name, []).append(release)
    return in_words(f"{name} {'/'.join(every)}" for name, every in releases.items())


def message(predictions: list[Prediction]) -> str:
    """Return each detail with its loaders."""
    by_detail: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_detail.setdefault(prediction.detail, []).append(prediction)
    return "; ".join(_after_loaders(detail, alike) for detail, alike in by_detail.items())


def _after_loaders(detail: str, alike: Sequence[Prediction]) -> str:
    """Return the detail after its loaders, or alone if it starts with the only one. llama.cpp has a year as version."""
    first, named = alike[0], loaders(alike)
    starts = (f"{named} ", f"{first.name} ") if first.version.isdigit() else (f"{named} ",)
    single = len(alike) == 1 and "(unverified)" not in named
    return detail if single and detail.lower().startswith(starts) else f"{named}: {detail}"


@rule("CON001", "loader-random-head", Level.ERROR)
def random_head(inspection: Inspection) -> Iterator[Finding]:
    """A loader fills the head or the embedding with random values.

    ## What it does
    Reports loaders that will find no stored values for the output head or the input embedding. They fill the parameter with
    random values or do not initialize its memory. tieconv predicts only the loaders that you ask for (`--consumers`,
    `--for`). Without that it reports a stored name that transformers 5 does not know.

    ## Why it matters
    The model loads and generates noise. Most loaders print one line about it at most.

    ## Example
    `tie_word_embeddings` absent, only the embedding stored, asked for transformers 5.x:

        error CON001: transformers 5.x: lm_head.weight is not stored and starts with
        random numbers

    ## How to fix
    tieconv plans its commands and predicts the loaders of each result. The finding names the command that helps: `tieconv
    retie` sets the flag at every level, and `tieconv untie --keep-flag` stores the head. If the head was trained
    separately, this checkpoint does not contain it.
    """
    # Yield one finding for each set of tensors.
    for group in grouped(inspection, Outcome.RANDOM):
        head = inspection.head.output_head
        if inspection.checkpoint.is_embedder and head is not None and group[0].tensors == (head.name,):
            yield random_head.finding(evidence.without_head(head.name), (head.name,), level=Level.NOTE)
            continue
        yield random_head.finding(message(group), group[0].tensors)


@rule("CON002", "loader-discards-head", Level.ERROR)
def discarded_head(inspection: Inspection) -> Iterator[Finding]:
    """A loader discards a stored head, or a stored embedding, that holds different values.

    ## What it does
    Reports loaders that will replace a stored tensor with another tensor that differs from it. tieconv predicts only the
    loaders that you ask for (`--consumers`, `--for`).

    ## Why it matters
    The loader prints nothing, the text stays fluent, and the trained values are lost.

    ## Example
    `"tie_word_embeddings": true`, a head that differs in one row, asked for mlx-lm:

        error CON002: mlx-lm 0.32: the loader replaces lm_head.weight by
        model.embed_tokens.weight without an error

    ## How to fix
    `tieconv set-tie false` declares the model untied at every level, so loaders use the stored head. For an FSMT whose
    config already says untied, transformers 4 replaces the decoder's table with the head. No file can prevent that: load
    such a model with transformers 5.
    """
    # Yield one finding for each set of tensors.
    for group in grouped(inspection, Outcome.DISCARDED):
        yield discarded_head.finding(message(group), group[0].tensors)


@rule("CON003", "loader-refuses", Level.ERROR)
def loader_refuses(inspection: Inspection) -> Iterator[Finding]:
    """A loader refuses the model.

    ## What it does
    Reports loaders that will end with an error. They need a name that is not stored, do not know a stored name, or do not
    read the format. tieconv predicts only the loaders that you ask for (`--consumers`, `--for`). Without that it reports a
    class that transformers 5 cannot build, and a config that it refuses. Its `layer_types` does not list each layer, or
    torch does not have its dtype (`fp16`). The dtype is an integer or of 8 bits, in a model that is not quantised. Or the
    `model_type` of a known class is missing or unknown. Or transformers has no such activation, type of RoPE or type of
    layer. For 415 classes it was measured which keys name one. Or a value has another type than its key accepts, such as
    `"rms_norm_eps": "1e-6"`. That was measured for 804 model types. Or a type of RoPE lacks a number such as its `factor`.

    For a GGUF file it always predicts llama.cpp. It reports missing keys, tensors that libllama does not use, and shapes
    that contradict the metadata. It does that for 56 architectures, whose faulty files libllama refused.

    ## Why it matters
    A release that works in transformers may still fail in your server.

    ## Example
    A tied StableLM, which stores only the embedding, asked for llama.cpp:

        error CON003: llama.cpp 2026: lm_head.weight is not stored, and the
        architecture needs an output.weight

    ## How to fix
    The finding names the command that helps, or says that no command does. `tieconv untie --keep-flag` stores the head for
    a loader that needs it, and the config stays tied. `tieconv retie` drops a copy that a loader does not expect.
    `tieconv convert --to safetensors` writes the format that most loaders read. `tieconv reindex --add-format` adds the
    metadata entry that transformers 4 needs.
    """
    # Yield one finding for each set of tensors.
    for group in grouped(inspection, Outcome.ERROR):
        yield loader_refuses.finding(message(group), group[0].tensors)


@rule("CON004", "loader-drops-bias", Level.ERROR)
def dropped_bias(inspection: Inspection) -> Iterator[Finding]:
    """A loader does not use a stored head bias.

    ## What it does
    Reports loaders that will not use a stored head bias. It is an error if the bias is not zero. It is a warning if tieconv
    did not read the bias, or if the loader uses its other name. tieconv predicts only the loaders that you ask for
    (`--consumers`, `--for`).

    ## Why it matters
    A trained bias changes each logit. Without it the most likely token changes.

    ## Example
    An untied BERT that stores only the outer name of its bias, asked for transformers 5.x:

        error CON004: transformers 5.x does not use cls.predictions.bias

    ## How to fix
    `tieconv bias unify` writes both names of a pair. If the class has no bias, the model needs another class or another
    loader.
    """
    # Yield one finding for each set of biases.
    by_biases: dict[tuple[str, ...], list[Prediction]] = {}
    for prediction in inspection.consumers:
        if prediction.dropped:
            by_biases.setdefault(prediction.dropped, []).append(prediction)
    for dropped, alike in by_biases.items():
        verb = "does" if len(alike) == 1 else "do"
        message = f"{loaders(alike)} {verb} not use {listed(dropped)}"
        bias = inspection.head.output_bias
        known = bias is not None and bias.name in dropped and bias.state is BiasState.NONZERO
        yield dropped_bias.finding(
            message, dropped, level=Level.ERROR if known and not _others(inspection, dropped) else Level.WARNING
        )


def _others(inspection: Inspection, dropped: tuple[str, ...]) -> bool:
    """Return whether another name of the same bias is stored."""
    pairs = [{member.name for member in tie.stored_members} for tie in inspection.ties]
    return any(names & set(dropped) and names - set(dropped) for names in pairs)


@rule("CON005", "loader-unknown", Level.NOTE)
def unknown_loader(inspection: Inspection) -> Iterator[Finding]:
    """Nothing predicts what a loader does with the model.

    ## What it does
    Lists the loaders that you asked for (`--consumers`, `--for`) and that tieconv cannot predict. Either tieconv has no
    measurement of the class in that loader, or only the model's own code defines the class.

    ## Why it matters
    No finding for a loader does not mean that the loader works.

    ## Example
    A tied BERT, asked for text-generation-inference:

        note CON005: text-generation-inference 3.x: tieconv has no measurement of
        text-generation-inference for BertForMaskedLM

    ## How to fix
    Load the model with that loader and compare its outputs.
    """
    for group in grouped(inspection, Outcome.UNKNOWN):
        if len(group) == 1:
            yield unknown_loader.finding(message(group))
        else:
            yield unknown_loader.finding(f"tieconv cannot predict what {loaders(group)} do with this model")


@rule("COD001", "tied-keys", Level.ERROR)
def tied_keys(inspection: Inspection) -> Iterator[Finding]:
    """The model's own code declares its tied names in a form that transformers 5 cannot use.

    ## What it does
    Reads the `modeling_*.py` beside the weights as text; tieconv does not import or run it. The rule reports a
    `_tied_weights_keys` that is a list, or a dict that ties a name to itself.

    The level is note if the config has no `auto_map`, because the code is not used. It is also note if transformers has the
    class, because it runs the code only with `trust_remote_code=True`. In an untied model the list breaks only
    `save_pretrained`, so the level is warning.

    ## Why it matters
    transformers 5 needs a dict from each tied name to the name that it is tied to. With the list of transformers 4 it fails
    with `AttributeError: 'list' object has no attribute 'keys'`. If a dict maps a name to itself, the class loads but ties
    nothing.

    ## Example
    A model with its own code, written for transformers 4:

        error COD001: modeling_acme.py declares _tied_weights_keys as a list.
        transformers 5 fails when it loads the model ('list' object has no attribute
        'keys'). Write {"lm_head.weight": "model.embed_tokens.weight"}.

    ## How to fix
    Edit the file. The message has the dict.
    """
    # Yield one finding for each declaration.
    used = "auto_map" in inspection.checkpoint.config_values
    native = inspection.family.knowledge is Knowledge.TABLE
    subject = "With trust_remote_code=True, transformers 5" if used and native else "transformers 5"
    loads = inspection.config.effective
    for caution in evidence.cautions(inspection, "code.tied-keys-list"):
        yield tied_keys.finding(
            f"{caution.message}. {subject} fails when it {'loads' if loads else 'saves'} the model "
            f"('list' object has no attribute 'keys').{_patch(inspection, caution.tensors)}",
            level=Level.NOTE if native or not used else Level.ERROR if loads else Level.WARNING,
        )
    for caution in evidence.cautions(inspection, "code.tied-to-itself"):
        yield tied_keys.finding(
            f"{caution.message} ({evidence.listed(caution.tensors)}). So the class ties nothing."
            f"{_patch(inspection, caution.tensors)}",
            level=Level.WARNING if used and not native else Level.NOTE,
        )


def _patch(inspection: Inspection, names: Sequence[str]) -> str:
    embedding = inspection.family.input_embedding
    if not names or embedding is None or len(names) > 4:
        return ""
    return f" Write {shown(json.dumps({name: embedding for name in names if name != embedding}), 400)}."
