"""Search for an input with which a re-tied model differs from its source by more than its certificate allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from tests.analysis.lm import MASKED, TRANSLATING, VOCABULARY
from tests.lazy import load_file, save_file, torch, transformers
from tieconv.analysis import Findings, find
from tieconv.analysis.subject import KNOWN
from tieconv.checkpoint.inspection import Depth
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.plans.verbs.retie import forecast_retie
from tieconv.sources.local import locate, open_files

STEPS = 12
TOKENS = 10


@dataclass(frozen=True)
class Worst:
    """The largest KL in nats and the largest change of a log-probability that a search came to."""

    kl: float
    log_p: float


def certificates(folder: Path) -> Findings:
    """What `tieconv analyze` says of a model directory."""
    with open_files(folder) as files:
        checkpoint = read_checkpoint(locate(str(folder)), files)
        evidence = inspect_checkpoint(checkpoint, files, Depth.HEADER)
        return find(evidence, files, None, forecast_retie(evidence))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    change(values)
    path.write_text(json.dumps(values))


def loaded(folder: Path, model_type: str) -> Any:
    """The model as transformers loads it, in float64; raises what it raises."""
    auto = transformers.AutoModelForMaskedLM if model_type in MASKED else transformers.AutoModelForCausalLM
    auto = transformers.AutoModelForSeq2SeqLM if model_type in TRANSLATING else auto
    model, said = auto.from_pretrained(folder, output_loading_info=True)
    if said["missing_keys"] or said["mismatched_keys"]:
        raise ValueError("the config is of another model")
    return model.double().eval()


def attack(source: Any, tied: Any, model_type: str, rng: np.random.Generator) -> Worst:
    """The worst of tokens by hill climbing, and of gradient ascent on the embedded input and on the norm's input."""
    searches = (_by_tokens, _by_embeddings, _by_states)
    worst = [one for search in searches for one in search(source, tied, model_type, rng)]
    return Worst(max(one.kl for one in worst), max(one.log_p for one in worst))


def _logits(model: Any, **given: Any) -> torch.Tensor:
    if "use_cache" in signature(model.forward).parameters:
        given["use_cache"] = False
    logits: torch.Tensor = model(**given).logits
    return logits


def _compare(before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, Worst]:
    """KL of each position, and the worst over the positions that are numbers."""
    one, two = torch.log_softmax(before, -1), torch.log_softmax(after, -1)
    kl = (one.exp() * (one - two)).sum(-1)
    return kl, Worst(float(kl.detach().max()), float((one - two).detach().abs().max()))


def _by_tokens(source: Any, tied: Any, model_type: str, rng: np.random.Generator) -> Iterator[Worst]:
    """Tokens are changed one in a row; what makes the largest KL larger is kept."""
    rows = torch.from_numpy(rng.integers(0, VOCABULARY, (4, TOKENS)))
    best = torch.full((4,), -1.0, dtype=torch.float64)
    tried = rows
    with torch.no_grad():
        for _ in range(STEPS):
            kl, worst = _compare(*(_logits(model, **_ids(model, tried)) for model in (source, tied)))
            yield worst
            reached = kl.flatten(1).max(1).values
            rows = torch.where((reached > best)[:, None], tried, rows)
            best = torch.maximum(best, reached)
            tried = rows.clone()
            tried[np.arange(4), rng.integers(0, TOKENS, 4)] = torch.from_numpy(rng.integers(0, VOCABULARY, 4))


def _ids(model: Any, ids: torch.Tensor) -> dict[str, Any]:
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def _ascend(start: torch.Tensor, forward: Callable[[torch.Tensor], tuple[torch.Tensor, Worst]]) -> Iterator[Worst]:
    """Gradient ascent on the sum of the KL, each step a share of the point's own length."""
    point = start.clone().requires_grad_(True)
    for _ in range(STEPS):
        kl, worst = forward(point)
        yield worst
        (slope,) = torch.autograd.grad(kl.sum(), point)
        if not torch.isfinite(slope).all():
            return
        size = point.detach().norm(dim=-1, keepdim=True) / slope.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        point = (point.detach() + 0.5 * size * slope).requires_grad_(True)


def _by_embeddings(source: Any, tied: Any, model_type: str, rng: np.random.Generator) -> Iterator[Worst]:
    if "inputs_embeds" not in signature(source.forward).parameters:
        return
    width = source.get_input_embeddings().weight.shape[1]
    size = float(source.get_input_embeddings().weight.detach().std())
    start = size * torch.from_numpy(rng.standard_normal((2, TOKENS, width)))

    def forward(point: torch.Tensor) -> tuple[torch.Tensor, Worst]:
        given: dict[str, Any] = {"inputs_embeds": point}
        if source.config.is_encoder_decoder:
            given["decoder_inputs_embeds"] = point
        return _compare(_logits(source, **given), _logits(tied, **given))

    yield from _ascend(start, forward)


def _norm(model: Any, model_type: str) -> Any:
    """The module of the last norm; ``None`` where the class has none with a weight."""
    known = KNOWN[model_type]
    name = known.norm.format(last=int(getattr(model.config, known.layers, 0) or 0) - 1)
    modules = dict(model.named_modules())
    return modules.get(name, modules.get(name.partition(".")[2])) if name else None


def _by_states(source: Any, tied: Any, model_type: str, rng: np.random.Generator) -> Iterator[Worst]:
    """The last norm reads a point of its own instead of what the layers made."""
    norms = [_norm(model, model_type) for model in (source, tied)]
    if any(norm is None for norm in norms):
        return
    width = norms[0].weight.shape[0]
    ids = torch.from_numpy(rng.integers(0, VOCABULARY, (2, TOKENS)))
    held: list[torch.Tensor] = []
    hooks = [norm.register_forward_pre_hook(lambda _, given: (held[-1], *given[1:])) for norm in norms]

    def forward(point: torch.Tensor) -> tuple[torch.Tensor, Worst]:
        held.append(point)
        return _compare(*(_logits(model, **_ids(model, ids)) for model in (source, tied)))

    try:
        for factor in (1.0, 100.0):
            yield from _ascend(factor * torch.from_numpy(rng.standard_normal((2, TOKENS, width))), forward)
    finally:
        for hook in hooks:
            hook.remove()
