"""SGLang: what its source gives for each kind of class, and how the source is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tieconv as api
from fixtures.sglang_classes import Source
from tests.checks.fixtures.model import LLAMA, Config, Tensors, flagged, llama, matrix, save, vector, with_row
from tests.lazy import save_file, torch

TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)
ALONE, BOTH, OWN = llama(), llama(head=matrix()), llama(head=with_row(matrix()))
HEAD_ONLY: Tensors = {"lm_head.weight": matrix()}
BIASED = {**llama(), "lm_head.bias": vector()}
UNTIED_BIASED = {**OWN, "lm_head.bias": vector()}
MORE_ROWS = llama(head=matrix(rows=12))


def of(architecture: str, model_type: str, flag: bool | None = True, **more: object) -> Config:
    config = {**LLAMA, "architectures": [architecture], "model_type": model_type, **more}
    return config if flag is None else flagged(config, flag)


CASES: dict[str, tuple[Config, Tensors, str]] = {
    "the flag ties": (TIED, ALONE, "tied"),
    "an equal head is not read": (TIED, BOTH, "tied"),
    "nor a different one": (TIED, OWN, "discarded"),
    "nor one without an embedding": (TIED, HEAD_ONLY, "random"),
    "nor one with more rows": (TIED, MORE_ROWS, "discarded"),
    "an untied head is read": (UNTIED, OWN, "untied"),
    "with the rows of the config": (UNTIED, MORE_ROWS, "error"),
    "and not missed": (UNTIED, ALONE, "random"),
    "a bias is in no logit": (TIED, BIASED, "tied, dropped lm_head.bias"),
    "null is no flag": ({**LLAMA, "tie_word_embeddings": None}, ALONE, "error"),
    "the class has a default": (LLAMA, OWN, "untied"),
    "an own head is read under any flag": (of("MixtralForCausalLM", "mixtral"), OWN, "untied"),
    "and needed": (of("MixtralForCausalLM", "mixtral"), ALONE, "random"),
    "Laguna skips its own head while the flag is true": (of("LagunaForCausalLM", "laguna"), OWN, "random"),
    "Gemma has no head": (of("GemmaForCausalLM", "gemma", False), OWN, "discarded"),
    "Gemma 2 needs a key": (of("Gemma2ForCausalLM", "gemma2"), ALONE, "error"),
    "which old configs have": (of("Gemma2ForCausalLM", "gemma2", hidden_activation="x", hidden_act="x"), ALONE, "tied"),
    "Exaone 4 counts letters": (of("Exaone4ForCausalLM", "exaone4", sliding_window_pattern=4), ALONE, "error"),
    "and has a pattern of letters": (of("Exaone4ForCausalLM", "exaone4", sliding_window_pattern="LLG"), ALONE, "tied"),
    "Falcon-H1 fails at a head": (of("FalconH1ForCausalLM", "falcon_h1"), BOTH, "error"),
    "and ignores a bias": (of("FalconH1ForCausalLM", "falcon_h1"), BIASED, "tied, dropped lm_head.bias"),
    "LFM2 copies": (of("Lfm2ForCausalLM", "lfm2", False), ALONE, "untied"),
    "only an embedding": (of("Lfm2ForCausalLM", "lfm2", False), HEAD_ONLY, "random"),
    "no class": (of("BloomForCausalLM", "bloom"), ALONE, "error"),
    "which code may bring": (of("BloomForCausalLM", "bloom", auto_map={"AutoModel": "code.Model"}), ALONE, "unknown"),
    "the Transformers backend ties": (of("HeliumForCausalLM", "helium"), OWN, "discarded"),
    "and skips a bias": (of("HeliumForCausalLM", "helium"), BIASED, "tied, dropped lm_head.bias"),
    "in a tied model alone": (of("HeliumForCausalLM", "helium", False), UNTIED_BIASED, "error"),
    "a class that did not run": (of("NemotronHForCausalLM", "nemotron_h"), ALONE, "unknown"),
}


@pytest.mark.parametrize("case", CASES)
def test_outcome(case: str, tmp_path: Path) -> None:
    """One outcome, and a sentence without a line break."""
    config, tensors, expected = CASES[case]
    (found,) = api.inspect(save(tmp_path / "model", config, tensors), consumers="sglang").consumers
    dropped = f", dropped {' '.join(found.dropped)}" if found.dropped else ""
    assert f"{found.outcome}{dropped}" == expected
    assert found.basis == "ran 0.5.23"
    assert found.detail and "\n" not in found.detail and not found.detail.endswith(".")


def test_opt_loads_both_names(tmp_path: Path) -> None:
    """OPT's parameters keep both names: either table alone is enough, and two different ones are not."""
    config = of("OPTForCausalLM", "opt")
    table = "model.decoder.embed_tokens.weight"
    for number, (tensors, expected) in enumerate(
        [
            ({table: matrix()}, "tied"),
            ({"lm_head.weight": matrix()}, "tied"),
            ({table: matrix(), "lm_head.weight": with_row(matrix())}, "discarded"),
        ]
    ):
        (found,) = api.inspect(save(tmp_path / str(number), config, tensors), consumers="sglang").consumers
        assert str(found.outcome) == expected


def test_a_file_that_the_index_does_not_name(tmp_path: Path) -> None:
    """SGLang skips it, so the model stays tied."""
    folder = save(tmp_path / "model", TIED, ALONE)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = dict.fromkeys(ALONE, "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"lm_head.weight": torch.ones(8, 4)}, folder / "extra.safetensors", metadata={"format": "pt"})
    (found,) = api.inspect(folder, consumers="sglang").consumers
    assert str(found.outcome) == "tied"


def test_mistrals_own_format(tmp_path: Path) -> None:
    """What its names tie was not measured."""
    folder = save(tmp_path / "model", TIED, ALONE)
    save_file({"tok_embeddings.weight": torch.ones(8, 4)}, folder / "consolidated.safetensors")
    (found,) = api.inspect(folder, consumers="sglang").consumers
    assert str(found.outcome) == "unknown" and "consolidated.safetensors" in found.detail


def test_other_names_are_not_claimed(tmp_path: Path) -> None:
    """Most classes ignore names that they lack, without a message."""
    (found,) = api.inspect(
        save(tmp_path / "model", of("Qwen2ForCausalLM", "qwen2"), {"embed_tokens.weight": matrix()}), consumers="sglang"
    ).consumers
    assert str(found.outcome) == "unknown"


NAMES = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")


@pytest.mark.parametrize(
    ("text", "flag", "expected"),
    [
        ("mistral", True, "discarded"),
        ("mistral", False, "untied"),
        ("mistral", None, "untied"),
        ("qwen2", True, "unknown"),
    ],
)
def test_the_text_model_of_mistral3_reads_the_flag(text: str, flag: bool | None, expected: str, tmp_path: Path) -> None:
    """The flag of the whole config does not count."""
    inner = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": text}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": inner if flag is None else flagged(inner, flag),
        "tie_word_embeddings": not flag,
    }
    stored = dict(zip(NAMES, (matrix(), with_row(matrix())), strict=True))
    (found,) = api.inspect(save(tmp_path / "model", config, stored), consumers="sglang").consumers
    assert str(found.outcome) == expected


SOURCE = """
class Tied:
    def __init__(self, config):
        if config.tie_word_embeddings:
            self.lm_head = self.model.embed_tokens
        else:
            self.lm_head = ParallelLMHead(config.vocab_size)
    def load_weights(self, weights):
        for name, loaded in weights:
            if self.config.tie_word_embeddings and "lm_head.weight" in name:
                continue
            if name in params_dict:
                param = params_dict[name]
class Derived(Tied):
    pass
class Strict(Tied):
    def load_weights(self, weights):
        for name, loaded in weights:
            # Skip loading extra bias for GPTQ models.
            if name.endswith(".bias") and name not in params_dict:
                continue
            param = params_dict[name]
class Own:
    def __init__(self, config):
        # the flag tie_word_embeddings is not read
        self.lm_head = ParallelLMHead(config.vocab_size)
    def load_weights(self, weights):
        for name, loaded in weights:
            param = params_dict[name]
class Embedding:
    def __init__(self, config):
        self.model = Model(config)
    def forward(self, input_ids):
        return self.logits_processor(input_ids, hidden_states, self.model.embed_tokens, forward_batch)
    def load_weights(self, weights):
        for name, loaded in weights:
            if "lm_head.weight" in name:
                continue
            if name not in params_dict:
                continue
            param = params_dict[name]
class Both(Tied):
    def load_weights(self, weights):
        params_dict = dict(self.named_parameters(remove_duplicate=False))
        for name, loaded in weights:
            if name in params_dict:
                param = params_dict[name]
class Odd:
    def load_weights(self, weights):
        pass
EntryClass = [Tied, Derived, Strict, Own, Embedding, Both, Odd]
"""


def test_how_the_source_is_read(tmp_path: Path) -> None:
    """The head from the constructor or the forward pass, the names from the loop; comments do not count."""
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    source = Source([path])
    assert {name: source.kind(name) for name in source.registered} == {
        "Tied": "ties, skips",
        "Derived": "ties, skips",
        "Strict": "ties, strict, any bias",
        "Own": "own, strict",
        "Embedding": "embedding, skips always",
        "Both": "ties, loads both",
        "Odd": "",
    }
