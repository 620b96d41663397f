"""The lookup of a class whose text part the config chooses: configs in, names and flags out, without any model."""

from __future__ import annotations

import pytest

from tieconv.architectures import effective, find, lookup
from tieconv.checkpoint.family import FlagMeaning, Knowledge, Tying

LLAVA, BLIP2 = "LlavaForConditionalGeneration", "Blip2ForConditionalGeneration"
VISION, SPEECH = "VisionEncoderDecoderModel", "SpeechEncoderDecoderModel"


@pytest.mark.parametrize(
    ("architecture", "level", "model_type", "embedding", "head", "biases"),
    [
        (VISION, "decoder", "bert", "decoder.bert.embeddings.word_embeddings.weight",
         "decoder.cls.predictions.decoder.weight",
         ("decoder.cls.predictions.bias", "decoder.cls.predictions.decoder.bias")),
        (VISION, "decoder", "roberta", "decoder.roberta.embeddings.word_embeddings.weight",
         "decoder.lm_head.decoder.weight", ("decoder.lm_head.bias", "decoder.lm_head.decoder.bias")),
        (VISION, "decoder", "trocr", "decoder.model.decoder.embed_tokens.weight",
         "decoder.output_projection.weight", ()),
        (VISION, "decoder", "mbart", "decoder.model.decoder.embed_tokens.weight", "decoder.lm_head.weight", ()),
        (VISION, "decoder", "gpt2", "decoder.transformer.wte.weight", "decoder.lm_head.weight", ()),
        (SPEECH, "decoder", "bart", "decoder.model.decoder.embed_tokens.weight", "decoder.lm_head.weight", ()),
        ("EncoderDecoderModel", "decoder", "gpt2", "encoder.embeddings.word_embeddings.weight",
         "decoder.lm_head.weight", ()),
        ("EncoderDecoderModel", "encoder", "gpt2", "encoder.wte.weight", "decoder.cls.predictions.decoder.weight",
         ("decoder.cls.predictions.bias", "decoder.cls.predictions.decoder.bias")),
        (BLIP2, "text_config", "t5", "language_model.shared.weight", "language_model.lm_head.weight", ()),
        (BLIP2, "text_config", "gptj", "language_model.transformer.wte.weight", "language_model.lm_head.weight",
         ("language_model.lm_head.bias",)),
        (LLAVA, "text_config", "gpt_neox", "language_model.model.embed_in.weight", "language_model.lm_head.weight", ()),
        (LLAVA, "text_config", "mistral", "language_model.model.embed_tokens.weight", "language_model.lm_head.weight",
         ()),
        ("RagTokenForGeneration", "generator", "t5", "rag.generator.shared.weight", "rag.generator.lm_head.weight", ()),
    ],
)  # fmt: skip
def test_names_have_the_prefix_of_the_part(
    architecture: str, level: str, model_type: str, embedding: str, head: str, biases: tuple[str, ...]
) -> None:
    """Embedding, head and biases are those of the part's own class."""
    family = find({"architectures": [architecture], level: {"model_type": model_type}})
    assert family.knowledge is Knowledge.TABLE
    assert (family.input_embedding, family.output_head, family.output_biases) == (embedding, head, biases)


def test_without_architectures_the_part_decides_too() -> None:
    """A config that names the outer type alone is composed as well."""
    family = find({"model_type": "llava", "text_config": {"model_type": "gpt2"}})
    assert (family.architecture, family.input_embedding) == (LLAVA, "language_model.model.wte.weight")


def test_a_part_without_a_type_is_the_usual_one() -> None:
    """LLaVA's first configs name no type of the text part: it is Llama."""
    family = find({"architectures": [LLAVA], "text_config": {"vocab_size": 9}})
    assert family.input_embedding == "language_model.model.embed_tokens.weight"
    assert family.part is not None and family.part.usual


def test_a_part_that_the_table_lacks_is_guessed() -> None:
    """Of an unknown text part nothing is claimed but what names and shapes say."""
    config = {"architectures": [LLAVA], "text_config": {"model_type": "acme", "vocab_size": 9}}
    assert find(config).knowledge is not Knowledge.TABLE
    names = {"language_model.model.embed_tokens.weight": (9, 4), "language_model.lm_head.weight": (9, 4)}
    assert find(config, names).knowledge is Knowledge.PATTERN
    assert lookup.subject(LLAVA, config) == f"the architecture {LLAVA} with a text part of type acme"
    assert lookup.subject("AcmeForCausalLM", config) == "the architecture AcmeForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "level", "model_type", "flags", "tied"),
    [
        (VISION, "decoder", "gpt2", {}, True),  # GPT-2's default
        (VISION, "decoder", "gpt2", {"": False}, True),  # the top level is not read
        (VISION, "decoder", "gpt2", {"decoder": False}, False),
        (BLIP2, "text_config", "llama", {}, False),  # Llama's default
        (BLIP2, "text_config", "t5", {"text_config": False}, True),  # T5 ties whatever the config says
        ("Florence2ForConditionalGeneration", "text_config", "mbart", {"": False}, False),
    ],
)
def test_flags_are_those_of_the_part(
    architecture: str, level: str, model_type: str, flags: dict[str, bool | None], tied: bool
) -> None:
    """The level that decides, and the default there, are the part's."""
    family = find({"architectures": [architecture], level: {"model_type": model_type}})
    assert effective(family, flags)[0] is tied


def test_scales_are_those_of_the_part() -> None:
    """T5 inside BLIP-2 multiplies its logits as T5 alone does, by a key of its own config."""
    family = find({"architectures": [BLIP2], "text_config": {"model_type": "t5"}})
    assert (family.meaning_v4, family.meaning_v5) == (FlagMeaning.SCALES, FlagMeaning.DERIVES)
    assert (family.text_level, family.text_type) == ("text_config", "t5")


def test_a_part_whose_embedding_has_another_name_never_ties() -> None:
    """The class names the embedding that it ties; transformers 5 cannot build it tied where that is missing."""
    family = find({"architectures": [LLAVA], "text_config": {"model_type": "gpt_neox"}})
    assert family.tying is Tying.NEVER and "E" in family.truth


def test_a_part_keeps_the_names_that_its_type_stores() -> None:
    """Some text models store their embedding under another name, and so does a class around them."""
    internvl, idefics = "InternVLForConditionalGeneration", "Idefics3ForConditionalGeneration"
    cases = {
        (LLAVA, "deepseek_v4"): "language_model.model.embed.weight",
        (internvl, "inkling2_text"): "language_model.model.embed.weight",
        (idefics, "deepseek_v4"): "model.text_model.embed.weight",
        (internvl, "tipsv2_text_model"): "language_model.model.token_embedding.weight",
    }
    for (architecture, model_type), stored in cases.items():
        family = find({"architectures": [architecture], "text_config": {"model_type": model_type}})
        assert family.input_embedding == stored, (architecture, model_type)
        assert dict(family.renames)[stored].endswith(lookup.table.composites()["bodies"][model_type])
        assert all(stored == group.canonical for group in family.groups), (architecture, model_type)
    for model_type in ("molmo2_text", "marian", "paligemma", "of_no_release"):
        family = find({"architectures": [LLAVA], "text_config": {"model_type": model_type}})
        assert family.knowledge is not Knowledge.TABLE, model_type
