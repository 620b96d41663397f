"""What labs have shipped and people release every day: the findings about them, and silence for the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import tieconv
import tieconv as api
from fixtures import everyday, releases
from tests.cli.run import ok
from tests.loops import case
from tieconv.checkpoint.inspection import State
from tieconv.cli import main

#: Layout -> the rules that speak at warning or above: what is out of place there is true of the release itself.
SPOKEN_OF = {
    "qwen_3_0_6b": {"TIE002"},
    "falcon_7b": {"TIE002"},
    "mistral_small_3_1": {"TIE007"},
    "bart_large_cnn": {"TIE005"},
    "phi_4_multimodal": {"COD001"},
}
NOTED = {
    "llama_2_7b": {"IDX009"},
    "bert_base_uncased": {"IDX009"},
    "all_minilm_l6": {"IDX009"},
    "gpt2_bins": {"IDX009"},
    "gemma_2b": {"IDX009"},
    "whisper_large_v3": {"IDX005"},
    "mistral_7b_v0_3": {"IDX005"},
    "mamba_codestral": {"IDX005"},
    "granite_speech_2b": {"IDX005"},
    "ministral_3_3b": {"IDX005"},
    "bge_m3": {"IDX005"},
    "mistral_small_3_1": {"IDX005"},
    "phi_3_mini": {"COD001"},
    "chatglm3_6b": {"TIE012"},
    "internlm2_7b": {"TIE012"},
    "kimi_k2": {"TIE012"},  # its model_type is that of its own code, not of the class
    "mimo_7b": {"TIE012"},
    "phi_4_multimodal": {"TIE012"},
}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every layout, once."""
    root = tmp_path_factory.mktemp("releases")
    for name in releases.RELEASES:
        releases.build(name, root / name)
    return root


@pytest.mark.parametrize("name", releases.RELEASES)
def test_a_release_passes_unless_it_is_named_here(name: str, shipped: Path) -> None:
    """Exit 0 for a healthy layout; notes only where they are listed."""
    for depth in ("header", "candidates"):
        if name not in SPOKEN_OF or depth != "header":  # what is said there needs bytes
            with case(depth):
                passes(name, depth, shipped)


def passes(name: str, depth: str, shipped: Path) -> None:
    """Assert what `check` says of a layout at a depth."""
    result = CliRunner().invoke(
        main, ["check", "--no-config", "--format", "json", "--depth", depth, str(shipped / name)]
    )
    findings = json.loads(result.stdout)["models"][0]["findings"]
    loud = {finding["rule"] for finding in findings if finding["level"] != "note"}
    assert loud == SPOKEN_OF.get(name, set())
    assert result.exit_code == (1 if loud else 0)
    assert {finding["rule"] for finding in findings if finding["level"] == "note"} == NOTED.get(name, set())


TIED = [
    "llama_3_2_1b", "qwen_3_4b", "qwen_2_5_vl_3b", "qwen_3_vl_2b", "qwen_3_embedding_0_6b", "gemma_2_2b",
    "gemma_3_4b", "phi_4_mini", "mamba_130m", "roberta_base", "modernbert_base", "t5_small", "nllb_200_600m",
    "whisper_tiny", "gpt2", "opt_350m", "opt_6_7b", "bloom_560m", "command_r", "granite_4_h", "lfm2_350m",
    "paligemma_3b", "qwen_2_5_0_5b_awq", "llama_3_2_1b_bnb_4bit",
]  # fmt: skip
UNTIED = [
    "llama_3_8b", "llama_4_scout", "qwen_3_30b_a3b", "qwen_3_vl_8b", "mixtral_8x7b", "deepseek_v3", "kimi_k2",
    "glm_4_5_air", "gpt_oss_20b", "llama_gptq", "llama_awq", "llama_nvfp4", "falcon_mamba_7b", "rwkv_4_169m",
    "flan_t5_base", "mt5_small", "pythia_160m", "smolvlm_500m", "llava_1_5_7b", "mistral_small_3_1",
]  # fmt: skip
HEADLESS = [
    "all_minilm_l6", "bge_m3", "embedding_gemma", "skywork_reward_8b", "qwen_2_5_math_rm", "bart_base",
    "lora_adapter", "eagle_llama3_8b", "eagle3_llama3_8b", "medusa_vicuna_7b",
]  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", [*TIED, *UNTIED])
def test_transformers_5_agrees(name: str, shipped: Path) -> None:
    """Tied or not, as the installed transformers has it once the model is loaded; the codes of layers play no part."""
    transformers = pytest.importorskip("transformers")
    evidence = api.inspect(shipped / name, consumers="transformers>=5.4")
    kind = getattr(transformers, evidence.config.architectures[0])
    config = kind.config_class.from_pretrained(shipped / name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = kind.from_pretrained(shipped / name, config=config, ignore_mismatched_sizes=True)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied is (name in TIED)
    # An auto class goes by the model type, and needs the model's own code for that of Kimi-K2.
    expected = "unknown" if name == "kimi_k2" else "tied" if tied else "untied"
    assert evidence.consumers[0].outcome == expected


@pytest.mark.parametrize("name", HEADLESS)
def test_no_head_is_asked_for(name: str, shipped: Path) -> None:
    """Encoders, reward models, adapters and drafts have none by design."""
    assert api.inspect(shipped / name).head.output_head is None


@pytest.mark.parametrize("name", ["deepseek_v3", "glm_4_5_air"])
def test_copies_of_prediction_layers_are_no_tie(name: str, shipped: Path) -> None:
    """The MTP layer's embedding and head repeat the model's own: bytes, and no member of its tie."""
    evidence = api.inspect(shipped / name)
    assert [member.name for member in evidence.ties[0].members] == ["model.embed_tokens.weight", "lm_head.weight"]
    assert evidence.ties[0].members[1].state is State.DISTINCT
    assert len(evidence.duplicates) == 2


def test_gemma_3n_is_tied_by_its_class(shipped: Path) -> None:
    """No level declares the flag; its tower needs timm, so that the class is measured with a stand-in for that."""
    evidence = api.inspect(shipped / "gemma_3n_e2b", consumers="transformers")
    assert evidence.config.effective and evidence.head.output_head is not None
    assert evidence.head.output_head.name == "lm_head.weight"
    outcomes = {prediction.version: str(prediction.outcome) for prediction in evidence.consumers}
    assert outcomes.pop("4.48") == "error"  # the release does not have the class
    assert set(outcomes.values()) <= {"tied", "unknown"} and outcomes["5.x"] == "tied"


@pytest.mark.parametrize("name", ["gpt2", "bloom_560m", "opt_6_7b", "qwen_3_embedding_0_6b"])
def test_untying_a_bare_body_gives_it_its_prefix(name: str, shipped: Path, tmp_path: Path) -> None:
    """transformers 4 refuses a head beside names without the prefix; with it every version loads the same values."""
    transformers = pytest.importorskip("transformers")
    ok("untie", shipped / name, "-o", tmp_path / "out")
    evidence = api.inspect(tmp_path / "out", consumers="transformers")
    prefix = f"{evidence.family.prefix}."
    assert {name for name in evidence.checkpoint.tensors if not name.startswith(prefix)} == {"lm_head.weight"}
    outcomes = {prediction.version: str(prediction.outcome) for prediction in evidence.consumers}
    if evidence.family.model_type == "qwen3":
        assert outcomes.pop("4.48") == "error"  # the release does not have the class
    assert set(outcomes.values()) <= {"untied", "unknown"}
    kind = getattr(transformers, evidence.config.architectures[0])
    before, after = kind.from_pretrained(shipped / name), kind.from_pretrained(tmp_path / "out")
    assert after.lm_head.weight is not after.get_input_embeddings().weight
    for table in (after.lm_head.weight, after.get_input_embeddings().weight):
        assert table.equal(before.lm_head.weight)
    back = tieconv.plan_retie(tmp_path / "out").execute(tmp_path / "back")
    assert back.verified


def test_a_head_beside_a_bare_body_is_foreseen(shipped: Path, tmp_path: Path) -> None:
    """Measured with 4.48.3 and 4.57.6: both call the file corrupted; transformers 5 loads it."""
    from safetensors.torch import load_file, save_file

    folder = releases.build("gpt2", tmp_path / "model")
    held = load_file(folder / "model.safetensors")
    save_file(
        {**held, "lm_head.weight": held["wte.weight"] + 1}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    outcomes = {
        prediction.version: str(prediction.outcome)
        for prediction in api.inspect(folder, consumers="transformers").consumers
    }
    assert outcomes == {"4.48": "error", "4.57": "error", "5.0": "untied", "5.x": "untied"}


@pytest.mark.parametrize("flag", [True, False])
def test_liquids_own_flag_goes_first(flag: bool, tmp_path: Path) -> None:
    """`tie_embedding` decides for LFM2, whatever `tie_word_embeddings` says, and what is written says it in both."""
    transformers = pytest.importorskip("transformers")
    folder = releases.build("lfm2_350m", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"tie_embedding": flag, "tie_word_embeddings": not flag}
    (folder / "config.json").write_text(json.dumps(config))
    assert api.inspect(folder).config.effective is flag
    assert transformers.AutoConfig.from_pretrained(folder).tie_word_embeddings is flag
    (folder / "config.json").write_text(json.dumps(config | {"tie_embedding": True}))
    ok("untie", folder, "-o", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["tie_embedding"], written["tie_word_embeddings"]) == (False, False)
    model = transformers.Lfm2ForCausalLM.from_pretrained(tmp_path / "out")
    assert model.lm_head.weight is not model.model.embed_tokens.weight


@pytest.mark.parametrize("name", ["bert_base_uncased", "llama_2_7b"])
def test_another_format_that_differs_is_a_warning(name: str, shipped: Path, tmp_path: Path) -> None:
    """A stale torch file is told from a copy by the bytes of the tied tensors, its names and its shapes."""
    import torch

    folder = releases.build(name, tmp_path / "model")
    file = next(path for path in sorted(folder.glob("pytorch_model*.bin")) if "embed" in "".join(torch.load(path)))
    held = torch.load(file)
    table = next(key for key in held if key.endswith(("embed_tokens.weight", "word_embeddings.weight")))
    torch.save({**held, table: held[table] + 1}, file)
    (finding,) = [entry for entry in api.inspect(folder).findings if entry.rule == "IDX009"]
    assert finding.level == "warning" and table in finding.message
    torch.save({**held, table: held[table][:-1]}, file)
    assert [str(entry.level) for entry in api.inspect(folder, depth="header").findings] == ["warning"]


def test_a_half_of_an_encoder_decoder_is_read_where_transformers_reads_it(shipped: Path, tmp_path: Path) -> None:
    """Measured with 4.57.6, one name stored: BART and T5 read the decoder's, M2M100 leaves all on meta."""
    from safetensors.torch import save_file

    outcome_and_rule = {}
    for name, prefix in (
        ("bart_large_cnn", "model."),
        ("t5_small", ""),
        ("nllb_200_600m", "model."),
        ("mbart_large_50", "model."),
    ):
        folder = releases.build(name, tmp_path / name)
        for path in (*folder.glob("*.bin"), *folder.glob("*.safetensors")):
            path.unlink()
        table = f"{prefix}decoder.embed_tokens.weight"
        save_file(
            {table: releases.t(table, releases.V, releases.D)}, folder / "model.safetensors", metadata={"format": "pt"}
        )
        evidence = api.inspect(folder, consumers="transformers==4.57")
        (rule,) = [str(finding.level) for finding in evidence.findings if finding.rule == "TIE005"]
        outcome_and_rule[name] = (str(evidence.consumers[0].outcome), rule)
    read, left = ("tied", "warning"), ("error", "error")
    assert outcome_and_rule == {"bart_large_cnn": read, "t5_small": read, "nllb_200_600m": left, "mbart_large_50": left}


@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
@pytest.mark.parametrize("name", everyday.NAMES)
def test_an_everyday_model_passes_in_silence(name: str, depth: str, tmp_path: Path) -> None:
    """No finding of any level at any depth, not even when notes count."""
    folder = everyday.build(name, tmp_path / "model")
    result = ok(f"check --no-config --fail-on note --depth {depth}", folder)
    assert result.stderr == "1 model: no finding. The check passed.\n"
    assert "TIE" not in result.stdout
