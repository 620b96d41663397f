"""The lookup: config in, family out, also of draft models and of each level that a version reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tests.checks.fixtures.model import (
    EMBED,
    GEMMA3,
    INTERNVL,
    LLAMA,
    NESTED_EMBED,
    Array,
    Config,
    llama,
    matrix,
    save,
    vector,
)
from tests.patience import patient
from tieconv.architectures import class_table as table, effective, find, guess as pattern, locate
from tieconv.architectures.effective_flag import levels, levels_read, reading_v4
from tieconv.checkpoint.family import FlagMeaning, Knowledge, Role, Tying


def test_llama_is_measured() -> None:
    """A class of the table comes with its names, its tie and its default."""
    family = find({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    assert family.knowledge is Knowledge.TABLE
    assert family.tying is Tying.CAN
    assert (family.input_embedding, family.output_head) == ("model.embed_tokens.weight", "lm_head.weight")
    (group,) = family.groups
    assert group.role is Role.WORD_EMBEDDING
    assert group.gated
    assert (group.canonical, group.members) == ("model.embed_tokens.weight", ("lm_head.weight",))
    assert not family.default_v5


def test_second_architecture_is_used_when_the_first_is_unknown() -> None:
    """The first listed class that the table knows decides."""
    family = find({"architectures": ["MyOwnThing", "GPT2LMHeadModel"], "model_type": "gpt2"})
    assert family.architecture == "GPT2LMHeadModel"


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("bert", "BertForMaskedLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("gpt2", "GPT2LMHeadModel"),
        ("bart", "BartForConditionalGeneration"),
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("whisper", "WhisperForConditionalGeneration"),
    ],
)
def test_without_architectures_the_model_type_decides(model_type: str, architecture: str) -> None:
    """A config without architectures means the type's most usual language-model class."""
    assert find({"model_type": model_type}).architecture == architecture


def test_the_first_64_architectures_are_looked_up() -> None:
    """transformers writes one. The first that tieconv knows counts."""
    for number, known in ((63, True), (64, False)):
        family = find({"architectures": [*["Acme"] * number, "LlamaForCausalLM"]})
        assert (family.architecture == "LlamaForCausalLM") is known


def test_gpt2_of_the_hub_has_no_prefix() -> None:
    """Names resolve with the base model's prefix, without it, and under the name in memory."""
    family = find({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})
    name = family.input_embedding
    assert name == "transformer.wte.weight"
    assert locate(family, name, {"wte.weight", "wpe.weight"}) == "wte.weight"
    assert locate(family, name, {"transformer.wte.weight", "wte.weight"}) == "transformer.wte.weight"
    assert locate(family, name, {"wpe.weight"}) is None


def test_locate_takes_names_in_memory() -> None:
    """Llava's embedding has one name in files of 5.x and another in memory; both resolve."""
    family = find({"architectures": ["LlavaForConditionalGeneration"]})
    assert family.input_embedding == "language_model.model.embed_tokens.weight"
    memory = "model.language_model.embed_tokens.weight"
    assert locate(family, family.input_embedding, {memory}) == memory
    assert locate(family, memory, {family.input_embedding}) == family.input_embedding


@pytest.mark.parametrize(
    ("architecture", "model_type", "embedding"),
    [
        ("LlamaModel", "llama", "embed_tokens.weight"),
        ("LlamaForSequenceClassification", "llama", "model.embed_tokens.weight"),
        ("Qwen3ForTokenClassification", "qwen3", "model.embed_tokens.weight"),
        ("BertModel", "bert", "embeddings.word_embeddings.weight"),
        ("BertForSequenceClassification", "bert", "bert.embeddings.word_embeddings.weight"),
        ("T5EncoderModel", "t5", "shared.weight"),
        ("Qwen2ForRewardModel", "qwen2", "model.embed_tokens.weight"),
    ],
)
def test_headless_classes(architecture: str, model_type: str, embedding: str) -> None:
    """A base model or classifier has no output embedding, and so nothing to tie with."""
    family = find({"architectures": [architecture], "model_type": model_type})
    assert family.tying is Tying.HEADLESS
    assert family.knowledge is Knowledge.TABLE
    assert family.input_embedding == embedding
    assert family.output_head is None
    assert family.output_biases == ()
    assert effective(family, {"": True})[0] is False


def test_an_encoder_alone_has_no_decoder_member() -> None:
    """T5's encoder keeps its own alias and loses the decoder's."""
    (group,) = find({"architectures": ["T5EncoderModel"], "model_type": "t5"}).groups
    assert (group.canonical, group.members) == ("shared.weight", ("encoder.embed_tokens.weight",))


def test_unknown_architecture_is_guessed_from_names() -> None:
    """Names and shapes give both tables of a class that nobody measured."""
    names = {
        "model.embed_tokens.weight": (1000, 64),
        "model.vision_tower.embed_tokens.weight": (1000, 64),
        "model.layers.0.mlp.up_proj.weight": (256, 64),
        "lm_head.weight": (1000, 64),
        "lm_head.bias": (1000,),
    }
    family = find({"architectures": ["NewForCausalLM"], "model_type": "new", "vocab_size": 1000}, names)
    assert family.knowledge is Knowledge.PATTERN
    assert (family.input_embedding, family.output_head) == ("model.embed_tokens.weight", "lm_head.weight")
    assert family.output_biases == ("lm_head.bias",)


def test_unknown_architecture_without_names_is_unknown() -> None:
    """Nothing found is said to be nothing."""
    family = find({"architectures": ["NewForCausalLM"], "model_type": "new"})
    assert family.knowledge is Knowledge.NONE
    assert family.input_embedding is None
    assert find({}).knowledge is Knowledge.NONE


def test_pattern_finds_the_names_of_the_table() -> None:
    """On each class's own pair of names the guess finds 98% of both, and never swaps them."""
    embeddings = heads = total = 0
    for name in table.names():
        family = table.load(name)
        assert family is not None
        if not family.input_embedding or not family.output_head or family.input_embedding == family.output_head:
            continue
        total += 1
        names = {family.input_embedding: (99, 64), family.output_head: (99, 64), "model.norm.weight": (64,)}
        embedding, head = pattern.guess(names, 99)
        embeddings += embedding == family.input_embedding
        heads += head == family.output_head
        assert embedding != family.output_head
        assert head != family.input_embedding
    assert total > 350
    assert embeddings / total > 0.98
    assert heads / total > 0.98


def test_exclusion_words_are_whole_segments() -> None:
    """``language_model`` and ``audio_language`` contain words of other towers and are not hidden by them."""
    for prefix in ("language_model.", "model.language_model.", "visionary.", "audiobook."):
        name = f"{prefix}embed_tokens.weight"
        assert pattern.guess({name: (99, 64)})[0] == name


def test_the_guess_prefers_what_fits() -> None:
    """Rows as many as the vocabulary has, then the shortest path; an encoder's table comes last."""
    tables = {"model.part.embed_tokens.weight": (99, 64), "model.embed_tokens.weight": (50, 64)}
    assert pattern.guess(tables, 99)[0] == "model.part.embed_tokens.weight"
    assert pattern.guess(tables, 50)[0] == pattern.guess(tables)[0] == "model.embed_tokens.weight"
    towers = {"encoder.embed_tokens.weight": (99, 64), "model.decoder.embed_tokens.weight": (99, 64)}
    assert pattern.guess(towers, 99)[0] == "model.decoder.embed_tokens.weight"


def test_names_of_a_project() -> None:
    """Both names together."""
    assert pattern.convention("emb.weight", "head.weight") == "RWKV-LM"
    for pair in (("emb.weight", "output_layer.weight"), (None, "head.weight"), ("emb.weight", None)):
        assert pattern.convention(*pair) == ""


def test_shared_storage_names_a_pair() -> None:
    """Two names that nothing recognises, if they share a storage of more rows than columns."""
    for shape, pair in (((99, 64), ("a.weight", "b.weight")), ((64, 99), (None, None)), ((64, 64), (None, None))):
        tables = {"a.weight": shape, "b.weight": shape, "c.weight": (99, 64)}
        assert pattern.guess(tables, shared=[frozenset({"a.weight", "b.weight"})]) == pair
    for name, pair in (("lm_head.weight", ("a.weight", "lm_head.weight")), (EMBED_TOKENS, (EMBED_TOKENS, "a.weight"))):
        tables = dict.fromkeys((name, "a.weight", "c.weight"), (99, 64))
        assert pattern.guess(tables, shared=[frozenset({name, "a.weight"})]) == pair


EMBED_TOKENS = "model.embed_tokens.weight"
PLAIN_DEFAULT_FALSE = "LlamaForCausalLM"
PLAIN_DEFAULT_TRUE = "GPT2LMHeadModel"
TOP_ONLY = "Gemma3ForConditionalGeneration"
OR_RULE = "LlavaForConditionalGeneration"
TEXT_GOVERNED = "Blip2ForConditionalGeneration"


@pytest.mark.parametrize(
    ("architecture", "levels", "tied"),
    [
        (PLAIN_DEFAULT_FALSE, {}, False),
        (PLAIN_DEFAULT_FALSE, {"": True}, True),
        (PLAIN_DEFAULT_FALSE, {"": False}, False),
        (PLAIN_DEFAULT_TRUE, {}, True),
        (PLAIN_DEFAULT_TRUE, {"": False}, False),
        (TOP_ONLY, {"": False, "text_config": True}, False),
        (TOP_ONLY, {"": True, "text_config": False}, True),
        (TOP_ONLY, {"text_config": False}, True),
        (OR_RULE, {"": False, "text_config": True}, True),
        (OR_RULE, {"": True, "text_config": False}, True),
        (OR_RULE, {"": False, "text_config": False}, False),
        (OR_RULE, {}, False),
        (TEXT_GOVERNED, {"": True, "text_config": False}, False),
        (TEXT_GOVERNED, {"": False, "text_config": True}, True),
        ("T5ForConditionalGeneration", {"": False}, True),
        ("BigBirdPegasusForCausalLM", {"": True}, False),
        ("Llama4ForConditionalGeneration", {"": True}, False),
        ("Llama4ForConditionalGeneration", {"text_config": True}, True),
    ],
)
def test_effective(architecture: str, levels: dict[str, bool | None], tied: bool) -> None:
    """The truth string is read as (top, governing nested level), each absent, true or false."""
    verdict, why = effective(find({"architectures": [architecture]}), levels)
    assert verdict is tied, why
    assert why.endswith(".")


def test_effective_names_what_is_not_read() -> None:
    """A declared level that nothing reads is named in the sentence."""
    family = find({"architectures": [TOP_ONLY]})
    assert "transformers 5 ignores the flag in text_config." in effective(family, {"": False, "text_config": True})[1]
    plain = find({"architectures": [PLAIN_DEFAULT_FALSE]})
    assert "transformers 5 ignores the flag in text_config." in effective(plain, {"text_config": True})[1]


def test_both_levels_alike_decide_for_every_class_that_can() -> None:
    """True on every level ties and false on every level unties each class whose flag decides."""
    for name in table.names():
        family = table.load(name)
        assert family is not None
        if family.tying is Tying.CAN:
            for value in (True, False):
                assert effective(family, {"": value, **dict.fromkeys(family.levels, value)})[0] is value, name


@pytest.mark.parametrize(
    ("architecture", "v4", "v5"),
    [
        ("MT5ForConditionalGeneration", False, True),
        ("AriaForConditionalGeneration", False, False),
        ("LlamaForCausalLM", False, False),
        ("BertForMaskedLM", True, True),
        ("InternVLForConditionalGeneration", False, True),
    ],
)
def test_defaults_of_both_versions(architecture: str, v4: bool, v5: bool) -> None:
    """An absent flag means different things to transformers 4 and 5 for some types."""
    family = find({"architectures": [architecture]})
    assert family.default_v4 is v4
    assert family.default_v5 is v5


def test_version_4_reads_the_text_config() -> None:
    """Transformers 4 asks the nested text config where one exists, whatever the top level says."""
    assert find({"architectures": ["LlavaForConditionalGeneration"]}).level_v4 == "text_config"
    assert find({"architectures": ["LlamaForCausalLM"]}).level_v4 == ""


@pytest.mark.parametrize(
    ("architecture", "levels"),
    [
        ("LlamaForCausalLM", {""}),
        ("Qwen2ForCausalLM", {""}),
        ("AriaForConditionalGeneration", {"", "text_config"}),
        ("FastVlmForConditionalGeneration", {"", "text_config"}),
        ("Blip2ForConditionalGeneration", {"text_config"}),
        ("VibeVoiceForConditionalGeneration", {"text_config"}),
        ("CohereCompassForConditionalGeneration", {""}),
        ("ColQwen2ForRetrieval", {""}),
        ("MusicgenForConditionalGeneration", set()),
    ],
)
def test_levels_that_a_version_reads(architecture: str, levels: set[str]) -> None:
    """Transformers 4 reads one level; version 5 reads those whose flag changes its answer."""
    assert set(levels_read(find({"architectures": [architecture]}))) == levels


@pytest.mark.parametrize(
    ("architecture", "v4", "v5"),
    [
        ("T5ForConditionalGeneration", FlagMeaning.SCALES, FlagMeaning.DERIVES),
        ("LongT5ForConditionalGeneration", FlagMeaning.SCALES, FlagMeaning.DERIVES),
        ("SwitchTransformersForConditionalGeneration", FlagMeaning.SCALES, FlagMeaning.SCALES),
        ("MT5ForConditionalGeneration", FlagMeaning.SCALES, FlagMeaning.STORAGE),
        ("LlamaForCausalLM", FlagMeaning.STORAGE, FlagMeaning.STORAGE),
    ],
)
def test_meaning_of_the_flag(architecture: str, v4: FlagMeaning, v5: FlagMeaning) -> None:
    """For T5 and its relatives the flag also scales the logits."""
    family = find({"architectures": [architecture]})
    assert (family.meaning_v4, family.meaning_v5) == (v4, v5)


@pytest.mark.parametrize("architecture", ["DiffusionGemmaForBlockDiffusion", "ZambaForCausalLM", "Zamba2ForCausalLM"])
def test_unflippable_classes_say_so(architecture: str) -> None:
    """Where tied names repeat per layer the family carries the reason to refuse."""
    assert find({"architectures": [architecture]}).unflippable


def test_bias_pairs_and_rows() -> None:
    """The first bias is the one that save_pretrained keeps; BART's is a row."""
    bert = find({"architectures": ["BertForMaskedLM"]})
    assert bert.output_biases == ("cls.predictions.bias", "cls.predictions.decoder.bias")
    assert not bert.bias_is_row
    bart = find({"architectures": ["BartForConditionalGeneration"]})
    assert bart.output_biases == ("final_logits_bias",)
    assert bart.bias_is_row


def test_find_is_fast_and_imports_no_model_library() -> None:
    """A cold lookup, the data included, takes less than 10 ms of CPU time."""
    code = (
        "import sys, time\nfrom tieconv.architectures import find\nstart = time.process_time()\n"
        "find({'architectures': ['LlamaForCausalLM']})\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "print(time.process_time() - start)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(result.stdout) < patient(0.05)


def test_a_stored_bias_of_a_newer_release_is_known() -> None:
    """transformers 5.24 gives Reformer's head a bias, and 5.23 has none."""
    for names, bias in (({"lm_head.decoder.bias": (8,)}, ("lm_head.decoder.bias",)), ({}, ())):
        assert find({"architectures": ["ReformerForMaskedLM"], "model_type": "reformer"}, names).output_biases == bias


def test_a_class_counts_for_its_own_model_types() -> None:
    """An auto class goes by the model type, so a row counts only for types that were measured or have equal facts."""
    llama = ("model.embed_tokens.weight", "lm_head.weight")
    exaone = ("transformer.wte.weight", "lm_head.weight")
    cases: dict[tuple[str, object], tuple[bool, tuple[str, str] | None]] = {
        ("LlamaForCausalLM", "llama"): (True, llama),
        ("LlamaForCausalLM", None): (True, llama),
        ("LlamaForCausalLM", "exaone"): (True, exaone),
        ("LlamaForCausalLM", "internlm3"): (True, llama),
        ("Glm4MoeForCausalLM", "sarvam_moe"): (True, ("model.word_embeddings.weight", "lm_head.weight")),
        ("LlamaForCausalLM", "mistral"): (True, llama),  # other class, equal facts
        ("GPT2LMHeadModel", "gpt-sw3"): (True, ("transformer.wte.weight", "lm_head.weight")),
        ("OmniASRForConditionalGeneration", "omniasr"): (True, None),
        ("LlamaForCausalLM", "gpt2"): (False, None),
        ("LlamaForCausalLM", "gemma"): (False, None),  # another default of the flag
        ("LlamaForCausalLM", "of_no_release"): (False, None),
        ("GPT2LMHeadModel", "exaone"): (False, None),
        ("MistralForCausalLM", "exaone"): (False, None),  # Mistral's facts are Llama's, but not those of exaone
        ("LlavaForConditionalGeneration", "llava_next"): (False, None),
    }
    for (architecture, model_type), (known, names) in cases.items():
        config = {"architectures": [architecture], "model_type": model_type}
        family = find({key: value for key, value in config.items() if value is not None})
        case = f"{architecture} of {model_type}"
        assert (family.knowledge is Knowledge.TABLE) is known, case
        assert names is None or (family.input_embedding, family.output_head) == names, case
        assert bool(family.since) is (model_type in ("exaone", "internlm3", "sarvam_moe", "omniasr")), case


ABSENT = object()


def config(base: Config, top: object, nested: object) -> Config:
    """The class with the flag at the top and in the text part; `ABSENT` leaves it out."""
    value = {} if top is ABSENT else {"tie_word_embeddings": top}
    inner = {} if nested is ABSENT else {"tie_word_embeddings": nested}
    return {**base, **value, "text_config": {**base["text_config"], **inner}}


@pytest.mark.parametrize(
    ("top", "nested", "expected", "older"),
    [
        (True, True, {"": True, "text_config": True}, True),
        (True, False, {"": True, "text_config": False}, False),
        (False, True, {"": False, "text_config": True}, True),
        (True, None, {"": True}, False),
        (False, None, {"": False}, False),
        (None, True, {"text_config": True}, True),
        (None, False, {"text_config": False}, False),
        (None, None, {}, False),
        (ABSENT, None, {}, False),
        (None, ABSENT, {}, True),
        (ABSENT, ABSENT, {}, True),
    ],
)
def test_a_null_beside_another_level(
    top: object, nested: object, expected: dict[str, bool], older: bool, tmp_path: Path
) -> None:
    """A null declares nothing; where transformers 4 looks, it replaces the class's default by false."""
    inspection = api.inspect(save(tmp_path / "model", config(GEMMA3, top, nested), {NESTED_EMBED: matrix()}))
    assert levels(inspection) == expected
    assert reading_v4(inspection) is older


def test_only_the_level_that_a_version_reads(tmp_path: Path) -> None:
    """InternVL's text part is read by transformers 4 alone, and the top by 5 alone."""
    inspection = api.inspect(save(tmp_path / "model", config(INTERNVL, ABSENT, ABSENT), {NESTED_EMBED: matrix()}))
    assert (levels(inspection), reading_v4(inspection), inspection.config.effective) == ({}, False, True)


def test_a_null_at_the_only_level(tmp_path: Path) -> None:
    """A flat class has one level; what is not text of it is no level."""
    values = {**LLAMA, "tie_word_embeddings": None, "vision_config": {"tie_word_embeddings": True}}
    inspection = api.inspect(save(tmp_path / "model", values, llama()))
    assert (levels(inspection), reading_v4(inspection)) == ({}, False)


MAPS = {"d2t": vector(4), "t2d": vector(8)}


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, {"fc.weight": matrix(4, 12)}),
        ({**LLAMA, "draft_vocab_size": 4}, {"fc.weight": matrix(4, 12), "lm_head.weight": matrix(4)}),
        (LLAMA, {"fc.weight": matrix(4, 12), "lm_head.weight": matrix(4), **MAPS}),
    ],
    ids=["class", "config", "tensors"],
)
@pytest.mark.parametrize("tied", [True, False, None])
def test_drafts_are_silent(
    config: dict[str, Any], tensors: dict[str, Array], tied: bool | None, tmp_path: Path
) -> None:
    flag = {} if tied is None else {"tie_word_embeddings": tied}
    inspection = api.inspect(save(tmp_path / "model", config | flag, tensors))
    assert (inspection.findings, inspection.ties) == ((), ())
    assert "draft" in inspection.config.why


def test_vision_language_models_named_eagle_are_no_drafts(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["Eagle2_5_VLForConditionalGeneration"]}
    inspection = api.inspect(save(tmp_path / "model", config, {EMBED: matrix()}))
    assert "draft" not in inspection.config.why


def test_other_models_are_not_taken_for_drafts(tmp_path: Path) -> None:
    inspection = api.inspect(save(tmp_path / "model", LLAMA, {EMBED: matrix()}))
    assert [finding.rule for finding in inspection.findings] == ["TIE003"]
