"""`tieconv rules` and `tieconv explain`: the documentation of the rules at the prompt."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.cases import CASES
from tests.cli.run import ok, refused, run
from tests.loops import case as in_case
from tieconv.api.check import cases_by_words, find_cases
from tieconv.checks.registry import RULES
from tieconv.cli import rules as markdown


def test_every_rule_has_a_line() -> None:
    """Code, level, name and the first sentence, in the order of the documentation."""
    lines = ok("rules").stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [[rule.code, str(rule.level), rule.name] for rule in RULES]
    assert all(rule.documentation.splitlines()[0].rstrip(".") in line for rule, line in zip(RULES, lines, strict=True))


def test_json_and_selection() -> None:
    """One document; --select takes what check takes."""
    document = json.loads(ok("rules --json --select TIE001,BIA").stdout)
    assert document["schema"] == "tieconv.rules/1"
    assert [rule["code"] for rule in document["rules"]] == ["TIE001", "BIA001", "BIA002", "BIA003", "BIA004", "BIA005"]
    assert all(set(rule) == {"code", "name", "level", "summary", "documentation"} for rule in document["rules"])
    assert "TIE77 is not a rule" in refused("rules --select TIE77")


def test_explain_prints_the_documentation() -> None:
    """By code or name; in a pipe the text is the Markdown as it is written."""
    for rule in RULES:
        with in_case(rule.code):
            by_code, by_name = ok("explain", rule.code), ok("explain", rule.name)
            assert by_code.stdout == by_name.stdout
            assert (
                by_code.stdout == f"{rule.code} {rule.name} (usually: {rule.level})\n\n{rule.documentation.strip()}\n"
            )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_explain_fills_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word is shown, no line is wider than the terminal, and no mark of a heading is left."""
    for rule in RULES:
        with in_case(rule.code):
            monkeypatch.setattr("tieconv.cli.rules.width", lambda: columns)
            text = ok("explain", rule.code).stdout
            assert max(map(len, text.splitlines())) <= min(columns, 100)
            assert "## " not in text and "How to fix" in text and ".md)" not in text and "](#" not in text
            prose = re.sub(r"\[([^]]+)\]\([^)]*\.md\)|\[([A-Z]+\d+)\]\(#[^)]*\)", r"\1\2", rule.documentation)
            words = "".join(re.sub(r"^- ", "• ", prose, flags=re.M).replace("## ", "").split())  # as a list is printed
            assert "".join("".join(text.splitlines()[2:]).split()) == words


def test_an_example_fits_eighty_columns() -> None:
    """A quoted message keeps its lines on the narrowest usual terminal."""
    for rule in RULES:
        with in_case(rule.code):
            quoted = [line for line in rule.documentation.splitlines() if line.startswith("    ")]
            assert max(map(len, quoted), default=0) <= 80
            rendered = markdown.rendered(rule.documentation, 80, colour=False)
            assert all(line in rendered.splitlines() for line in quoted)


def test_explain_in_colour() -> None:
    """With `--color always` headings are bold and code has a colour; without, neither a style nor a link's address."""
    coloured = ok("explain TIE002 --color always").stdout
    assert "\x1b[1mHow to fix\x1b[0m" in coloured and "\x1b[36mtieconv retie\x1b[0m" in coloured
    assert "`" not in coloured and "\x1b]8" not in coloured
    assert "\x1b" not in ok("explain TIE002 --color never").stdout


def test_markdown_of_each_kind() -> None:
    """Lists, emphasis, code and links; a link to the network shows its address."""
    text = "- *one* **two**\n- `three`\n\n1. [four](https://example.org/x)\n\n```\na  b\n```"
    assert markdown.rendered(text, 60, colour=False).split("\n") == [
        " • one two", " • `three`", "", " 1 four (https://example.org/x)", "", "    a  b",
    ]  # fmt: skip
    assert "\x1b[1mtwo\x1b[0m" in markdown.rendered(text, 60, colour=True)


def test_rich_is_imported_by_explain_on_a_terminal_alone() -> None:
    """No other command, and no pipe, waits for the renderer."""
    code = "import sys; from tieconv.cli import main; main(sys.argv[1:], standalone_mode=False)"
    code += "; print('rich' in sys.modules)"
    for words, loaded in ((["explain", "TIE002"], "False"), (["explain", "TIE002", "--color", "always"], "True")):
        printed = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        ).stdout
        assert printed.splitlines()[-1] == loaded


def test_a_case_is_a_link_of_the_page_alone() -> None:
    """No text of a rule holds a case's number; docs/rules.md links each case below the rules it belongs to."""
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
    sections = {part.split()[0]: part for part in re.split(r"^### (?=[A-Z]{3}\d)", page, flags=re.MULTILINE)[1:]}
    for rule in RULES:
        assert not re.search(r"\bC\d\d\b", rule.documentation)
        linked = set(re.findall(r"\[(C\d\d)\]\(cases\.md#c\d\d\)", sections[rule.code]))
        assert linked == {name for name, case in CASES.items() if rule.code in case.linked_from}
    assert {code for case in CASES.values() for code in case.linked_from} <= set(sections)
    assert "C04" in sections["TIE002"] and "C04" in sections["CON003"]


def test_an_unknown_rule_is_answered_with_what_is_near() -> None:
    """Exit 2."""
    result = run("explain TIE0001")
    assert result.exit_code == 2 and "did you mean TIE001 (different-values)" in result.stderr
    assert "\x1b" not in run("explain", "\x1b[31mx").stderr


def test_a_message_leads_to_its_cases() -> None:
    """Each catalogued message, with other prefixes of its names, and pasted among other lines."""
    for name, case in CASES.items():
        for message in case.messages:
            assert name in find_cases(message.text), message.text
            pasted = f"WARNING:\n  {message.text.replace('model.embed', 'model.language_model.embed')} !\n"
            assert name in find_cases(pasted.replace(" ", "  ")), pasted
    for word in ("C04", "c04"):
        assert [*find_cases(word)] == ["C04"]
    shown = ok("explain", "KeyError: 'lm_head.weight'").stdout
    assert shown.startswith(
        "2 causes can lead to this message. The files show which one it is.\n\n"
        "C04 A loader or converter refuses the head's name.\n"
        "    Fix: tieconv retie MODEL -o OUT\n"
        "    Rules: CON003 (loader-refuses) and TIE002 (redundant-copy)\n"
        "    Guide: vLLM: KeyError: 'lm_head.weight' (docs/guides/vllm-keyerror.md in a clone of tieconv)\n"
        "C61 FSDP2 or Accelerate stops"
    )
    assert shown.endswith("\n\nRun: tieconv inspect MODEL\n")
    assert ok("explain", "KeyError:", "'lm_head.weight'").stdout == shown, "a message without quotes around it"
    assert "(docs/cases.md#c53 in a clone" in ok("explain", "will NOT tie them").stdout, "a part of a message"


BOTH_KEYS = 'Missing key(s) in state_dict: "a.weight", "b.bias". Unexpected key(s) in state_dict: "module.a.weight"'


def test_any_tensor_of_a_layer_is_as_good_as_the_catalogued_one() -> None:
    """Other names, layers and counts, lists of names, and shortened messages."""
    for message, cases in {
        "size mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 4096])": ["C37"],
        "error loading model: check_tensor_dims: tensor 'blk.17.ffn_up.weight' not found": ["C62"],
        "check_tensor_dims: tensor 'blk.3.attn_q.weight' has wrong shape; expected 2, 3, got 4, 5": ["C66"],
        "size mismatch for score.weight: copying a param with shape torch.Size([2, 64])": ["C66"],
        "KeyError: 'layers.21.mlp.gate_up_proj.weight'": ["C63"],
        "Received 12 parameters not in model:\nmodel.layers.9.mlp.up_proj.weight,": ["C63"],
        "model.layers.2.… | UNEXPECTED": ["C63"],
        "model.norm.weight    | MISSING    | ": ["C62"],
        BOTH_KEYS: ["C33", "C62"],
        "lora_A | UNEXPECTED": ["C33"],
        "q_proj.lora_B.default.weight | UNEXPECTED |": ["C33"],
        "model.layers.0.self_attn.q_proj.base_layer.weight | UNEXPECTED |": ["C33"],
        "model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight | UNEXPECTED": ["C33"],
        "SafetensorError: Error while deserializing header: invalid header length": ["C65"],
        "Can not map tensor": ["C04"],
        "\x1b[31mKeyError: \x1b[0m'layers.21.mlp.gate_up_proj.weight'": ["C63"],
        "transformer.h.4.attn.weight | UNEXPECTED |": ["C63"],
        "Received 1 parameters not in model: model.layers.0.mlp.fc.weight": [],
        "Following weights were not initialized from checkpoint: {'model.norm.weight'}": ["C62"],
        "Following weights were not initialized from checkpoint: {'lm_head.weight'}": ["C06"],
        "Following weights were not initialized from checkpoint": ["C06", "C62"],
        "There is no module or parameter named 'lm_head.bias' in LlamaForCausalLM": [],
        "There is no module or parameter named 'layers.3' in Qwen2Model": ["C63"],
        "lm_head.weight | MISMATCH | Reinit due to size mismatch - ckpt: torch.Size([8, 4]) vs model: [9, 4]": ["C37"],
        "Received 1 parameters not in model: lm_head.bias": ["C18"],
        "lm_head.weight | UNEXPECTED |": ["C72"],
        "base_model.model.lm_head.weight | UNEXPECTED |": ["C33"],
        "score.weight | MISSING |": [],
        "newly initialized: ['cls.predictions.decoder.bias', 'cls.predictions.decoder.weight']": [],
    }.items():
        assert [*find_cases(message)] == cases, message


BEGUN = "Some weights of LlamaForCausalLM were not initialized from the model checkpoint at ./m and are newly"
EMBED_SIZE = "size mismatch for base_model.model.model.embed_tokens.weight: copying a param with shape"


def test_lines_of_a_log() -> None:
    """Rows and notes of load reports, cut and quoted messages, and paths."""
    note = "- MISSING:\tthose params were newly initialized because missing from the checkpoint. Consider training"
    for message, cases in {
        "  - lm_head.weight | MISSING": ["C06", "C30"],
        "| lm_head.weight | MISSING |": ["C06", "C30"],
        note: ["C06", "C62"],
        note[:-30] + "…": ["C06", "C62"],
        f"Llama LOAD REPORT from: ./m\nlm_head.bias | MISSING | |\n\nNotes:\n{note}": ["C19"],
        f"{BEGUN}…": ["C06", "C13", "C21", "C62"],
        f"{BEGUN} initialized: ['lm_hea...": ["C06", "C13", "C21", "C62"],
        f"{BEGUN} initialized: ['model.layers.7.mlp.up_pr...": ["C62"],
        f"{BEGUN} initialized: ['lm_head.weight']": ["C06", "C62"],
        "… with different values, so we will NOT tie th…": ["C01", "C03", "C12", "C15", "C34", "C51", "C53", "C54"],
        "Some tensors share mem…": ["C25"],
        "Loading the model…": [],
        "KeyError: ‘lm_head.weight’": ["C04", "C61"],
        "“KeyError: ‘lm_head.weight’”": ["C04", "C61"],
        "KeyError: 'model.embed_tokens.weight'": ["C08", "C33", "C56"],
        "KeyError: 'lm_head.bias'": ["C19"],
        "FileNotFoundError: No such file or directory: /data/m/model-00002-of-00004.safetensors": ["C70"],
        "org/m does not appear to have a file named model-00007-of-00009.safetensors. Checkout": ["C70"],
        "error loading model: key not found in model: tokenizer.ggml.tokens": ["C71"],
        "llama_model_load: error loading model: missing tensor 'token_embd.weight'": ["C56"],
        "wrong number of tensors; expected 291, got 290": ["C63", "C73"],
        f"{EMBED_SIZE} torch.Size([70, 4])": ["C67"],
        EMBED_SIZE.replace("model.embed_tokens", "lm_head"): ["C67"],
    }.items():
        assert [*find_cases(message)] == cases, message


def test_a_text_that_starts_with_a_dash_is_not_an_option() -> None:
    shown = ok("explain", "- MISSING: those params were newly initialized because missing from the checkpoint").stdout
    assert "C06 Random or zero head" in shown
    assert ok("explain", "-", "MISSING:", "those params were newly initialized because").stdout == shown
    assert ok("explain", "--", "- lm_head.weight | MISSING").stdout == ok("explain", "lm_head.weight | MISSING").stdout


def test_a_cut_message_says_so() -> None:
    assert ok("explain", "Some tensors share mem…").stdout.startswith(
        "The message is cut off. This lists each one that it may be.\nC25 Saving as safetensors fails"
    )


def test_standard_input_is_a_log() -> None:
    """Each known line is answered once, a wrapped one too; nothing known is an error, nothing at all a usage error."""
    refusal = "KeyError: 'lm_head.weight'\n"
    log = f"step 1\n{refusal}{refusal}Received 1 parameters not in model:\nlm_head.bias\n"
    for words in (["-"], []):
        shown = ok("explain", *words, text=log).stdout
        assert [line for line in shown.splitlines() if line.startswith(">")] == [
            "> KeyError: 'lm_head.weight'", "> lm_head.bias",
        ]  # fmt: skip
        assert shown.count("C04 ") == 1 and shown.count("C18 ") == 1 and shown.count("Run: ") == 1
    assert ok("explain -", text="TIE002\n").stdout == ok("explain TIE002").stdout
    assert "No known case matches" in refused("explain -", text="step 1\nstep 2\n")
    assert "missing argument" in refused("explain", text="")


def test_a_similar_case_or_rule_is_offered() -> None:
    """By the words of symptoms and messages; a text with other words gets the most similar rule, or none."""
    for words, cases in {
        "loss jumps after reload": ["C01", "C03", "C06", "C13", "C33", "C35", "C62"],
        "model generates gibberish": ["C01", "C02", "C03", "C06", "C13", "C33", "C35", "C62"],
        "output is garbage after merging": ["C02", "C03", "C33"],
        "NaN logits": ["C53"],
        "the loss is NaN": ["C53"],
        "perplexity is worse after quantization": ["C50"],
        "ONNX file is twice as large": ["C45", "C46"],
        "vocab size mismatch": ["C37"],
        "model.embed_tokens.weight: Reinit due to size mismatch": ["C37"],
        "weights saved contained shared tensors": ["C25"],
        "training is slow": [],
        "how do I untie a model": [],
        "AttributeError: 'NoneType' object has no attribute 'shape'": [],
        "No module named torch": [],
        "Permission denied: model.safetensors": [],
        f"{'a' * 200_000} {'a.' * 50_000}": [],
    }.items():
        assert [*cases_by_words(words)] == cases, words
    shown = ok("explain", "output is garbage after merging").stdout
    assert shown.startswith("No known message matches. These cases have symptoms or messages with such words:\n\nC02 ")
    assert shown.endswith("\n\nRun: tieconv inspect MODEL\n")
    assert "did you mean TIE003 (missing-head)? " in run("explain", "mising head").stderr
    assert "give a row of this load report" in run("explain", "[transformers] LlamaModel LOAD REPORT from: ./m").stderr


def test_a_case_without_a_rule_is_not_sent_to_inspect() -> None:
    """`inspect` reads no such file, so the page names the fix. Rules of one case are enough."""
    message = "Error while deserializing header: invalid header length"
    for words in ([message], ["-"]):
        shown = ok("explain", *words, text=f"SafetensorError: {message}\n").stdout
        assert "    Rules: No command of tieconv reads such a file." in shown and "Run: " not in shown
        assert "    Fix: fetch the file again" in shown
        assert shown.endswith("so tieconv inspect may find nothing. Follow the fix or the guide.\n")
    log = f"{message}\nKeyError: 'lm_head.weight'\n"
    assert ok("explain -", text=log).stdout.endswith("\nRun: tieconv inspect MODEL\n")


LAYER = "model.layers.0."
OTHER_KEY = "KeyError: 'norm.weight'"


def test_words_that_are_in_no_message() -> None:
    """A short word, a rule and an unknown message are not taken for one."""
    for words in ("TIE002", "missing", "C99", "lm_head", "CUDA out of memory", "KeyError: 'a.b'", OTHER_KEY, ""):
        assert find_cases(words) == {}, words
    result = run("explain", "CUDA out of memory")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: No known case matches this message\n"
        "hint: look at the files: tieconv inspect MODEL; all cases are in docs/cases.md in a clone of tieconv\n"
    )


def test_a_long_word_is_searched_once() -> None:
    """Searching from each of its letters took minutes."""
    assert find_cases(f"{'a' * 200_000} {'a.' * 50_000} lora_ {'1' * 100_000}") == {}


def test_every_guide_of_a_case_exists() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert all((docs / case.guide.partition("#")[0]).is_file() for case in CASES.values() if case.guide)
