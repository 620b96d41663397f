"""Names and half-stored tables that one major version of transformers reads and the other does not."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest

import tieconv
import tieconv as api
from fixtures import zoo
from tests.checks.fixtures.model import BART, BERT, BERT_EMBED, HEAD, Array, bert, flagged, matrix, save, vector
from tests.lazy import load_file, save_file, torch, transformers
from tests.oracles import run_transformers as loader
from tieconv.checkpoint.finding import Prediction

NEOX = "GPTNeoXForCausalLM"
LLAVA = "LlavaForConditionalGeneration"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each class with a head of its own, as transformers saves it."""
    root = tmp_path_factory.mktemp("saved")
    for kind in (NEOX, LLAVA, "GPT2LMHeadModel", "BertForMaskedLM"):
        zoo.build(kind, tie=False).save_pretrained(root / kind)
    return {kind: root / kind for kind in (NEOX, LLAVA, "GPT2LMHeadModel", "BertForMaskedLM")}


def spelled(source: Path, folder: Path, new: dict[str, str], drop: str = "") -> Path:
    """A copy under other names: each key of ``new`` is the start of a name that its value takes the place of."""
    shutil.copytree(source, folder)
    values: dict[str, torch.Tensor] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        start = next((start for start in new if name.startswith(start)), "")
        if name != drop:
            values[new.get(start, "") + name.removeprefix(start)] = value
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def predicted(folder: Path) -> list[tuple[str, str]]:
    """What 4.48, 4.57 and 5.x do; 5.0 finds names as 5.x does."""
    older = "transformers<5,transformers>=5.4"
    return [(str(found.outcome), found.detail) for found in api.inspect(folder, consumers=older).consumers]


def observed(kind: str, folder: Path, embedding: str, head: str) -> str:
    job = {"class": kind, "folder": str(folder), "embedding": embedding, "head": head, "tables": [], "biases": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: str = loader.observe("transformers", job)["outcome"]
    return found


def set_flag(folder: Path, flag: bool) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": flag}))


def test_a_head_under_its_new_name(saved: dict[str, Path], tmp_path: Path) -> None:
    """GPT-NeoX's head is lm_head in transformers 5 and embed_out in 4, which starts it at random and is told so."""
    folder = spelled(saved[NEOX], tmp_path / "neox", {"embed_out.": "lm_head."})
    older, newer, five = predicted(folder)
    assert observed(NEOX, folder, "gpt_neox.embed_in.weight", "lm_head.weight") == five[0] == "untied"
    assert (older[0], newer[0]) == ("random", "random")
    assert newer[1].startswith("embed_out.weight is not stored and starts with random numbers; ")
    assert newer[1].endswith("; transformers 4.57 does not know the name lm_head.weight")
    assert [outcome for outcome, _ in predicted(saved[NEOX])] == ["untied"] * 3
    set_flag(folder, True)
    assert [outcome for outcome, _ in predicted(folder)] == ["discarded", "discarded", "untied"]


def test_names_of_a_nested_language_model(saved: dict[str, Path], tmp_path: Path) -> None:
    """LLaVA's names in memory are read by 4.57 and 5, and not by 4.48."""
    folder = spelled(
        saved[LLAVA], tmp_path / "llava",
        {"language_model.lm_head": "lm_head", "language_model.model": "model.language_model",
         "vision_tower": "model.vision_tower", "multi_modal": "model.multi_modal"},
    )  # fmt: skip
    older, newer, five = (outcome for outcome, _ in predicted(folder))
    names = ("model.language_model.embed_tokens.weight", "lm_head.weight")
    assert observed(LLAVA, folder, *names) == five == newer == "untied"
    assert older == "random"


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "BertForMaskedLM"])
def test_a_head_beside_names_without_the_prefix(kind: str, saved: dict[str, Path], tmp_path: Path) -> None:
    """transformers 4 takes such a file for corrupted, 5 reads it; without the head both read it."""
    prefix, head = ("transformer.", "lm_head.weight") if kind[0] == "G" else ("bert.", "cls.predictions.decoder.weight")
    folder = spelled(saved[kind], tmp_path / kind, {prefix: ""})
    table = "wte.weight" if kind[0] == "G" else "embeddings.word_embeddings.weight"
    older, newer, five = predicted(folder)
    assert observed(kind, folder, table, head) == five[0] == "untied"
    assert older == newer and newer[0] == "error" and newer[1].startswith("transformers 4 treats the file as corrupted")
    tied = spelled(saved["GPT2LMHeadModel"], tmp_path / "tied", {"transformer.": ""}, drop="lm_head.weight")
    set_flag(tied, True)
    assert [outcome for outcome, _ in predicted(tied)] == ["tied"] * 3


def test_one_name_without_the_prefix(saved: dict[str, Path], tmp_path: Path) -> None:
    """transformers 4 takes a file for prefixed as soon as one name is, and then does not know a name that is not."""
    folder = spelled(saved["GPT2LMHeadModel"], tmp_path / "m", {"transformer.wte": "wte"})
    assert observed("GPT2LMHeadModel", folder, "wte.weight", "lm_head.weight") == "untied"
    assert [outcome for outcome, _ in predicted(folder)] == ["random", "random", "untied"]
    mixed = spelled(saved["GPT2LMHeadModel"], tmp_path / "n", {"lm_head": "transformer.lm_head"})
    assert observed("GPT2LMHeadModel", mixed, "transformer.wte.weight", "transformer.lm_head.weight") == "untied"
    assert [outcome for outcome, _ in predicted(mixed)] == ["random", "random", "untied"]
    set_flag(mixed, True)
    assert [outcome for outcome, _ in predicted(mixed)] == ["discarded", "discarded", "untied"]


@pytest.mark.parametrize(
    ("kind", "told", "spelling"),
    [
        ("Qwen2VLForConditionalGeneration", "model.embed_tokens.weight", "embed_tokens.weight"),
        ("Qwen2VLForConditionalGeneration", "lm_head.weight", "model.lm_head.weight"),
        ("Step3p7ForConditionalGeneration", "model.embed_tokens.weight", "embed_tokens.weight"),
    ],
)
def test_a_name_that_a_rename_hides_from_transformers_5(kind: str, told: str, spelling: str, tmp_path: Path) -> None:
    """Where the loader renames, not every name with or without the prefix is read: what is not starts at random."""
    zoo.build(kind, tie=False).save_pretrained(tmp_path / "whole")
    folder = spelled(tmp_path / "whole", tmp_path / "m", {told: spelling})
    names = ("model.embed_tokens.weight", "lm_head.weight")
    assert observed(kind, tmp_path / "whole", *names) == predicted(tmp_path / "whole")[-1][0] == "untied"
    assert observed(kind, folder, *(spelling if name == told else name for name in names)) == "random"
    assert predicted(folder)[-1][0] == "random"


def test_tables_that_differ_in_shape_by_design(tmp_path: Path) -> None:
    """Kyutai's input table has more rows than a head of its own: untied that is no mistake."""
    kind = "KyutaiSpeechToTextForConditionalGeneration"
    zoo.build(kind, tie=False).save_pretrained(tmp_path / "m")
    set_flag(tmp_path / "m", False)
    older, newer, five = predicted(tmp_path / "m")
    loaded = zoo.model_class(kind).from_pretrained(tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(loaded.get_parameter("lm_head.weight"), stored)
    assert (older[0], newer[0], five[0]) == ("error", "untied", "untied")  # 4.48 lacks the class


SHARED, ENCODER, DECODER = (
    "model.shared.weight",
    *(f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")),
)
LETTERS = {"S": SHARED, "E": ENCODER, "D": DECODER, "H": HEAD}
TABLES: dict[tuple[bool, str], tuple[str, str]] = {
    (True, "S"): ("tied HS", "tied HS"),
    (True, "E"): ("tied HS", "error SEDH"),
    (True, "D"): ("tied HS", "tied HS"),
    (True, "ED"): ("discarded E", "discarded E"),
    (True, "SE"): ("discarded S", "discarded E"),
    (True, "SH"): ("discarded S", "discarded H"),
    (True, "EH"): ("discarded E", "error SEDH"),
    (True, "DH"): ("discarded D", "discarded H"),
    (True, "SEDH"): ("discarded SED", "discarded EDH"),
    (False, "S"): ("random EDH", "random EDH"),
    (False, "E"): ("random SDH", "random SDH"),
    (False, "D"): ("random SEH", "random SEH"),
    (False, "SE"): ("random DH", "random DH"),
    (False, "SH"): ("unknown ", "random ED"),
    (False, "EH"): ("unknown ", "random SD"),
    (False, "SEDH"): ("untied HS", "untied HS"),
}
"""By the flag and the stored tables: what 4.48 and 4.57 do, and the names that the answer is about."""

ASSIGNED = {"SH": "discarded H", "SEDH": "discarded EDH", "SE": "discarded E", "EH": "unknown ", "ED": "unknown "}
"""What 4.48 does with a true flag if the file holds `final_logits_bias`, the first name of the state dict."""

BIAS: dict[tuple[bool, bool, str], tuple[str, str]] = {
    (True, True, "o"): ("", ""),
    (True, True, "i"): ("i", "error"),
    (True, True, "oi"): ("i", "i"),
    (True, True, "equal"): ("", ""),
    (False, True, "o"): ("", ""),
    (False, True, "i"): ("i", "error"),
    (False, True, "oi"): ("i", "i"),
    (False, False, "o"): ("", ""),
    (False, False, "i"): ("", "error"),
    (False, False, "oi"): ("o", "i"),
}
"""By the flag, whether the embedding is stored, and the stored names: the outer or inner name that is not used.

4.48 takes the inner one where the embedding is missing, and the outer one alone where it is not."""


def predicted_tables(folder: Path, config: dict[str, object], tensors: dict[str, Array]) -> tuple[Prediction, ...]:
    return api.inspect(save(folder / "model", config, tensors), consumers="transformers<5").consumers


@pytest.mark.parametrize(("tied", "stored"), TABLES)
def test_half_stored_tables(tied: bool, stored: str, tmp_path: Path) -> None:
    """Each version's answer, and the tables that it names in their order."""
    tensors = {LETTERS[letter]: matrix(seed=seed) for seed, letter in enumerate(stored)}
    letters = {name: letter for letter, name in LETTERS.items()}
    found = predicted_tables(tmp_path, flagged(BART, tied), tensors)
    assert (
        tuple(f"{one.outcome} {''.join(letters[name] for name in one.tensors)}" for one in found)
        == TABLES[tied, stored]
    )


@pytest.mark.parametrize(("tied", "embedded", "stored"), BIAS)
def test_two_names_of_a_bias(tied: bool, embedded: bool, stored: str, tmp_path: Path) -> None:
    """The name whose values reach no logit, or an error where a tied pair has no values."""
    names = {"o": "outer", "i": "inner"}
    values = {names[letter]: vector(seed=seed) for seed, letter in enumerate("oi") if letter in stored}
    if stored == "equal":
        values = {name: vector() for name in ("outer", "inner")}
    tensors = bert(head=matrix() if tied else matrix(seed=1), **values)
    tensors["bert.embeddings.LayerNorm.weight"] = vector(4)
    if not embedded:
        del tensors[BERT_EMBED]
    letters = {"cls.predictions.bias": "o", "cls.predictions.decoder.bias": "i"}
    found = predicted_tables(tmp_path, flagged(BERT, tied), tensors)
    said = ["error" if str(one.outcome) == "error" else "".join(letters[name] for name in one.dropped) for one in found]
    assert tuple(said) == BIAS[tied, embedded, stored]


@pytest.mark.parametrize("stored", ASSIGNED)
def test_assigned_tables_in_448(stored: str, tmp_path: Path) -> None:
    """With the first name of its state dict in the dtype of the model, 4.48 assigns tensors and ties later."""
    tensors = {LETTERS[letter]: matrix(seed=number) for number, letter in enumerate(stored)}
    tensors["final_logits_bias"] = vector(8).reshape(1, -1)
    oldest, _ = predicted_tables(tmp_path, flagged(BART, True), tensors)
    names = "".join(letter for letter, name in LETTERS.items() if name in oldest.tensors)
    assert f"{oldest.outcome} {names}" == ASSIGNED[stored]


def test_a_class_that_forbids_assignment_in_448(tmp_path: Path) -> None:
    """GPT-J keeps its rounded head in 4.48, GPT-2 its embedding; in bf16 GPT-2 keeps the head too."""
    names = ("transformer.wte.weight", "lm_head.weight")
    table = torch.from_numpy(matrix()) + 1e-4
    outcomes = {}
    for kind, model_type in (("GPTJForCausalLM", "gptj"), ("GPT2LMHeadModel", "gpt2")):
        for dtype in (torch.float32, torch.bfloat16):
            folder = save(
                tmp_path / f"{kind}{dtype}",
                {"architectures": [kind], "model_type": model_type, "tie_word_embeddings": True},
                {names[0]: matrix()},
            )
            head = table.bfloat16() if dtype is torch.float32 else table.bfloat16() + 1
            save_file(
                {names[0]: table.to(dtype), names[1]: head}, folder / "model.safetensors", metadata={"format": "pt"}
            )
            (found,) = api.inspect(folder, consumers="transformers==4.48").consumers
            outcomes[kind, dtype] = str(found.outcome), found.tensors
    assert outcomes["GPTJForCausalLM", torch.float32] == ("discarded", (names[0],))
    assert outcomes["GPT2LMHeadModel", torch.float32][0] == "tied"
    assert outcomes["GPT2LMHeadModel", torch.bfloat16] == ("discarded", (names[0],))


def test_the_later_file_wins_in_448(tmp_path: Path) -> None:
    """If shards are copied, the table of the later one stays, whichever it is."""
    names = ("transformer.wte.weight", "lm_head.weight")
    for first, last in (names, names[::-1]):
        folder = save(
            tmp_path / first,
            {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "tie_word_embeddings": True},
            {first: matrix()},
        )
        (folder / "model.safetensors").unlink()
        shards = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": last}
        for number, (file, name) in enumerate(shards.items()):
            save_file({name: torch.from_numpy(matrix(seed=number))}, folder / file, metadata={"format": "pt"})
        index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, name in shards.items()}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (found,) = api.inspect(folder, consumers="transformers==4.48").consumers
        assert (str(found.outcome), found.tensors) == ("discarded", (first,))


SIZES = {"vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_ff": 16, "d_kv": 4,
         "num_heads": 4, "num_layers": 1, "num_decoder_layers": 1, "max_position_embeddings": 64, "pad_token_id": 0,
         "decoder_start_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
MEASURED = {
    "t5": ("untied", "untied"), "mt5": ("untied", "untied"), "umt5": ("untied", "untied"),
    "longt5": ("random", "untied"), "switch_transformers": ("random", "random"), "bart": ("random", "random"),
    "mbart": ("random", "random"), "m2m_100": ("random", "random"), "pegasus": ("untied", "untied"),
    "pegasus_x": ("untied", "untied"), "marian": ("untied", "untied"), "blenderbot": ("untied", "untied"),
    "blenderbot-small": ("untied", "untied"), "led": ("untied", "untied"), "mvp": ("untied", "untied"),
}  # fmt: skip
"""What transformers 4.48.3 and 4.57.6 do with the file, the flag being false: the tables of both halves are the shared
one, or start with random numbers."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("model_type", MEASURED)
def test_the_tables_of_both_halves(model_type: str, tmp_path: Path) -> None:
    """No claim is another than what was measured; what is not claimed is unknown, and in 4.57 nothing is."""
    config = transformers.AutoConfig.for_model(model_type, **SIZES, tie_word_embeddings=False)
    transformers.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    held = {name: value for name, value in held.items() if not name.endswith("embed_tokens.weight")}
    held["lm_head.weight"] = torch.randn(64, 16)
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": False}
    values.pop("scale_decoder_outputs", None)
    (tmp_path / "config.json").write_text(json.dumps(values))
    older, newer = tieconv.inspect(tmp_path, consumers="transformers<5").consumers
    assert str(older.outcome) in (MEASURED[model_type][0], "unknown")
    assert str(newer.outcome) == MEASURED[model_type][1]
