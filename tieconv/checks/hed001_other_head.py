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

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import HEAD, QuantisedMatrix, parametrised_parts
from tieconv.checks import evidence
from tieconv.checks.interface import Rule

_HEADS = {True: "cls.predictions.", False: "lm_predictions.lm_head."}
_TYPES = frozenset({"deberta", "deberta-v2"})


def find(inspection: Inspection) -> Iterator[Finding]:
    """Yield at most one finding."""
    config = inspection.checkpoint.config_values
    if str(config.get("model_type")) not in _TYPES or not inspection.family.architecture.endswith("ForMaskedLM"):
        return
    legacy = bool(config.get("legacy", True))
    stored = {value: _first(inspection, start) for value, start in _HEADS.items()}
    unread_head = stored[not legacy]
    if unread_head and not stored[legacy]:
        value = str(not legacy).lower()
        yield RULE.finding(
            f"The prediction head is stored as {evidence.listed([unread_head])}, which transformers reads only with "
            f'"legacy": {value}. Without it, transformers fills the head with random values.',
            (unread_head,),
        )


def _first(inspection: Inspection, start: str) -> str | None:
    return next((name for name in inspection.checkpoint.tensors if name.startswith(start)), None)


RULE = Rule("HED001", "other-head", Level.ERROR, __doc__ or "", find)


def parametrised(inspection: Inspection) -> Iterator[Finding]:
    """Yield a finding for the embedding, and one for the head."""
    tables, live = inspection.quantised, inspection.live
    for matrix in tables.matrices if tables is not None and (live is None or live.saves) else ():
        parts = parametrised_parts(matrix)
        if parts:
            yield PARAMETRISED.finding(
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


PARAMETRISED = Rule(
    "HED002",
    "parametrised-matrix",
    Level.ERROR,
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
""",
    parametrised,
)
