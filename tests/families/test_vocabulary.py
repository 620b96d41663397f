"""Which sizes of a config count the rows of the word tables, against the classes of the installed transformers."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError

from fixtures import families, zoo
from tests.lazy import transformers, version_of
from tieconv.api.evidence import inspect
from tieconv.architectures import class_table as table, effective_flag
from tieconv.architectures.effective_flag import SIZES, vocabulary_rows, vocabulary_sizes, word_sizes
from tieconv.checks.registry import run_all
from tieconv.gate.examine import file_of
from tieconv.loaders import release_tables

tokenizers = pytest.importorskip("tokenizers")

COMPOSITES = (
    "EvollaForProteinText2Text", "GraniteSpeechForConditionalGeneration", "InstructBlipForConditionalGeneration",
    "LlavaForConditionalGeneration", "MarianMTModel", "Ovis2ForConditionalGeneration",
    "PaliGemmaForConditionalGeneration", "Qwen2VLForConditionalGeneration", "RagTokenForGeneration",
    "SpeechEncoderDecoderModel", "VisionEncoderDecoderModel", "VoxtralForConditionalGeneration",
)  # fmt: skip
CHECKED = {"CanaryForConditionalGeneration", "T5Gemma2ForConditionalGeneration"}
"""Classes that refuse a config in which only one of their sizes has changed."""

pytestmark = pytest.mark.skipif(
    version_of("transformers") != table.measured_with(5),
    reason=f"the table is of transformers {table.measured_with(5)}",
)


def _sizes(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _sizes(value, f"{prefix}{key}.")
        elif key.endswith("vocab_size") and value == zoo.VOCAB:
            yield f"{prefix}{key}"


def _shapes(name: str, raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    model = zoo.instantiate(name, zoo.config_class(name).from_dict(copy.deepcopy(dict(raw))), "meta")
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def _changed(name: str, raw: Mapping[str, Any], path: str) -> set[str]:
    """The names in memory whose shape changes with this size."""
    other = copy.deepcopy(dict(raw))
    *levels, key = path.split(".")
    functools.reduce(dict.__getitem__, levels, other)[key] = zoo.VOCAB + 7
    before, after = _shapes(name, raw), _shapes(name, other)
    return {tensor for tensor in before if before[tensor] != after[tensor]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted({*COMPOSITES, *table.exceptions("vocabulary")} - CHECKED))
def test_the_sizes_that_count_the_word_tables(tmp_path: Path, name: str) -> None:
    """A size counts them if one of them changes with it. A size that counts another tensor stays as it is."""
    zoo.build(name).save_pretrained(tmp_path / "model")
    raw = families.as_saved(zoo.tiny_config(name))
    evidence = inspect(tmp_path / "model", depth="header")
    family = evidence.family
    names = {family.input_embedding, family.output_head, *family.output_biases}
    names |= {member for group in family.groups for member in (group.canonical, *group.members)}
    words = {dict(family.renames).get(each, each) for each in names}
    counted = {path: _changed(name, raw, path) for path in _sizes(raw)}
    own = {path for path, changed in counted.items() if changed & words}
    assert own
    assert own <= set(word_sizes(evidence))
    assert not any(counted[path] for path in word_sizes(evidence) if path not in own)
    assert set(word_sizes(evidence)) <= set(vocabulary_sizes(evidence))
    more = set(table.exceptions("vocabulary").get(name, {}).get("tensors", ()))
    assert more <= set().union(*(counted[path] for path in own)) - words


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma3ForCausalLM", "GPT2LMHeadModel", "Qwen3MoeForCausalLM"])
def test_the_shortcut_for_plain_models_hides_no_number(tmp_path: Path, name: str) -> None:
    """Every rule runs on a tied model with any other number in its config, if one of them reports it."""
    zoo.build(name, tie=True).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert not inspect(tmp_path).findings
    numbers = [key for key, value in config.items() if type(value) is int]
    for key in numbers:
        for number in (config[key] + 1, 2 * config[key], 0):
            (tmp_path / "config.json").write_text(json.dumps({**config, key: number}))
            evidence = inspect(tmp_path)
            assert {finding.rule for finding in evidence.findings} >= {finding.rule for finding in run_all(evidence)}
    width = next(key for key in ("hidden_size", "n_embd") if key in config)
    (tmp_path / "config.json").write_text(json.dumps({**config, width: 2 * config[width]}))
    assert "VOC001" in {finding.rule for finding in inspect(tmp_path).findings}


PADDING = {table: release_tables.names("transformers-5", f"{table} padding") for table in ("refuses", "takes")}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(PADDING["refuses"] | PADDING["takes"]))
def test_a_padding_token_without_a_row(tmp_path: Path, name: str) -> None:
    """VOC003 and the row of transformers 5 say which classes are not built."""
    zoo.build(name).save_pretrained(tmp_path)
    evidence = inspect(tmp_path, depth="header")
    config = json.loads((tmp_path / "config.json").read_text())
    level = config
    for key in filter(None, evidence.family.text_level.split(".")):
        level = level[key]
    refused, rows = name in PADDING["refuses"], max(vocabulary_rows(evidence).values())
    for number in (rows - 1, rows):
        level["pad_token_id"] = number
        (tmp_path / "config.json").write_text(json.dumps(config))
        reported = [str(finding.level) for finding in inspect(tmp_path).findings if finding.rule == "VOC003"]
        assert reported == ["error" if refused else "warning"] * (number == rows)
        newest = next(row for row in inspect(tmp_path, consumers="transformers").consumers if row.version == "5.x")
        assert ("pad_token_id" in newest.detail) == (refused and number == rows)
        assert str(newest.outcome) == "error" or "pad_token_id" not in newest.detail
        early = [row for row in inspect(tmp_path, consumers="transformers").consumers if row.version != "5.x"]
        assert all(str(row.outcome) == "unknown" for row in early if "pad_token_id" in row.detail)
        with pytest.raises(AssertionError, match="adding_idx") if refused and number == rows else nullcontext():
            zoo.model_class(name).from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "document", "needed"),
    [
        ("added_tokens.json", {"<x>": zoo.VOCAB, "<y>": 3}, zoo.VOCAB + 1),
        ("added_tokens.json", {"<x>": zoo.VOCAB - 1}, None),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(zoo.VOCAB + 6): {"content": "<x>"}}}, zoo.VOCAB + 7),
        (
            "tokenizer_config.json",
            {
                "extra_special_tokens": {"image_token": "<x>"},
                "added_tokens_decoder": {str(zoo.VOCAB): {"content": "<x>"}},
            },
            None,
        ),
        (
            "tokenizer_config.json",
            {
                "image_token": {"__type": "AddedToken", "content": "<x>"},
                "audio_token": ["<y>"],
                "added_tokens_decoder": {str(zoo.VOCAB): {"content": "<x>"}},
            },
            None,
        ),
        ("tokenizer_config.json", [], None),
        ("tokenizer.json", {"added_tokens": [{"id": zoo.VOCAB, "content": "<x>"}]}, zoo.VOCAB + 1),
        ("tokenizer.json", {"added_tokens": [{"id": zoo.VOCAB - 1, "content": "<x>"}, {"id": "9"}, []]}, None),
        (
            "tokenizer.json",
            {"model": {"vocab": {"x": 0}}, "added_tokens": [{"id": zoo.VOCAB, "content": "<x>"}]},
            zoo.VOCAB + 1,
        ),
        ("tokenizer.json", {"model": {"vocab": {"x": zoo.VOCAB, "y": 1}, "merges": []}}, zoo.VOCAB + 1),
        ("tokenizer.json", {"model": {"vocab": {'": 9999': 1, "x": zoo.VOCAB - 1}}}, None),
        ("tokenizer.json", {"model": {"vocab": [[f"w{number}", -1.5] for number in range(zoo.VOCAB)]}}, None),
        (
            "tokenizer.json",
            {"model": {"vocab": [[f"w{number}", -1.5] for number in range(zoo.VOCAB + 2)]}},
            zoo.VOCAB + 2,
        ),
        ("vocab.json", {"x": zoo.VOCAB - 1}, None),
        ("vocab.json", {"x": zoo.VOCAB}, zoo.VOCAB + 1),
        ("vocab.json", {"x": zoo.VOCAB + 999}, zoo.VOCAB + 1000),
        ("vocab.txt", "w\n" * (zoo.VOCAB - 1) + "w", None),
        ("vocab.txt", "w\n" * (zoo.VOCAB + 1) + "w\n", zoo.VOCAB + 2),
    ],
)
def test_a_token_without_a_row(tmp_path: Path, name: str, document: object, needed: int | None) -> None:
    """A text model of Gemma 3 has a token for images without a row."""
    zoo.build("LlamaForCausalLM").save_pretrained(tmp_path)
    (tmp_path / name).write_text(document if isinstance(document, str) else json.dumps(document))
    found = inspect(tmp_path).findings
    assert [finding.rule for finding in found] == ["VOC003"] * bool(needed)
    assert all(finding.remedy and f"--to {needed} --fill mean" in finding.remedy.command for finding in found)


NEVER_STOPS, PROMPTLESS = "This token never ends a text.", "ends in an IndexError without a prompt."
GENERATION: dict[str, tuple[dict[str, object], str]] = {
    "eos_token_id": ({"eos_token_id": zoo.VOCAB}, NEVER_STOPS),
    "one of several": ({"eos_token_id": [2, zoo.VOCAB + 7]}, NEVER_STOPS),
    "bos_token_id": ({"bos_token_id": zoo.VOCAB}, PROMPTLESS),
    "pad_token_id": ({"pad_token_id": zoo.VOCAB}, "ends in an IndexError once one of several texts is complete."),
    "the last row": ({"eos_token_id": [2, zoo.VOCAB - 1], "pad_token_id": zoo.VOCAB - 1}, ""),
    "not an id": ({"eos_token_id": -1, "pad_token_id": None, "bos_token_id": "</s>"}, ""),
    "of a decoder": ({"decoder_start_token_id": zoo.VOCAB, "forced_bos_token_id": zoo.VOCAB}, ""),
    "other keys": ({"suppress_tokens": [zoo.VOCAB], "max_length": zoo.VOCAB + 1}, ""),
}


@pytest.mark.parametrize("name", GENERATION)
def test_generation_needs_a_token_without_a_row(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of generation_config.json, and without the file those of config.json, which never needs it."""
    values, outcome = GENERATION[name]
    zoo.build("LlamaForCausalLM").save_pretrained(tmp_path)
    document, config = tmp_path / "generation_config.json", json.loads((tmp_path / "config.json").read_text())
    document.write_text(json.dumps(values))
    assert len(inspect(tmp_path).findings) == ("several" in outcome)  # examples keep other ids of their class
    monkeypatch.setattr(effective_flag, "_LEAST_ROWS", zoo.VOCAB)
    found = inspect(tmp_path).findings
    assert [finding.message.rpartition("rows. ")[2].removeprefix("generate of transformers ") for finding in found] == (
        [outcome] if outcome else []
    )
    assert [(finding.rule, str(finding.level), file_of(inspect(tmp_path), finding)) for finding in found] == (
        [("VOC003", "warning" if "several" in outcome else "note", document.name)] * bool(outcome)
    )
    values = {key: value for key, value in values.items() if key != "pad_token_id"}  # transformers 5 then fails to load
    (tmp_path / "config.json").write_text(json.dumps(config | values))
    document.write_text("{}")
    refused = ["CON003"] * (name == "not an id")  # a text is no id
    assert [finding.rule for finding in inspect(tmp_path).findings] == refused
    document.unlink()
    stated = [finding.message for finding in inspect(tmp_path).findings if finding.rule not in refused]
    assert [" in config.json is " in message for message in stated] == [True] * bool(outcome and values)


@pytest.mark.parametrize("key", ["decoder_start_token_id", "forced_bos_token_id"])
def test_generate_fails_without_the_row(tmp_path: Path, key: str) -> None:
    """An error, as `generate` of transformers shows, from either file."""
    import torch

    zoo.build("BartForConditionalGeneration").save_pretrained(tmp_path)
    document, config = tmp_path / "generation_config.json", json.loads((tmp_path / "config.json").read_text())
    ids = torch.arange(3, 9)[None]
    for number in (zoo.VOCAB - 1, zoo.VOCAB):
        for path in (document, tmp_path / "config.json"):
            (tmp_path / "config.json").write_text(json.dumps(config))
            document.unlink(missing_ok=True)
            path.write_text(json.dumps((config if path != document else {"decoder_start_token_id": 2}) | {key: number}))
            model = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
            outcome = pytest.raises(IndexError) if number == zoo.VOCAB else nullcontext()
            with outcome:
                model.generate(ids, max_new_tokens=3)
            found = [(finding.rule, str(finding.level)) for finding in inspect(tmp_path).findings]
            assert found == [("VOC003", "error")] * (number == zoo.VOCAB), path


def test_a_document_that_is_cut_off(tmp_path: Path) -> None:
    """An upload that stopped leaves such a file. The weights and the config are whole."""
    zoo.build("LlamaForCausalLM").save_pretrained(tmp_path)
    documents = {
        "tokenizer.json": '{"model": {"vocab": {"x": 0}}}\n',
        "generation_config.json": "{}",
        "vocab.json": "{}",
    }
    for name, text in documents.items():
        (tmp_path / name).write_text(text)
    assert not inspect(tmp_path).findings
    for name in documents:
        for text in ("", '{"model": {"vocab": {"x": 0'):
            (tmp_path / name).write_text(text)
            (finding,) = inspect(tmp_path).findings
            assert (finding.rule, finding.message) == ("FMT001", f"{name} is cut off: it has no closing bracket")
        (tmp_path / name).write_text("{}")


def test_the_tokenizer_of_another_model(tmp_path: Path) -> None:
    """1,000 absent rows are no forgotten resize, so no command. tokenizer.json comes first."""
    zoo.build("LlamaForCausalLM").save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"x": zoo.VOCAB + 1000}))
    (finding,) = inspect(tmp_path).findings
    assert finding.remedy is None and finding.message.endswith("Check that the tokenizer is this model's.")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"x": 1}}}))
    assert not inspect(tmp_path).findings


def test_an_added_token_of_a_saved_tokenizer(tmp_path: Path) -> None:
    """transformers 5 lists added tokens in tokenizer.json alone, before the vocabulary."""
    zoo.build("LlamaForCausalLM").save_pretrained(tmp_path)
    vocabulary = {f"w{number}": number for number in range(zoo.VOCAB)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    for added, rules in ([], []), (["<x>", "<y>"], ["VOC003"]):
        tokenizer.add_tokens(added)
        tokenizer.save_pretrained(tmp_path)
        text = (tmp_path / "tokenizer.json").read_text()
        (tmp_path / "tokenizer.json").write_text(text.replace('"w1": 1', '"w1": "not read"'))
        assert [finding.rule for finding in inspect(tmp_path).findings] == rules
        assert inspect(tmp_path).listed_rows == bool(added) * (zoo.VOCAB + 2)


def test_the_rows_that_a_tokenizer_without_its_config_needs(tmp_path: Path) -> None:
    """The class, which nothing names, may add special tokens. Such tokens protect rows, and ask for none."""
    zoo.build("LlamaForCausalLM").save_pretrained(tmp_path)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{number}": number for number in range(zoo.VOCAB + 2)}))
    words.save(str(tmp_path / "tokenizer.json"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": zoo.VOCAB + 2}))
    evidence = inspect(tmp_path)
    assert evidence.tokenizer_rows and evidence.tokenizer_rows > evidence.listed_rows == zoo.VOCAB + 2
    (finding,) = evidence.findings
    assert finding.action and dict(finding.action.options)["to"] == zoo.VOCAB + 2


def test_the_rows_of_a_boolean_size(tmp_path: Path) -> None:
    """transformers 4.57 loads one layer where the config says true, and fails for text: it has no row for the first."""
    zoo.build("LlamaForCausalLM").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for value, outcome in ((True, "unknown"), ("2", "error")):
        (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": value}))
        rows = {row.version: str(row.outcome) for row in inspect(tmp_path, consumers="transformers").consumers}
        assert (rows["4.57"], rows["5.x"]) == (outcome, "error")


def test_the_vocabulary_of_a_vision_part_counts_no_rows(tmp_path: Path) -> None:
    """LLaVA's `vision_config` has a `vocab_size`, which hid that the text part declares other rows."""
    zoo.build("LlavaForConditionalGeneration").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["vocab_size"] = zoo.VOCAB
    for size, rules in ((zoo.VOCAB, []), (zoo.VOCAB - 2, ["VOC001"])):
        config["text_config"]["vocab_size"] = size
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert [finding.rule for finding in inspect(tmp_path).findings] == rules, size


def test_two_vocabularies_are_no_missing_row(tmp_path: Path) -> None:
    """The padding and the tokenizer of an encoder with more rows than the decoder have a row there."""
    config = transformers.MarianConfig(
        vocab_size=60, decoder_vocab_size=40, share_encoder_decoder_embeddings=False, d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2,
        pad_token_id=39, decoder_start_token_id=39, max_position_embeddings=32,
    )  # fmt: skip
    transformers.MarianMTModel(config).save_pretrained(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<x>": 59}')
    assert "VOC003" not in {finding.rule for finding in inspect(tmp_path).findings}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("value", ["64", True, 64.0], ids=repr)
def test_every_config_refuses_a_size_that_is_no_whole_number(value: object) -> None:
    """VOC001 and the rows of loaders say so of each key that a class of the table declares."""
    refused = 0
    for model_type in transformers.CONFIG_MAPPING:
        cls = transformers.CONFIG_MAPPING[model_type]
        for key in set(SIZES) & set(cls.__dataclass_fields__):
            with pytest.raises(StrictDataclassError, match=key):
                cls(**{key: value})
            refused += 1
    assert refused > 2_000
