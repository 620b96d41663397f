"""Translate a hint to Python: commands become calls of `tieconv`, options become keywords.

The source code has each hint once, for the command line. A command without a function in Python stays a command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

_WORD = r"(?:(?<=\w)'(?=\w)|\$?'(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s'\"]|['\"])+"
"""A word of a shell or of a sentence; an apostrophe within a word opens no quotation."""
_MARKS = ",;:)"

FUNCTIONS = {
    "inspect": "inspect", "analyze": "analyze", "diff": "diff", "parity": "parity", "check": "check",
    "untie": "plan_untie", "retie": "plan_retie", "set-tie": "plan_set_tie", "bias": "plan_bias",
    "dedup": "plan_dedup", "convert": "plan_convert", "reindex": "plan_reindex", "resize": "plan_resize",
    "export": "plan_export",
}  # fmt: skip
"""The function of `tieconv` for each command that has one."""
_OF_GRAPHS = {"dedup": "plan_graph_dedup", "untie": "plan_graph_untie"}
_POSITIONALS = {"set-tie": 2, "bias": 2, "diff": 2, "parity": 2}
"""Number of words before the options, if not one. The first word of `set-tie` and `bias` is the action."""

FLAGS = {
    **dict.fromkeys(("--force", "--fold-norm", "--keep-flag", "--drop-other-formats", "--prune"), "True"),
    **dict.fromkeys(("--add-format", "--strip-prefix", "--in-place", "--overwrite", "--hardlink"), "True"),
    "--quantised": "True",
    "--no-parity": "False", "--no-pr": "False",
}  # fmt: skip
"""Options without a value, and the value of their keyword."""
VALUES = (
    "--from", "--survivor", "--bias", "--max-kl", "--text", "--embed", "--head", "--to", "--fill", "--rows",
    "--max-shard-size", "--head-form", "--quantise", "--precision", "--opset", "--provider", "--depth", "--consumers",
    "--for", "--against", "--base", "--second", "--jobs", "--select", "--ignore", "--fail-on", "--baseline",
    "--reference", "--verify", "--include", "--exclude", "--newer-than", "--fuse", "--layout", "--inputs", "--length",
    "--batch", "--counts", "--reference-device", "--timeout", "--max-memory", "--config", "-o", "--output",
)  # fmt: skip
"""Options with a value."""
_NAMES = {
    "--from": "survivor", "--for": "consumers", "-o": "out", "--output": "out", "--no-parity": "parity",
    "--no-pr": "pull_request", "--config": "settings",
}  # fmt: skip
_PRINTING = ("--json", "--traceback")
"""Options that a call does not need: a result prints as JSON, and Python shows the traceback."""
_ELSE = "else"
"""Key of the other choices of an option."""
OF_WRITING = ("out", "in_place", "overwrite", "hardlink", "verify")
"""Keywords of the method `execute` of a plan."""
_CHOICES = (
    r"[A-Z]+|\d[\d.]*(?:GB|MB)?|embed|head|mean|bias|decoder|keep|zero|strip|zeros|gemm|fused|transpose|header"
    r"|candidates|full|structure|fp32|fp16|bf16|cpu|cuda|auto|rows|safetensors|torch"
)


def keyword(option: str) -> str:
    """Return the Python keyword for an option of the command line."""
    return _NAMES.get(option, option.lstrip("-").replace("-", "_"))


def in_python(hint: str) -> str:
    """Return ``hint`` with its commands as calls and its options as keywords."""
    return "".join(_translated(re.findall(rf"\s+|{_WORD}", hint)))


def _translated(tokens: list[str]) -> Iterator[str]:
    at = 0
    while at < len(tokens):
        end, text = _command(tokens, at) or _option(tokens, at) or (at + 1, tokens[at])
        yield text
        at = end


def _option(tokens: list[str], at: int) -> tuple[int, str] | None:
    """Return the end of an option outside a command, and its keyword with the value that follows."""
    lead, word, mark = _bare(tokens[at])
    if word in FLAGS:
        return at + 1, f"{lead}{keyword(word)}={FLAGS[word]}{mark}"
    if word not in VALUES:
        return None
    if not mark and at + 2 < len(tokens):
        _, value, after = _bare(tokens[at + 2])
        if all(re.fullmatch(_CHOICES, choice) for choice in value.split("|")):
            return at + 3, f"{lead}{keyword(word)}={_value(value)}{after}"
    return at + 1, f"{lead}{keyword(word)}{mark}"


def _command(tokens: list[str], at: int) -> tuple[int, str] | None:
    """Return the end of a command, and the call that does the same, or ``None``."""
    lead, word, _ = _bare(tokens[at])
    if word != "tieconv" or at + 2 >= len(tokens):
        return None
    _, verb, mark = _bare(tokens[at + 2])
    if verb not in FUNCTIONS:
        return None
    end, values, options = at + 3, list[str](), dict[str, str]()  # options by keyword
    while not mark and end + 1 < len(tokens):
        before, word, following = _bare(tokens[end + 1])
        if before:
            break
        if word.startswith("-"):
            width = _take(word, tokens[end + 1 :], options)
            if width is None:
                return None
            end += width
            mark = _bare(tokens[end - 1])[2]
        elif not options and len(values) < _POSITIONALS.get(verb, 1) and not _is_prose(tokens, end + 1, values, verb):
            values.append(word)
            end, mark = end + 2, following
        else:
            break
    return end, f"{lead}{_call(verb, values, options)}{mark}"


def _is_prose(tokens: list[str], at: int, values: list[str], verb: str) -> bool:
    """Return whether a word belongs to a sentence: `tieconv dedup on what it writes`."""
    if not values and verb in ("set-tie", "bias"):
        return False
    _, word, mark = _bare(tokens[at])
    follows = tokens[at + 2] if at + 2 < len(tokens) and not mark else "-"
    return re.fullmatch(r"[a-z]+(?:'[a-z]*)?", word) is not None and not follows.startswith("-")


def _take(option: str, tokens: list[str], options: dict[str, str]) -> int | None:
    """Add the first option of ``tokens`` to ``options``; return its number of tokens with the space before it."""
    if option in _PRINTING:
        return 2
    if option in FLAGS:
        options[keyword(option)] = FLAGS[option]
        return 2
    if option not in VALUES or len(tokens) < 3:
        return None
    first, _, others = _bare(tokens[2])[1].partition("|")
    options[keyword(option)] = _value(first)
    if others:
        options[_ELSE] = f" (or {keyword(option)}={' or '.join(map(_value, others.split('|')))})"
    return 4


def _call(verb: str, values: list[str], options: dict[str, str]) -> str:
    graph = "head_form" in options or any(word.strip("'").endswith(".onnx") for word in values)
    function = _OF_GRAPHS.get(verb, FUNCTIONS[verb]) if graph else FUNCTIONS[verb]
    if not values and not options:
        return f"tieconv.{function}"
    otherwise = options.pop(_ELSE, "")
    writing = {name: value for name, value in options.items() if name in OF_WRITING}
    if verb == "convert":
        values, options = [], {**({"path": _value(values[0])} if values else {}), **options}
    own = [*map(_value, values), *(f"{name}={value}" for name, value in options.items() if name not in writing)]
    written = [writing.pop("out")] if "out" in writing else []
    written += [f"{name}={value}" for name, value in writing.items()]
    return f"tieconv.{function}({', '.join(own)})" + (f".execute({', '.join(written)})" if written else "") + otherwise


def _bare(token: str) -> tuple[str, str, str]:
    """Return an opening bracket, the word, and the punctuation after it."""
    word = token.lstrip("(")
    bare = word.rstrip(_MARKS) if not word.endswith(("'", '"')) else word
    return token[: len(token) - len(word)], bare, word[len(bare) :]


def _value(word: str) -> str:
    """Return a word of a shell as a Python literal; placeholders such as OUT stay names."""
    if "|" in word and "'" not in word:
        return " or ".join(map(_value, word.split("|")))
    if re.fullmatch(r"[A-Z][A-Z0-9]*", word) or re.fullmatch(r"\d+(?:\.\d+)?", word):
        return word
    return repr(shlex.split(word)[0]) if not word.startswith("$") else word[1:]
