"""Rules about an embedding or a head that is missing, that is another one, or that does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.architectures import effective_flag, lookup, stored_names, unexplained
from tieconv.architectures.lookup import is_headless
from tieconv.checkpoint.family import Knowledge, Role, Tying
from tieconv.checkpoint.finding import Finding, Level, Remedy
from tieconv.checkpoint.inspection import Inspection, State, lists_float_head
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, QuantisedMatrix, parametrised_parts
from tieconv.checkpoint.relation.proved import NO_NUMPY, Unread
from tieconv.checkpoint.weight_file import marked
from tieconv.checks import evidence, quantised, remedies
from tieconv.checks.evidence import rule
from tieconv.loaders.evidence import refuses_padding
from tieconv.loaders.transformers5 import mistakable
from tieconv.text import count, shown


@rule("TIE003", "missing-head", Level.ERROR)
def missing_head(inspection: Inspection) -> Iterator[Finding]:
    """An untied model stores no output head.

    ## What it does
    Reports a missing output head if the config, or the default of the class, says untied. A head that is stored as
    quantised codes counts as stored.

    It also reports a GGUF file without `output.weight` if llama.cpp needs it of the architecture.

    It is a note in a directory of sentence-transformers (`modules.json`), whose programs use no head.

    ## Why it matters
    transformers fills the head with random values and only prints a load report. The model then generates noise. Other
    loaders fail, or tie without a message. The rule also reports T5 and similar classes with the flag false. transformers 5
    ties them anyway, but transformers 4 does not.

    ## Example
    `"tie_word_embeddings": false`, only the embedding stored:

        error TIE003: lm_head.weight is missing, but the config says untied.
        transformers fills it with random values. If the head was trained
        separately, get the file that has it. If the model is tied to
        model.embed_tokens.weight, run retie, or untie to store a copy.

    ## How to fix
    Only you know whether the flag or the file is wrong. Usually a tool lost the flag, and the head is the embedding. Then
    `tieconv retie` sets the flag to true, or `tieconv untie` stores the head as a copy. If the head was trained separately,
    this checkpoint does not contain it. Look in the checkpoint that the training saved.
    """
    # Yield at most one finding. TIE007, TIE008 and TIE013 report heads that only some loaders tie.
    if inspection.checkpoint.format == "gguf":
        yield from _of_gguf(inspection)
        return
    names = unexplained(inspection)
    if names and inspection.family.mlx_names and inspection.family.output_head:
        head_name = inspection.family.output_head
        yield missing_head.finding(
            f"{evidence.clause(names, 'is', 'are')} stored, but {evidence.listed([head_name])} is missing. "
            "mlx-vlm fails to load it: its class has its head under that name.",
            (head_name, *names),
        )
    if names:
        return  # TIE012 says that the head may be stored
    head_tie = evidence.head_tie(inspection)
    if head_tie is None:
        yield from _beside_codes(inspection)
        return
    if not evidence.is_missing(inspection, head_tie[1]) or evidence.unclear_flags(inspection):
        return
    tie, head = head_tie
    outcome = "transformers fills it with random values"
    if evidence.unheeded_false(inspection):
        yield _report(inspection, evidence.reference(tie), head.name, outcome.replace("transformers", "transformers 4"))
    elif tie in evidence.declared_untied(inspection) and not evidence.disputed(inspection):
        yield _report(inspection, evidence.reference(tie), head.name, outcome)


def _of_gguf(inspection: Inspection) -> Iterator[Finding]:
    """Yield the finding for a head that llama.cpp needs of the architecture."""
    from tieconv.loaders.llama_cpp import NEEDS, head_rule  # most models are not GGUF files

    head = inspection.head.output_head
    if head is not None and not head.stored and head_rule(inspection.family.architecture) == NEEDS:
        name = shown(inspection.family.architecture)
        yield missing_head.finding(
            f"{evidence.listed([head.name])} is missing, and llama.cpp needs it of the architecture {name}. It does not "
            "load the file. Convert the model again from the checkpoint that has the head.",
            (head.name,),
        )


def _beside_codes(inspection: Inspection) -> Iterator[Finding]:
    """Yield the finding for a quantised embedding in parts, which no group holds."""
    pair, head = quantised.tables_of(inspection), inspection.head.output_head
    embedding = pair.of(EMBEDDING) if pair else None
    if embedding is None or head is None or head.stored or inspection.config.effective:
        return
    if not evidence.is_quantised(inspection, head.name):
        yield _report(inspection, embedding.name, head.name, "transformers fills it with random values")


_OTHER_HEADS = {"score.weight", "classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight"}
"""Heads of transformers' classes for sequences, tokens and answers."""


def _report(inspection: Inspection, embedding: str, head: str, outcome: str) -> Finding:
    if inspection.checkpoint.is_embedder:
        return missing_head.finding(evidence.without_head(head), (head,), level=Level.NOTE)
    if inspection.family.mlx_names:
        outcome = "mlx-lm and mlx-vlm fail to load the model"
    others = [name for name in inspection.checkpoint.tensors if name in _OTHER_HEADS]
    if others:
        outcome += f". {evidence.clause(others, 'has', 'have')} the name of another class's head: check architectures"
    scaled, retied = remedies.set_scaled(inspection), remedies.retie(inspection, safe=False)
    remedy = retied or scaled or remedies.untie(inspection, safe=False)
    choice = " If the head was trained separately, get the file that has it. "
    commands = "retie, or untie to store a copy" if retied else "set-tie true" if scaled else "untie to store a copy"
    choice += f"If the model is tied to {evidence.listed([embedding])}, run {commands}."
    return missing_head.finding(
        f"{evidence.listed([head])} is missing, but {evidence.says(inspection, False)}. {outcome}.{choice if remedy else ''}",
        (head, embedding),
        level=evidence.certain(inspection, Level.ERROR),
        remedy=remedy,
    )


@rule("TIE006", "missing-pair", Level.ERROR)
def missing_pair(inspection: Inspection) -> Iterator[Finding]:
    """Neither the input embedding nor the output head is stored.

    ## What it does
    Reports a file with neither the token embedding nor the head that the class needs. The message lists tensors that have
    one of the names after another prefix. It also reports a GGUF file without `token_embd.weight`, which llama.cpp needs.

    A class without a head, such as `LlamaModel`, needs the embedding alone. The rule reports it as missing if the layers
    have the names of the class. No tensor may have the name of an embedding.

    ## Why it matters
    transformers prints that the checkpoint seems corrupted and fills both with random values. Usually the names have a
    prefix of a wrapper (`_orig_mod.`, `module.`, `base_model.model.`). Or some files of the weights are missing.

    ## Example
    A checkpoint of a compiled model:

        error TIE006: model.embed_tokens.weight and lm_head.weight are missing.
        transformers fills both with random values. torch.compile left its prefix in
        all 3 tensor names.

    ## How to fix
    Known training wrappers are DistributedDataParallel, FullyShardedDataParallel, torch.compile and PEFT. For their
    prefixes, `tieconv reindex --strip-prefix` removes them from the weights and the index. It changes no tensor's bytes.
    For another prefix, save the unwrapped model again or rename the tensors. If files are missing, fetch them.
    """
    family, head = inspection.family, inspection.head
    names = [name for name in (family.input_embedding, family.output_head) if name]
    if family.tying is Tying.HEADLESS and stored_names.lacks_embedding(inspection):
        yield missing_pair.finding(f"{shown(names[0])} is missing. transformers fills it with random values.", names)
        return
    if family.knowledge is not Knowledge.TABLE or family.tying is Tying.HEADLESS or len(names) < 2:
        return
    if inspection.checkpoint.format == "gguf":
        yield from _without_embedding(inspection)
        return
    supplied = head.input_embedding or (head.output_head and head.output_head.stored) or evidence.head_tie(inspection)
    if supplied or any(evidence.is_quantised(inspection, name) for name in names):
        return
    if any(evidence.is_outside_index(inspection.checkpoint, name) for name in names):
        return
    renamed = mistakable(family, inspection.checkpoint.tensors)
    if renamed is not None:
        message = f"{evidence.listed(names)} are missing. tieconv does not know whether transformers 5 renames"
        yield missing_pair.finding(
            f"{message} {evidence.listed(renamed[1:])}.", (*names, renamed[1]), level=Level.WARNING
        )
        return
    message = f"{evidence.listed(names)} are missing. transformers fills both with random values."
    changed = stored_names.unwrapping(inspection.checkpoint.tensors) if inspection.wrapped_ties else {}
    if not changed:
        yield missing_pair.finding(f"{message}{_elsewhere(inspection, names)}", names)
        return
    total = len(inspection.checkpoint.tensors)
    share = f"all {count(total, 'tensor name')}" if len(changed) == total else f"{len(changed):,} of {total:,} names"
    wrappers = stored_names.wrappers_of(changed)
    left = f"{' and '.join(wrappers)} left {'its prefix' if len(wrappers) == 1 else 'their prefixes'} in {share}"
    yield missing_pair.finding(f"{message} {left}.", names, remedy=remedies.strip_prefix(inspection))


def _without_embedding(inspection: Inspection) -> Iterator[Finding]:
    """Yield the finding for a GGUF file without the embedding that llama.cpp needs of the architecture."""
    from tieconv.loaders.llama_cpp import head_rule  # most models are not GGUF files

    architecture, name = inspection.family.architecture, inspection.family.input_embedding
    if inspection.head.input_embedding is None and name and head_rule(architecture) is not None:
        yield missing_pair.finding(
            f"{shown(name)} is missing, and llama.cpp needs it of the architecture {shown(architecture)}. It does not load "
            "the file. Convert the model again.",
            (name,),
        )


def _elsewhere(inspection: Inspection, names: list[str]) -> str:
    ends = tuple(f".{'.'.join(name.split('.')[-2:])}" for name in names)
    elsewhere = [name for name in inspection.checkpoint.tensors if name.endswith(ends)]
    return f" {evidence.clause(elsewhere, 'has', 'have')} another prefix." if elsewhere else ""


@rule("TIE009", "never-tied", Level.ERROR)
def never_tied(inspection: Inspection) -> Iterator[Finding]:
    """A class that never ties stores no output head.

    ## What it does
    Reports a missing output head in classes that never tie it. Examples are `KimiLinearForCausalLM`,
    `MllamaForConditionalGeneration`, `ReformerModelWithLMHead` and `LukeForMaskedLM`.

    ## Why it matters
    The flag may be true, and for some of these classes it is true by default. But the class does not read it. transformers
    fills the head with random values, whatever the config says. A tool that drops the head of "tied" models damages these.

    ## Example
    `KimiLinearForCausalLM` with `"tie_word_embeddings": true` and only the embedding stored:

        error TIE009: lm_head.weight is missing, but KimiLinearForCausalLM never
        ties it. transformers fills it with random values, whatever the config says.

    ## How to fix
    Get the head from the checkpoint that still has it. tieconv does not write one, because nothing shows that it would
    equal the embedding.
    """
    # Yield at most one finding. TIE006 reports a model that also lacks the embedding.
    head = inspection.head.output_head
    if inspection.family.tying is not Tying.NEVER or head is None or head.stored:
        return
    if inspection.head.input_embedding is None or evidence.is_quantised(inspection, head.name):
        return
    if unexplained(inspection):
        return  # TIE012 says that the head may be stored
    if inspection.checkpoint.is_embedder:
        yield never_tied.finding(evidence.without_head(head.name), (head.name,), level=Level.NOTE)
        return
    yield never_tied.finding(
        f"{evidence.listed([head.name])} is missing, but {evidence.label(inspection)} never ties it. "
        "transformers fills it with random values, whatever the config says.",
        (head.name,),
    )


@rule("TIE011", "missing-copies", Level.ERROR)
def missing_copies(inspection: Inspection) -> Iterator[Finding]:
    """An untied model lacks other tensors than its head.

    ## What it does
    Reports names of an untied group, other than the head, that are not stored. These are the embeddings of the encoder and
    the decoder of BART and similar classes, or the input embedding.

    ## Why it matters
    In a tied sequence-to-sequence model one matrix fills all four names. If the flag is false, each name needs a tensor,
    and transformers fills missing ones with random values. To write only the head is not enough.

    An FSMT that transformers 4 saved lacks the table of the decoder, which was the head there. transformers 5 has two
    tensors, and one of them is random.

    ## Example
    A BART with `"tie_word_embeddings": false` that stores the shared matrix and the head:

        error TIE011: model.encoder.embed_tokens.weight and
        model.decoder.embed_tokens.weight are missing beside model.shared.weight,
        but the config says untied. transformers fills them with random values.

    ## How to fix
    If only the head is stored, the trained embedding is lost: get the file that has it. Else `tieconv untie` writes every
    missing name as a copy of the stored one. If all stored tensors are equal, `tieconv retie` sets the flag to true instead
    (review first: may change the model's outputs).
    """
    # Yield one finding for each untied group with missing names.
    for tie in evidence.declared_untied(inspection) if not unexplained(inspection) else ():
        head = evidence.head_member(inspection, tie)
        absent = [each.name for each in tie.members if evidence.is_missing(inspection, each) and each is not head]
        if absent and tie.role is not Role.OUTPUT_BIAS:
            from tieconv.loaders.load import TRANSFORMERS_4, load  # few models lack such names

            shared = load(inspection, TRANSFORMERS_4).source(absent[0])
            stored, them = shared or evidence.reference(tie), evidence.verb(absent, "it", "them")
            # A copy of a trained head would hide that the embedding is lost. transformers 4 shares FSMT's head.
            is_lost = shared is None and head is not None and stored == head.name
            lost = (
                f" Get the file that has {them}. Only if {them} and {evidence.listed([stored])} were equal, run untie."
            )
            yield missing_copies.finding(
                f"{evidence.clause(absent, 'is', 'are')} missing beside {evidence.listed([stored])}, but "
                f"{evidence.says(inspection, False)}. transformers fills {them} with random values.{lost if is_lost else ''}",
                (*absent, stored),
                level=evidence.certain(inspection, Level.ERROR),
                remedy=None if is_lost else remedies.untie(inspection, safe=False),
            )


_HEADS = {True: "cls.predictions.", False: "lm_predictions.lm_head."}
_TYPES = frozenset({"deberta", "deberta-v2"})


@rule("HED001", "other-head", Level.ERROR)
def other_head(inspection: Inspection) -> Iterator[Finding]:
    """The config of a DeBERTa selects another prediction head than the stored one.

    ## What it does
    Reports a DeBERTa for masked language modelling whose only head is not the selected one. With `legacy` true or absent,
    transformers reads `cls.predictions.*`. With `legacy` false, it reads `lm_predictions.lm_head.*`.

    ## Why it matters
    transformers has two heads for these models and selects one with `legacy`, which is true by default. It reports the
    tensors of the other head as unexpected and fills the head with random values. So the model predicts nonsense. The
    weights that Microsoft published have the newer names.

    ## Example
    A DeBERTa v2 as Microsoft published it:

        error HED001: The prediction head is stored as
        lm_predictions.lm_head.dense.weight, which transformers reads only with
        "legacy": false. Without it, transformers fills the head with random values.

    ## How to fix
    Set `legacy` in config.json to the value in the message. The tensors keep their names.
    """
    config = inspection.checkpoint.config_values
    if str(config.get("model_type")) not in _TYPES or not inspection.family.architecture.endswith("ForMaskedLM"):
        return
    legacy = bool(config.get("legacy", True))
    stored = {
        value: next((name for name in inspection.checkpoint.tensors if name.startswith(start)), None)
        for value, start in _HEADS.items()
    }
    unread_head = stored[not legacy]
    if unread_head and not stored[legacy]:
        value = str(not legacy).lower()
        yield other_head.finding(
            f"The prediction head is stored as {evidence.listed([unread_head])}, which transformers reads only with "
            f'"legacy": {value}. Without it, transformers fills the head with random values.',
            (unread_head,),
        )


@rule("HED002", "parametrised-matrix", Level.ERROR)
def parametrised(inspection: Inspection) -> Iterator[Finding]:
    """The output head or the input embedding is parametrised, so no loader finds its weight.

    ## What it does
    Reports a head or an embedding that `torch.nn.utils` computes from other tensors: `parametrize`, `weight_norm`,
    `spectral_norm` or `prune`. It also reports a model in memory before it is saved.

    ## Why it matters
    A file has only the tensors from which the weight is computed, such as `lm_head.weight_g`. transformers reports them as
    unexpected. It then ties the head, or fills it with random values. `save_pretrained` fails if such a tensor is one
    parameter with the embedding.

    ## Example
    An untied Llama whose head has `torch.nn.utils.weight_norm`:

        error HED002: lm_head.weight is parametrised: the model has lm_head.weight_g
        and lm_head.weight_v instead. transformers ignores them and fills
        lm_head.weight with random values.

    ## How to fix
    Compute the weight in memory, then save the model again. The functions are
    `torch.nn.utils.parametrize.remove_parametrizations(model.lm_head, "weight")`, `torch.nn.utils.remove_weight_norm` and
    `torch.nn.utils.prune.remove`. The head is then a separate matrix, so set `tie_word_embeddings` to false.
    """
    # Yield a finding for the embedding, and one for the head.
    tables, live = inspection.quantised, inspection.live
    for matrix in tables.matrices if tables is not None and (live is None or live.saves) else ():
        parts = parametrised_parts(matrix)
        if parts:
            yield parametrised.finding(
                f"{evidence.listed([matrix.name])} is parametrised: the model has {evidence.listed(parts)} instead. "
                f"{_outcome(inspection, matrix, evidence.verb(parts, 'it', 'them'))}",
                (matrix.name, *parts),
                level=evidence.certain(inspection, Level.ERROR),
            )


def _outcome(inspection: Inspection, matrix: QuantisedMatrix, them: str) -> str:
    """Return what a save or a loader makes of the parts. Measured with torch 2.13 and transformers 5.23."""
    name, head, embedding = evidence.listed([matrix.name]), inspection.head.output_head, inspection.head.input_embedding
    if inspection.live is not None and inspection.live.refusal:
        return f"save_pretrained fails: {inspection.live.refusal}."
    if inspection.family.trusted and matrix.role == HEAD and inspection.config.effective and embedding is not None:
        return f"transformers ignores {them} and ties {name} to {evidence.listed([embedding.name])}."
    lost = inspection.config.effective is False or (matrix.role != HEAD and not (head and head.stored))
    if inspection.family.trusted and lost:
        return f"transformers ignores {them} and fills {name} with random values."
    return f"A loader that expects {name} does not find it."


_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


@rule("MTP001", "missing-layers", Level.NOTE)
def missing_layers(inspection: Inspection) -> Iterator[Finding]:
    """The config counts layers for multi-token prediction that are not stored.

    ## What it does
    Notes a config with `num_nextn_predict_layers` (or `mtp_num_hidden_layers`) above zero but no tensor of such a layer.

    ## Why it matters
    These layers follow the last layer and hold copies of the embedding and the head. transformers drops them when it loads.
    So a model that it saved again has lost them, but the config still counts them. Converters and servers that predict
    several tokens then fail because a tensor is missing.

    ## Example
    A model with three layers, saved again without its fourth:

        note MTP001: The config sets num_nextn_predict_layers to 1, but no such
        layer is stored. Loaders that use these layers fail.

    ## How to fix
    Set the count to 0, or copy the file with the layers from the original release.
    """
    for level in ("", *effective_flag.TEXT_LEVELS):
        config = effective_flag.nested(inspection.checkpoint.config_values, level) or {}
        for key in _COUNTS:
            number, layers = config.get(key), config.get("num_hidden_layers")
            if type(number) is int and number > 0 and type(layers) is int and not _stored(inspection, layers):
                yield missing_layers.finding(
                    f"The config sets {key} to {number}, but no such layer is stored. Loaders that use these "
                    "layers fail."
                )
                return


def _stored(inspection: Inspection, layers: int) -> bool:
    """Return whether a tensor of a layer after the last one, or of an `mtp` or `nextn` module, is stored."""
    named = re.compile(rf"(^|\.)(mtp|nextn)|(^|\.)layers\.{layers}\.")
    return any(named.search(name) for name in inspection.checkpoint.tensors)


_EMBED, _HEAD = "tok_embeddings.weight", "output.weight"
"""The names of the embedding and the head in Mistral's own format. A model that params.json ties stores no head."""


def _uncompared(inspection: Inspection) -> Iterator[tuple[str, str]]:
    """Yield each stored copy of a tied embedding whose values were not read, and why. A wanted copy is none."""
    wanted = {*marked(inspection.checkpoint.files), *inspection.without_numpy}
    for tie in evidence.declared_tied(inspection):
        for member in tie.members if tie.role is Role.WORD_EMBEDDING else ():
            if member.stored and isinstance(member.relation, Unread) and member.name not in wanted:
                yield member.name, member.relation.reason or "depth header reads no values"


@rule("TIE012", "guessed", Level.WARNING)
def guessed(inspection: Inspection) -> Iterator[Finding]:
    """The architecture is unknown, so tieconv guesses the tie.

    ## What it does
    Reports a class in the config that tieconv has no measurement of. It also reports a class with the `model_type` of
    another family. transformers then builds another class or uses other names.

    It is a warning if the answer may be wrong for this file:

    - The config says tied, and tieconv guessed an embedding and a head, or did not compare the two. Depth `header` reads no
      values, a remote file is sampled, and two types or codes need numpy.
    - The config says untied, and no tensor looks like a head.
    - A tokenizer or a generation config is next to the weights, and no config.json.
    - transformers builds another class from the `model_type`, and no tensor has the name of that class's embedding.
    - Tensors may be parts of the head or embedding, in a form that tieconv does not know. The first line of `inspect` calls
      a quantised table unknown, and no rule reports it.

    Otherwise it is a note: each table is stored. Or the class has no head, such as `LlamaModel`, and one is stored. Then the
    rules judge the class of that type with a head, as `AutoModelForCausalLM` builds it.

    ## Why it matters
    Names do not show whether a class can tie, or what a missing flag means. They do not show whether the flag also scales
    the logits (as in T5). The usual cases are models with their own code. Commands that write refuse to use a guess.

    ## Example
    A class that no release of transformers has, with `"tie_word_embeddings": false` and only the embedding stored:

        warning TIE012: tieconv does not know the architecture AcmeForCausalLM.
        model.embed_tokens.weight is a guess from the names. The config says untied,
        and no tensor looks like an output head. A loader may fill it with random
        values.

    ## How to fix
    If the guess is right, confirm it: `tieconv retie --embed NAME --head NAME`, and the same for `untie` and `inspect`. If
    the architecture is unknown, errors of other rules become warnings. If values were not compared, use the default depth
    for local files, and depth `full` for remote ones.
    """
    family, named, parts = inspection.family, inspection.config.architectures, unexplained(inspection)
    if (left := inspection.without_numpy) and inspection.config.effective is not False:
        yield guessed.finding(f"The config says tied, and {evidence.listed(left)} was not compared: {NO_NUMPY}.", left)
    for name, why in () if inspection.quantised or parts else _uncompared(inspection):
        yield guessed.finding(
            f"The model is tied, and {shown(name)} was not compared with the embedding: {why}.", [name]
        )
    coded = inspection.quantised.of(EMBEDDING) if inspection.quantised is not None else None
    if not parts and coded is not None and stored_names.is_unknown(coded) and inspection.config.effective is not False:
        text = f"The config says tied, and {shown(coded.name)} was not compared: {coded.uncomputed}."
        yield guessed.finding(text, [part.name for part in coded.parts])
    if parts and family.mlx_names and family.output_head:
        return  # TIE003 names the head that mlx-vlm wants
    if parts:
        role, usual = "output head", family.output_head
        if (coded is not None and parts == tuple(part.name for part in coded.parts)) or (
            inspection.head.input_embedding is None and inspection.quantised is None
        ):
            role, usual = "input embedding", family.input_embedding
        maybe = f"may be the {role}" if len(parts) == 1 else f"may be parts of the {role}"
        under = f". {shown(named[0])} has it under {shown(usual)}" if usual and family.trusted and named else ""
        yield guessed.finding(
            f"{evidence.listed(parts)} {maybe}{under}. tieconv does not know this name or form, so it cannot predict "
            "how a loader reads this model. Commands that write refuse it.",
            parts,
        )
        return
    if family.body_of and family.output_head:
        yield guessed.finding(
            f"The config says {shown(family.architecture)}, which has no output head, but {shown(family.output_head)} is "
            f"stored. tieconv judges the model as {shown(family.body_of)}.",
            [family.output_head],
            level=Level.NOTE,
        )
    if family.trusted or any(evidence.cautions(inspection, "layout.one-shard")):
        return
    names = [name for name in (family.input_embedding, family.output_head) if name]
    config = inspection.checkpoint.config_values
    known = f"tieconv does not know {lookup.subject(named[0], config)}" if named else "no config sets an architecture"
    subject = evidence.capital(known)
    if not names:
        yield guessed.finding(
            f"{subject}. No tensor looks like an embedding, so there is no tie to look for.", level=Level.NOTE
        )
        return
    names_known = ""
    if not named and inspection.checkpoint.native in inspection.checkpoint.states:
        subject = f"{shown(inspection.checkpoint.native)} is in Mistral's own format. {subject}"
        names_known = f" To confirm them, add --embed {_EMBED} --head {_HEAD}."
    declared = [entry.value for entry in inspection.config.declared]
    untied = bool(declared) and all(value is False for value in declared)
    tied = named and len(names) == 2 and any(declared)
    headless = any(map(is_headless, named)) or inspection.checkpoint.is_embedder
    lost = named and untied and family.output_head is None and not headless
    missing = (
        " The config says untied, and no tensor looks like an output head. A loader may fill it with random values."
    )
    beside = {*inspection.checkpoint.companions}
    released = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} & beside
    if released and not config and not {"config.json", "params.json"} & beside:
        lost, missing = True, " Without a config.json next to the weights, transformers does not load the directory."
    guess = evidence.clause(names, "is a guess", "are guesses")
    tensors = inspection.checkpoint.tensors
    stores = inspection.checkpoint.format in ("safetensors", "torch")
    if built := lookup.built_without_values(config, tensors) if stores else "":
        lost = True
        missing = (
            f" transformers builds {built} from this model_type, and no stored tensor has the name of its embedding."
        )
    ends = [(tensors[name].shape[:1], name.split(".")[-2:]) for name in names if name in tensors]
    alike = [name for name, tensor in tensors.items() if (tensor.shape[:1], name.split(".")[-2:]) in ends]
    rivals = [name for name in alike if name not in names and stored_names.is_outside_layers(name)]
    rival = f" {evidence.clause(rivals, 'has', 'have')} a name of the same kind." if rivals else ""
    yield guessed.finding(
        f"{subject}. {guess} from the names{_shared(inspection)}.{rival}{names_known}{missing * bool(lost)}",
        (*names, *rivals),
        level=Level.WARNING if tied or lost else Level.NOTE,
    )


def unjudged(inspection: Inspection) -> Iterator[Finding]:
    """Yield what the first line of `inspect` calls unknown of quantised tables. It counts if no rule reports them."""
    _, unknown, reason = inspection.config.effect.partition("Unknown: ")
    coded = inspection.quantised is not None or lists_float_head(inspection)
    if unknown and coded and inspection.checkpoint.format in ("safetensors", "torch"):
        tables = inspection.quantised.matrices if inspection.quantised is not None else ()
        yield guessed.finding(evidence.capital(reason), [part.name for table in tables for part in table.parts])


def _shared(inspection: Inspection) -> str:
    tie = inspection.word_tie
    aliased = tie is not None and any(member.state is State.ALIASED for member in tie.members)
    return " and their shared storage" if aliased else ""


MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg"})
"""State that optimizers of torch keep for a parameter once it has a gradient."""


@rule("TRN001", "trained-tensor-not-saved", Level.ERROR)
def not_saved(inspection: Inspection) -> Iterator[Finding]:
    """A training checkpoint holds optimizer state for a parameter that it does not store.

    ## What it does
    Compares the names in the optimizer's state with the stored tensors of a distributed checkpoint. It reports a parameter
    that the optimizer trained and that no tensor stores. A tied head shares the embedding's state, so it is not reported.

    ## Why it matters
    The flag says tied, but training made the head a separate parameter. The save left the head out, because the flag says
    that the embedding restores it. A run that resumes then starts with another head, and its loss jumps.

    ## Example
    `"tie_word_embeddings": true`, state for both names, and only the embedding stored:

        error TRN001: The optimizer trained lm_head.weight, but the checkpoint does
        not store it. A resumed run starts with other values.

    ## How to fix
    This checkpoint does not contain the trained values. Before the next run, call `model.tie_weights()` once the
    model is on its device. Or set the flag to false and save again. An earlier full save may hold the head.
    """
    # Yield at most one finding. Optimizers that number their parameters give no names to compare.
    states = inspection.checkpoint.table.training
    trained = {parameter for name in states if (parameter := _parameter(name))}
    if not trained:
        return
    stored = {_module(name) for name in inspection.checkpoint.tensors}
    lost = [name for name in sorted(trained) if _module(name) not in stored]
    lost = [name for name in lost if not _shares_state(inspection, name, trained)]
    if lost and len(lost) < len(trained):
        modules = tuple(map(_module, lost))
        pronoun = "it" if len(lost) == 1 else "them"
        yield not_saved.finding(
            f"The optimizer trained {evidence.listed(modules)}, but the checkpoint does not store {pronoun}. "
            "A resumed run starts with other values.",
            modules,
        )


def _parameter(name: str) -> str | None:
    """Return the parameter that a moment belongs to, below the keys of the optimizer; ``None`` for other state."""
    steps = stored_names.without_wrappers(name).split(".")
    if MOMENTS.isdisjoint(steps):
        return None
    parameter = [step for step in steps if step not in MOMENTS]
    return ".".join(parameter) if parameter[-1] in {"weight", "bias"} and len(parameter) > 1 else None


def _module(name: str) -> str:
    """Return the last two steps of a name, such as ``lm_head.weight``: prefixes differ between model and optimizer."""
    return ".".join(stored_names.without_wrappers(name).split(".")[-2:])


def _shares_state(inspection: Inspection, lost: str, trained: set[str]) -> bool:
    """Return whether the state under this name is that of a shared parameter, which may be stored under another."""
    modules = {_module(name) for name in trained}
    for tie in inspection.ties:
        members = {_module(member.name) for member in tie.members}
        if _module(lost) in members and len(members & modules) == 1:
            return True
    return False


@rule("VOC001", "rows", Level.ERROR)
def rows(inspection: Inspection) -> Iterator[Finding]:
    """The embedding or another tensor has other sizes than the config says.

    ## What it does
    Compares the rows of the embedding and of an untied head with the config's vocabulary sizes. If none fits, the rule also
    reads the tokenizer and lists all counts. It also compares the columns with the config's hidden size. It reports a size
    in the config that is text, a boolean or a decimal number.

    It compares other matrices, norms and biases with sizes that the config states, such as `intermediate_size` or
    `num_experts`. The finding names one tensor and counts the others. The config may leave out a size or a whole
    part, such as `vision_config`. A file of 1 MiB or more is then compared with the defaults of transformers 5.23.
    The rule passes over quantised and draft models, adapters, pruned heads and remote code (`auto_map`). It also passes
    over a dimension if more than two keys decide it, or if layers differ.

    ## Why it matters
    transformers fails with "size mismatch for model.embed_tokens.weight". With `ignore_mismatched_sizes=True` it fills the
    tensor with random values ("Reinit due to size mismatch"). One cause is that tokens were added but the config was not
    saved. Another is a framework that padded the vocabulary for tensor parallelism. If tensors of
    the layers do not fit, one cause is the config of another model. Another is a tensor that was cut.

    ## Example
    A Llama that got two tokens and kept its config:

        error VOC001: vocab_size is smaller than the tables: vocab_size 8,
        model.embed_tokens.weight 10 rows, lm_head.weight 10 rows, no tokenizer
        read. transformers cannot load the model, or it fills what does not fit
        with random values.

    ## How to fix
    `tieconv resize --to rows` sets `vocab_size` to the number of stored rows. No tensor changes if embedding, head and bias
    have the same number. If the config says more rows and no tokenizer was read, rows may be lost, so review it first.
    If tensors are too short, `tieconv resize --to N --fill mean` adds rows (review first: may change the model's outputs).
    Tensors may be shorter than the tokenizer, or than each other in an untied model. If the config
    and the tokenizer fit the shorter table, the longer one has rows that no token uses.
    `tieconv resize --to config` removes rows that no token uses. No command changes the columns or the layers: restore the
    config that the weights were saved with.
    """
    outcome = "transformers cannot load the model, or it fills what does not fit with random values."
    if problem := effective_flag.odd_size(inspection)[1]:
        yield rows.finding(f"{problem}. transformers 5 refuses to load the config. Correct it in config.json.")
    misfit, unfit = effective_flag.unfit_tensors(inspection)
    tables = effective_flag.vocabulary_rows(inspection)
    columns = {name: inspection.checkpoint.tensors[name].shape[1] for name in tables}
    widths = {name: effective_flag.undeclared_width(inspection, count) for name, count in columns.items()}
    if wide := {name: width for name, width in widths.items() if width is not None}:
        name, (key, size) = next(iter(wide.items()))
        problem = f"{shown(name)} has {columns[name]:,} columns, but {shown(key)} is {size:,}"
        yield rows.finding(f"{problem}. {outcome}", wide)
    elif unfit:
        several = f" {count(len(unfit), 'tensor')} do not fit." if len(unfit) > 1 else ""
        yield rows.finding(f"{misfit}.{several} The config or the weights may be of another model. {outcome}", unfit)
    if not effective_flag.sizes_disagree(inspection):
        return
    sizes = effective_flag.vocabulary_sizes(inspection)
    declared = ", ".join(f"{shown(path)} {size:,}" for path, size in list(sizes.items())[:4])
    stored = ", ".join(f"{shown(name)} {rows:,} rows" for name, rows in tables.items())
    used, unread = inspection.listed_rows, inspection.tokenizer_unread or "no tokenizer read"
    tokenizer = f"tokenizer ids below {used:,}" if used else unread
    problem = f"{_wrong(inspection, sizes, tables)}: {declared}, {stored}, {tokenizer}"
    yield rows.finding(f"{problem}. {outcome}", tables, remedy=_rows_remedy(inspection, tables))


def _wrong(inspection: Inspection, sizes: Mapping[str, int], tables: Mapping[str, int]) -> str:
    """Return which side is too short or too long."""
    rows = set(tables.values())
    if len(rows) > 1:
        return "The embedding and the head have different row counts"
    (stored,) = rows
    if inspection.listed_rows > stored:
        return "The tables are too short"
    return f"vocab_size is {'smaller' if stored > max(sizes.values()) else 'larger'} than the tables"


def _rows_remedy(inspection: Inspection, tables: Mapping[str, int]) -> Remedy | None:
    used, rows, bias = inspection.listed_rows, set(tables.values()), inspection.head.output_bias
    stored = inspection.checkpoint.tensors.get(bias.name) if bias else None
    if stored is not None:
        rows.add(stored.shape[-1])
    longest, possible = max(rows), inspection.tokenizer_rows or 0
    sizes = {*effective_flag.vocabulary_sizes(inspection).values()}
    if len(rows) > 1 and 0 < possible <= min(rows) and sizes == {min(rows)}:
        return remedies.resize(inspection, to="config", safe=False)  # no id has the rows that it removes
    if len(rows) > 1 or used > longest:
        most = max(longest, used)
        return remedies.resize(inspection, to=most, fill="mean", safe=False)
    # Without the tokenizer, shorter tables may have lost the rows of tokens.
    return remedies.resize(inspection, to="rows", safe=used > 0 or longest > max(sizes, default=0))


@rule("VOC002", "unpredicted-tokens", Level.WARNING)
def unpredicted(inspection: Inspection) -> Iterator[Finding]:
    """The config cuts the output head below the last id of the tokenizer.

    ## What it does
    Reads the tokenizer if the config has the key `unpadded_vocab_size`, as those of Inkling have. It reports a tokenizer
    with ids from that number on. It does not report one whose ids the files do not show.

    ## Why it matters
    transformers computes no logits for rows from that number on. Inkling slices them off, Inkling2 loads the head without
    them. `resize_token_embeddings` sets `vocab_size` alone. So new tokens are read and never predicted.

    ## Example
    An Inkling2 that got 2 tokens:

        warning VOC002: transformers predicts 6 tokens (unpadded_vocab_size), but
        the tokenizer has ids below 8. It never predicts the others.

    ## How to fix
    Set `unpadded_vocab_size` to the number of tokens, before the model is loaded and saved again. A save after that load
    writes zeros for the rows.
    """
    limit, used = effective_flag.predicted_tokens(inspection), inspection.listed_rows
    if limit is not None and used > limit[1]:
        yield unpredicted.finding(
            f"transformers predicts {limit[1]:,} tokens ({shown(limit[0])}), but the tokenizer has ids below {used:,}. "
            "It never predicts the others."
        )


_OUTCOMES = {
    "decoder_start_token_id": "generate of transformers ends in an IndexError",
    "forced_bos_token_id": "generate of transformers ends in an IndexError",
    "bos_token_id": "generate of transformers ends in an IndexError without a prompt",
    "pad_token_id": "generate of transformers ends in an IndexError once one of several texts is complete",
    "forced_eos_token_id": "generate of transformers ends in an IndexError at the full length",
    "eos_token_id": "This token never ends a text",
}
"""What transformers 4.57 and 5.24 do with an id that has no row (measured with a Llama and a BART)."""

_GENERATION_LEVELS = {
    **dict.fromkeys(effective_flag.OF_DECODER, Level.ERROR),
    **dict.fromkeys(("bos_token_id", "eos_token_id"), Level.NOTE),
}
"""A model with another vocabulary often keeps the class's defaults for these two."""

_MANY_ROWS = 1000
"""So many rows are hardly added tokens: the tokenizer may be that of another model."""


@rule("VOC003", "token-without-row", Level.ERROR)
def token_without_row(inspection: Inspection) -> Iterator[Finding]:
    """The embedding has no row for a token of the tokenizer, of generation, or for padding.

    ## What it does
    Compares the rows of the embedding with `pad_token_id` in the config. In a local directory it also reads the ids of
    tokens in `tokenizer.json`, `vocab.json`, `vocab.txt`, `added_tokens.json` and `tokenizer_config.json`. It passes over
    tokens of images and sounds, other vocabulary files and remote tokenizers.

    It reads six keys of `generation_config.json` too: the tokens that start, end and pad a text. Without the file, it
    takes them from the config, as transformers does.

    ## Why it matters
    A text with such a token ends in an `IndexError`, or in an assertion on a GPU. With such a `decoder_start_token_id`,
    each call of `generate` does. Such an `eos_token_id` never ends a text. That and a `bos_token_id` are notes, and they
    need 1,000 rows or more.

    transformers 5.23 does not load 210 of 329 classes with such a `pad_token_id`. Its message is "Padding_idx must be
    within num_embeddings". The finding is an error for them. One cause is a token that was added without
    `resize_token_embeddings`.

    ## Example
    A Llama of 8 rows with a padding token that was added:

        error VOC003: pad_token_id is 8, but model.embed_tokens.weight has 8 rows.
        transformers 5 stops with an error when it builds this model.

    ## How to fix
    `tieconv resize --to N --fill mean` adds the rows (review first: may change the model's outputs). Or set `pad_token_id`
    to a token that the model has. If 1,000 rows or more are missing, no command is offered. The id or the tokenizer may be
    of another model then.
    """
    name = embedding.name if (embedding := inspection.head.input_embedding) else ""
    rows = effective_flag.vocabulary_rows(inspection).get(name, 0)
    for path, number in effective_flag.tokens_without_row(inspection):
        refuses = path.endswith("pad_token_id") and refuses_padding(inspection)
        subject = f"{shown(path)} is" if path.endswith("pad_token_id") else "The tokenizer has ids up to"
        stops = "transformers 5 stops with an error when it builds this model"
        end = stops if refuses else "A text with such a token ends in an error"
        many = number - rows >= _MANY_ROWS
        suspect = "that the tokenizer is this model's" if path == "tokenizer" else f"{shown(path)} in the config"
        end += f". Check {suspect}" * many
        yield token_without_row.finding(
            f"{subject} {number:,}, but {shown(name)} has {rows:,} rows. {end}.",
            [name],
            level=Level.ERROR if refuses else Level.WARNING,
            remedy=None if many else remedies.resize(inspection, to=number + 1, fill="mean", safe=False),
        )
    for document, key, number in effective_flag.generation_without_row(inspection):
        sentence = f"{key} in {document} is {number:,}, but {shown(name)} has {rows:,} rows. {_OUTCOMES[key]}."
        level = _GENERATION_LEVELS.get(key, Level.WARNING)
        yield replace(token_without_row.finding(sentence, [name], level=level), file=document)
