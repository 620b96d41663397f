"""`tieconv inspect --consumers` and `--for` as a user meets them, and the names and versions that `--for` takes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tieconv
from tests.checks.fixtures.model import BERT, LLAMA, bert, flagged, llama, matrix, save, vector, with_row
from tests.checks.fixtures.tie import STABLELM
from tests.cli.run import ok, run
from tests.loops import case as in_case, fresh
from tests.schemas import validate
from tieconv.loaders import predict
from tieconv.loaders.registry import CONSUMERS, UnknownConsumerError, select

ROOT = Path(__file__).parents[2]
FIXTURES = sorted((ROOT / "fixtures" / "models").iterdir())


@pytest.mark.parametrize("model", FIXTURES, ids=lambda path: path.name)
@pytest.mark.parametrize("depth", ["header", "candidates"])
def test_json_follows_its_schema(model: Path, depth: str) -> None:
    """Every loader answers for every fixture, with its source, and only the tested ones say that they are."""
    document = json.loads(ok(f"inspect --consumers --json --depth {depth}", model).stdout)
    validate(document, "inspect")
    assert [(entry["name"], entry["version"]) for entry in document["consumers"]] == [
        (consumer.name, consumer.version) for consumer in CONSUMERS
    ]
    for entry in document["consumers"]:
        assert entry["measured"] == (entry["name"] not in ("text-generation-inference", "tensorrt-llm"))
        assert (entry["basis"] == "read") == (not entry["measured"])


def test_nobody_is_asked_by_default() -> None:
    """Without the option the list is empty and no rule about loaders speaks."""
    document = json.loads(ok("inspect --json", ROOT / "fixtures" / "models" / "llama-tied").stdout)
    assert document["consumers"] == []


def test_text_says_who_was_not_run(tmp_path: Path) -> None:
    """A line an answer: outcome, name and version, why; what was only read says so."""
    model = save(tmp_path / "model", flagged(LLAMA, True), llama(head=with_row(matrix())))
    text = ok("inspect --for transformers>=5.4,mlx-lm==0.32", model).stdout
    lines = text.split("consumers\n")[1].splitlines()[:2]
    assert lines[0].split()[:3] == ["untied", "transformers", "5.x:"]
    assert "read" not in lines[0].rpartition("(")[2]
    assert lines[1].split()[:3] == ["discarded", "mlx-lm", "0.32:"]
    assert lines[1].endswith("replaces lm_head.weight by model.embed_tokens.weight without an error (ran 0.32.2)")


def test_only_its_exact_version_selects_vllm_053(tmp_path: Path) -> None:
    """A release of 2024 makes no finding for those who ask about vLLM."""
    model = save(tmp_path / "model", flagged(LLAMA, True), llama(head=matrix()))
    for spec, versions in {"vllm": ["<0.29", ">=0.29"], "vllm<0.29": ["<0.29"], "vllm==0.5.3": ["0.5.3"]}.items():
        assert [entry.version for entry in tieconv.inspect(model, consumers=spec).consumers] == versions
    (entry,) = tieconv.inspect(model, consumers="vllm==0.5.3").consumers
    assert "KeyError: 'lm_head.weight'" in entry.detail and not entry.measured


def test_equal_answers_are_one_line(tmp_path: Path) -> None:
    """With all their names; one that was only read stands apart. JSON has an entry for each."""
    model = save(tmp_path / "model", flagged(LLAMA, True), llama())
    lines = ok("inspect --consumers", model).stdout.split("consumers\n")[1].split("\n\n")[0].splitlines()
    assert len(lines) == 4 < len(tieconv.inspect(model, consumers="all").consumers)
    assert lines[0].startswith(
        "  tied  transformers 4.48, 4.57, 5.0, 5.x; safetensors 0.8; accelerate 1.15; vllm <0.29"
    )
    assert lines[0].endswith("with the values of model.embed_tokens.weight (all were run)")
    assert lines[2].startswith("  tied  text-generation-inference 3.x; tensorrt-llm pytorch: ")
    assert lines[2].endswith("(unverified: the source was read, the loader was never run)")
    assert lines[1].startswith("  tied  llama.cpp 2026: ") and lines[1].endswith(" (ran 0.3.36)")


def test_a_plain_model_is_not_passed_over(tmp_path: Path) -> None:
    """The shortcut for models without a fault does not hide what a loader does with them."""
    config = {**LLAMA, "architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}
    model = save(tmp_path / "model", flagged(config, True), llama())
    assert tieconv.inspect(model).findings == ()
    (finding,) = tieconv.inspect(model, consumers="llama.cpp").findings
    assert finding.rule == "CON003"


def test_predictions_are_pure() -> None:
    """The same evidence gives the same predictions, all of them where none are chosen."""
    evidence = tieconv.inspect(ROOT / "fixtures" / "models" / "llama-duplicated")
    found = predict(evidence)
    assert found == predict(evidence, CONSUMERS) == predict(evidence)
    assert predict(evidence, CONSUMERS[:1]) == found[:1]


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """Control characters of names and model types are escaped in the sentences."""
    config = {**LLAMA, "architectures": ["Evil\x1b[31mForCausalLM"], "model_type": "\x1b[31m"}
    model = save(tmp_path / "model", flagged(config, True), {**llama(), "\x1b[2Jlm_head.weight": matrix()})
    for prediction in tieconv.inspect(model, consumers="all").consumers:
        assert prediction.detail.isprintable()
    assert "\x1b" not in ok("inspect --consumers", model).stdout


def test_a_copy_that_a_loader_needs_is_not_to_be_dropped(tmp_path: Path) -> None:
    """The commands for the loader that was asked for and for the others would undo each other."""
    model = save(tmp_path / "model", flagged(STABLELM, True), llama(head=matrix()))
    (plain,) = tieconv.inspect(model).findings
    assert plain.remedy is not None
    (asked,) = tieconv.inspect(model, consumers="llama.cpp").findings
    assert (asked.rule, asked.level, asked.remedy) == ("TIE002", "note", None)
    assert asked.message == f"{plain.message} llama.cpp 2026 needs the copy."
    (other,) = tieconv.inspect(model, consumers="vllm").findings
    assert other == plain


def test_a_remedy_changes_the_prediction(tmp_path: Path) -> None:
    """SGLang leaves a tied head without values. Only a stored copy helps, and `check --fix` writes it once."""
    for architecture, kind in (  # none of these files has metadata, which could mark the copy as wanted
        ("PhiForCausalLM", "phi"),
        ("MixtralForCausalLM", "mixtral"),
        ("Qwen2MoeForCausalLM", "qwen2_moe"),
        ("StableLmForCausalLM", "stablelm"),
    ):
        config = {**LLAMA, "architectures": [architecture], "model_type": kind}
        model = save(tmp_path / kind, flagged(config, True), llama())
        finding = tieconv.inspect(model, consumers="sglang").findings[0]
        assert finding.rule == "CON001", architecture
        assert finding.remedy is not None, architecture
        assert finding.remedy.command == f"tieconv untie {model} --keep-flag -o OUT", architecture
        fixed = run("check --for sglang --fix -o", tmp_path / f"{kind}-fixed", model)
        assert (fixed.exit_code, "not fixed" in fixed.stderr) == (0, False), (architecture, fixed.output)


def test_no_command_helps_is_said_once_each_was_tried(tmp_path: Path) -> None:
    """A loader that refuses the tied names needs a copy less; one that no command helps gets no command."""
    model = save(tmp_path / "model", flagged({**LLAMA, "sliding_window": 4}, True), llama(head=matrix()))
    text = ok("inspect --consumers", model).stdout
    assert f"Run: tieconv retie {model} -o OUT" in text
    (finding,) = (entry for entry in tieconv.inspect(model, consumers="safetensors").findings if entry.rule == "CON003")
    assert finding.remedy is not None
    assert finding.remedy.safe
    config = {**LLAMA, "architectures": ["PhiForCausalLM"], "model_type": "phi"}
    other = save(tmp_path / "other", flagged(config, True), llama())
    (refusal,) = tieconv.inspect(other, consumers="vllm<0.29").findings
    assert (refusal.rule, refusal.remedy) == ("CON003", None)
    assert refusal.message.endswith(". tieconv found no command that helps.")
    headline, _, findings = ok("inspect --for vllm<0.29", other).stdout.partition("\nfindings\n")
    assert headline.count("tieconv found no command that helps") == findings.count("tieconv found no command") == 1


def test_a_config_without_a_type_says_which_type_the_class_has(tmp_path: Path) -> None:
    """No command writes it. A class that no table has implies no type."""
    config = {key: value for key, value in flagged(LLAMA, True).items() if key != "model_type"}
    edit = ': add "model_type": "llama" to config.json by hand'
    model = save(tmp_path / "model", config, llama())
    (finding,) = tieconv.inspect(model).findings
    assert finding.rule == "CON003" and finding.message.endswith(edit)
    text = ok("inspect", model).stdout
    assert text.count(edit) == 2 and "found no command" not in text
    other = save(tmp_path / "other", {**config, "architectures": ["AcmeForCausalLM"]}, llama())
    messages = [each.message for each in tieconv.inspect(other, consumers="transformers").findings]
    assert any("without a model type" in message for message in messages)
    assert not any("by hand" in message for message in messages)


def test_a_command_helps_more_loaders_than_it_harms(tmp_path: Path) -> None:
    """No loader is traded for another one, also with all loaders; the sentence says so if nothing else is left."""
    config = {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    model = save(tmp_path / "model", flagged(config, True), llama())
    for consumers in ("sglang,safetensors", "all"):
        found = tieconv.inspect(model, consumers=consumers).findings
        finding = next(entry for entry in found if entry.rule == "CON001")
        assert finding.remedy is not None, consumers
        assert finding.remedy.command == f"tieconv untie {model} -o OUT", consumers
        assert "After this command" not in finding.message, consumers
    neox = {**LLAMA, "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
    renamed = {"gpt_neox.embed_in.weight": matrix(), "lm_head.weight": matrix()}
    traded = save(tmp_path / "traded", flagged(neox, False), renamed)
    messages = [entry.message for entry in tieconv.inspect(traded, consumers="all").findings]
    sentence = "tieconv found no command that helps without a new fault in another loader."
    assert any(message.endswith(sentence) for message in messages), messages


def test_commands_for_all_loaders_do_not_go_in_a_circle(tmp_path: Path) -> None:
    """vLLM needs the head of a tied DeepSeek V2, and load_model of safetensors refuses its second name."""
    config = {**LLAMA, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    model = save(tmp_path / "0", flagged(config, True), llama())
    seen = []
    for step in range(1, 6):
        found = tieconv.inspect(model, consumers="all").findings
        action = next((entry.remedy for entry in found if entry.rule[:3] == "CON" and entry.remedy), None)
        if action is None:
            break
        seen.append(action.command.replace(str(model), "MODEL"))
        ok(action.command.removeprefix("tieconv ").partition(str(model))[0], model, "-o", tmp_path / str(step))
        model = tmp_path / str(step)
    assert seen == ["tieconv untie MODEL -o OUT"], seen


def test_a_copy_that_keeps_a_bias_in_use_is_needed(tmp_path: Path) -> None:
    """transformers 4.48 reads the bias of a tied RoBERTa under its second name, so `retie` is not offered."""
    tables = dict.fromkeys(("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"), matrix())
    biases = dict.fromkeys(("lm_head.bias", "lm_head.decoder.bias"), vector())
    config = {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}
    model = save(tmp_path / "model", flagged(config, True), tables | biases)
    reported = {entry.rule: entry for entry in tieconv.inspect(model, consumers="transformers").findings}
    assert reported["TIE002"].remedy is None
    assert reported["TIE002"].message.endswith("transformers 4.48 needs the copy.")


def test_reasons_have_no_hole(tmp_path: Path) -> None:
    """transformers 5.0 does not compare values; a model type that is missing or blank leaves no gap in a sentence."""
    model = save(tmp_path / "model", flagged(LLAMA, True), llama(head=matrix()))
    (answer,) = tieconv.inspect(model, consumers="transformers 5.0").consumers
    assert answer.detail.endswith(
        "; the config says tied, but both are stored, and transformers 5.0 does not compare them"
    )
    for place, kind in enumerate(("", " ", None)):
        model = save(tmp_path / str(place), flagged({**LLAMA, "model_type": kind}, True), llama())
        details = [entry.detail for entry in tieconv.inspect(model, consumers="all").consumers]
        assert not any("type  " in detail or detail.endswith("type ") for detail in details), (kind, details)
        words = "with a blank model type" if kind == " " else "without a model type"
        assert any(words in detail for detail in details), (kind, details)


def test_a_model_type_that_no_reader_sees_is_described(tmp_path: Path) -> None:
    """A blank type, and one of characters that a terminal hides, are called so in every sentence and the title."""
    for place, (kind, words) in enumerate(
        {" ": "with a blank model type", "\u202e": "is not printable (\\u202e)"}.items()
    ):
        model = save(tmp_path / str(place), flagged({**LLAMA, "model_type": kind}, True), llama())
        for command in ("check", "inspect --consumers"):
            text = run(command, model).output
            assert words in text and "model_type  " not in text and "type \\u202e" not in text, (kind, text)
        config = {"model_type": kind, "tie_word_embeddings": True}
        model = save(tmp_path / f"{place} without a class", config, llama())
        title = next(line for line in run("inspect", model).output.splitlines() if "safetensors, 1 weight file" in line)
        assert (": no architecture declared," in title) is (kind == " "), title


def test_a_refused_model_without_a_head_is_reported(tmp_path: Path) -> None:
    """What `inspect` predicts as an error, `check` reports, also where tieconv knows no head."""
    config = {**LLAMA, "architectures": ["AcmeForCausalLM"], "model_type": "acme"}
    model = save(tmp_path / "model", flagged(config, True), llama())
    finding = next(entry for entry in tieconv.inspect(model, consumers="transformers 5.x").findings)
    assert (finding.rule, "has no model of type acme" in finding.message) == ("CON003", True)
    assert run("check --for transformers", model).exit_code == 1


def test_layer_types_that_do_not_list_each_layer(tmp_path: Path) -> None:
    """transformers 5 refuses a pruned or deepened model with its earlier `layer_types`; `check` reports it."""
    for place, (entries, outcome) in enumerate({1: "error", 2: "tied", 3: "error"}.items()):
        config = {**LLAMA, "num_hidden_layers": 2, "layer_types": ["full_attention"] * entries}
        model = save(tmp_path / str(place), flagged(config, True), llama())
        rows = tieconv.inspect(model, consumers="transformers>=5").consumers
        assert {row.version: row.outcome for row in rows} == {"5.0": "tied", "5.x": outcome}, entries
        rules = [entry.rule for entry in tieconv.inspect(model).findings]
        assert ("CON003" in rules) is (outcome == "error"), (entries, rules)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "a short name": ({"torch_dtype": "fp16"}, 'torch_dtype in the config is "fp16", and torch has no such type'),
    "a short name of bfloat16": ({"dtype": "bf16"}, 'dtype in the config is "bf16", and torch has no such type'),
    "a letter too many": ({"dtype": "bfloat61"}, 'dtype in the config is "bfloat61", and torch has no such type'),
    "a type of eight bits that torch may get": ({"text_config": {"dtype": "float8_e3m4"}}, ""),
    "with the module": ({"dtype": "torch.float16"}, 'dtype in the config is "torch.float16", and torch has no'),
    "automatic": ({"dtype": "auto"}, 'dtype in the config is "auto", and torch has no such type'),
    "a usual dtype before an unknown one": ({"dtype": "float16", "torch_dtype": "fp16"}, ""),
    "other names of torch": ({"dtype": "half", "torch_dtype": None}, ""),
    "eight bits": (
        {"dtype": "float8_e4m3fn"},
        'is "float8_e4m3fn", and a model needs a floating-point type of 16 bits',
    ),
    "integers": (
        {"torch_dtype": "int8"},
        'torch_dtype in the config is "int8", and a model needs a floating-point type',
    ),
    "integers of a part": ({"text_config": {"dtype": "int8"}}, ""),
    "integers of a quantised model": ({"dtype": "int8", "quantization_config": {"quant_method": "acme"}}, ""),
    "no dtype": ({"dtype": None}, ""),
    "an unknown type": ({"model_type": "llamaa"}, "has no model of type llamaa"),
    "another program's type": ({"model_type": "acme", "architectures": ["AcmeForCausalLM"]}, ""),
    "an unknown type with its code": ({"model_type": "llamaa", "auto_map": {"AutoConfig": "a.B"}}, ""),
    "no type": ({"model_type": None}, "refuses a config without a model type"),
    "an activation": (
        {"hidden_act": "swigloo"},
        'hidden_act in the config is "swigloo", and transformers has no such activation',
    ),
    "a known activation": ({"hidden_act": "gelu_new"}, ""),
    "an activation with its code": ({"hidden_act": "swigloo", "auto_map": {"AutoConfig": "a.B"}}, ""),
    "an activation of a part that the class does not have": ({"text_config": {"hidden_act": "swigloo"}}, ""),
    "RoPE": ({"rope_parameters": {"rope_type": "yarm"}}, 'is "yarm", and transformers has no such type of RoPE'),
    "RoPE, as transformers 4 names it": (
        {"rope_scaling": {"rope_type": "yarm", "factor": 2.0}},
        'rope_scaling.rope_type in the config is "yarm", and transformers has no such type of RoPE',
    ),
    "a type of layers": (
        {"layer_types": ["full_atention"]},
        'layer_types in the config is "full_atention", and transformers has no such type of layer',
    ),
    "an older type of layers": ({"layer_types": ["attention"]}, ""),
}


def test_a_config_that_transformers_5_refuses(tmp_path: Path) -> None:
    """`check` reports it without `--for`. transformers 5.23 was run with each of them."""
    for tied in [True, False]:
        for case in REFUSED:
            with in_case(case, tied):
                folder = fresh(tmp_path)
                changes, message = REFUSED[case]
                config = {key: value for key, value in {**flagged(LLAMA, tied), **changes}.items() if value is not None}
                tensors = llama() if tied else llama(head=matrix(seed=1))
                findings = tieconv.inspect(save(folder / "m", config, tensors)).findings
                assert [message in entry.message for entry in findings if entry.rule == "CON003"] == [True] * bool(
                    message
                )


def test_a_refused_config_of_a_class_without_a_head(tmp_path: Path) -> None:
    """The release fails whatever the class does with its tensors."""
    config = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
    for key, word in {"hidden_act": "swigloo", "dtype": "fp16"}.items():
        model = save(tmp_path / key, {**config, key: word}, {**llama(), "score.weight": matrix(2)})
        messages = [entry.message for entry in tieconv.inspect(model).findings if entry.rule == "CON003"]
        assert [f'{key} in the config is "{word}"' in message for message in messages] == [True]
        assert tieconv.inspect(model, consumers="transformers 5.x").consumers[0].outcome == "error"


def test_a_head_under_a_name_that_transformers_5_does_not_know(tmp_path: Path) -> None:
    """A Qwen2-VL with `model.` before each name gets a random head; `check` reports it without `--for`."""
    config = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    for prefix, rules in {"": [], "model.": ["CON001"]}.items():
        tensors = {f"{prefix}{name}": tensor for name, tensor in llama(head=matrix(seed=1)).items()}
        found = tieconv.inspect(save(tmp_path / f"m{prefix}", config, tensors)).findings
        assert [entry.rule for entry in found if entry.level == "error"] == rules, prefix


@pytest.mark.parametrize(
    ("inner", "command"), [({}, "tieconv bias unify"), ({"inner": vector(seed=2)}, "no command that helps.")]
)
def test_a_bias_that_a_loader_does_not_use(inner: dict[str, np.ndarray], command: str, tmp_path: Path) -> None:
    """A command is told only if the loader then uses the bias: of two different ones none can be dropped."""
    tensors = bert(head=matrix(seed=1), outer=vector(), **inner)
    model = save(tmp_path / "model", flagged(BERT, False), tensors)
    findings = tieconv.inspect(model, consumers="transformers>=5.4").findings
    (finding,) = [entry for entry in findings if entry.rule == "CON004"]
    sentence = finding.remedy.command if finding.remedy else finding.message
    assert sentence.startswith(command) or sentence.endswith(command)


TRANSFORMERS = ["transformers 4.48", "transformers 4.57", "transformers 5.0", "transformers 5.x"]
CASES = {
    "all": [f"{consumer.name} {consumer.version}" for consumer in CONSUMERS],
    "transformers": TRANSFORMERS,
    "vllm,transformers>=4.57": [
        "transformers 4.57",
        "transformers 5.0",
        "transformers 5.x",
        "vllm <0.29",
        "vllm >=0.29",
    ],
    " VLLM == 0.28.1 ": ["vllm <0.29"],
    "vllm==0.29": ["vllm >=0.29"],
    "vllm==0.29.0": ["vllm >=0.29"],
    "vllm<0.29": ["vllm <0.29"],
    "vllm<=0.29": ["vllm <0.29", "vllm >=0.29"],
    "transformers==5": ["transformers 5.0", "transformers 5.x"],
    "transformers==5.0": ["transformers 5.0"],
    "transformers==5.3": ["transformers 5.0"],
    "transformers==5.4": ["transformers 5.x"],
    "transformers==5.x": ["transformers 5.0", "transformers 5.x"],
    "transformers>=5.0.0": ["transformers 5.0", "transformers 5.x"],
    "transformers<5": ["transformers 4.48", "transformers 4.57"],
    "transformers==4.57.6": ["transformers 4.57"],
    "transformers==4": ["transformers 4.48", "transformers 4.57"],
    "transformers>4.57,transformers": [
        "transformers 4.48",
        "transformers 4.57",
        "transformers 5.0",
        "transformers 5.x",
    ],
    "llama.cpp": ["llama.cpp 2026"],
    "SGLang==0.5.23": ["sglang 0.5"],
    "transformers 4.50": ["transformers 4.57"],
    "vllm 0.30.1,tensorrt-llm engine": ["vllm >=0.29", "tensorrt-llm engine"],
}


@pytest.mark.parametrize("spec", CASES)
def test_selected(spec: str) -> None:
    """The loaders of a specification, each once, in the order of the documentation."""
    assert [f"{consumer.name} {consumer.version}" for consumer in select(spec)] == CASES[spec]


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda one: f"{one.name} {one.version}")
def test_what_the_error_lists_is_taken(consumer) -> None:
    """Each entry of the list in the error message selects exactly that loader."""
    with pytest.raises(UnknownConsumerError) as raised:
        select("vlm")
    entry = f"{consumer.name} {consumer.version}"
    assert entry in raised.value.hint.removeprefix("give one of: ").split(", ")
    assert select(entry) == select(f"  {entry.upper()} ") == (consumer,)


@pytest.mark.parametrize(
    "spec", ["", ",", "vllm,", "vlm", "vllm>=", "vllm=0.28", "vllm<0.1", "transformers==3", "vllm>=a", "x" * 500]
)
def test_refused(spec: str) -> None:
    """A part that names nothing stops with exit code 2 and the list of what is known."""
    with pytest.raises(UnknownConsumerError, match=r"loader|know") as raised:
        select(spec)
    assert raised.value.exit_code == 2
    assert "transformers 5.x" in raised.value.hint
    assert len(raised.value.message) < 300


def test_a_release_before_the_first_is_answered_with_the_first() -> None:
    """Somebody with an old release learns that it is older than what tieconv knows."""
    with pytest.raises(UnknownConsumerError, match=r"know what vllm==0\.4 does; the oldest that it knows is 0\.5\.3\n"):
        select("vllm==0.4")


RANGES = """
transformers 4.48: 4.45 to 4.49
transformers 4.57: 4.49 to 5.0
transformers 5.0: 5.0 to 5.4
transformers 5.x: 5.4 to
safetensors 0.8: 0.4 to
accelerate 1.15: 1.0 to
vllm <0.29: 0.6 to 0.29
vllm >=0.29: 0.29 to
sglang 0.5: 0.5 to
llama.cpp 2026: 0 to
mlx-lm <0.32: 0.28 to 0.32
mlx-lm 0.32: 0.32 to
text-generation-inference 3.x: 3.0 to
tensorrt-llm engine: 0.12 to 1.0
tensorrt-llm pytorch: 1.0 to
onnxruntime-genai 0.18: 0.18 to
ctranslate2 4.8: 4.8 to
"""


def test_each_loader_answers_for_its_releases() -> None:
    """The first release of each, and the first that it no longer answers for."""
    for consumer, line in zip(CONSUMERS, RANGES.strip().splitlines(), strict=True):
        since, before = (".".join(map(str, release or ())) for release in (consumer.since, consumer.before))
        assert f"{consumer.name} {consumer.version}: {since} to {before}".strip() == line


def test_names_and_versions_are_unique() -> None:
    """A finding can name a loader, and ranges of one loader do not overlap."""
    names = [(consumer.name, consumer.version) for consumer in CONSUMERS]
    assert len(set(names)) == len(names)
    for name in {consumer.name for consumer in CONSUMERS}:
        ranges = sorted((consumer.since, consumer.before) for consumer in CONSUMERS if consumer.name == name)
        for (_, before), (since, _) in pairwise(ranges):
            assert before is not None and before <= since


def test_releases_that_ran_are_in_their_range() -> None:
    """From the first release on, and before the next range."""
    for consumer in CONSUMERS:
        for version in consumer.ran:
            number = tuple(map(int, version.split(".")))
            assert consumer.since <= number, (consumer.name, version)
            assert consumer.before is None or number < consumer.before, (consumer.name, version)


def test_every_loader_cites_its_source() -> None:
    """A prediction says what it follows: a file at a version, or an issue."""
    for consumer in CONSUMERS:
        assert any(mark in consumer.cited for mark in (".py", "#", "/")), consumer.name
