"""Escape text for the terminal, write hints for the shell and for Python, and format sizes, lists and counts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

# Marks that Python calls printable and no terminal shows. They hide, join or stretch the characters next to them.
_INVISIBLE = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
_HASHES = r"##(?=\[|vso\[)"
_LIMIT = 200


def shown(value: object, limit: int = _LIMIT) -> str:
    """Return ``value`` as text of at most ``limit`` characters that cannot move the cursor, reorder or hide text.

    An escape has up to ten characters and counts as one.
    """
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    if not (text.isprintable() and (text.isascii() or not re.search(_INVISIBLE, text))):
        text = "".join(map(_escape, text))
    if "##" in text:
        text = re.sub(_HASHES, r"#\\x23", text)
    indent = len(text) - len(text.lstrip())
    return f"{text[:indent]}:\\x3a{text[indent + 2 :]}" if text.startswith("::", indent) else text


def json_value(value: object, present: bool = True, limit: int = _LIMIT) -> str:
    """Return a value of a config, or ``absent``. Text has quotes only if it is blank or reads like another value."""
    if not present:
        return "absent"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple | Mapping):
        value = json.dumps(value, ensure_ascii=False, default=str)
    quote = '"' if isinstance(value, str) and value.strip() in ("", "true", "false", "null") else ""
    return f"{quote}{shown(value, limit)}{quote}"


def with_type(kind: str, words: str = "with model_type") -> str:
    """Return ``with model_type llama``. Other words say that the type is missing, blank or not printable."""
    if not kind.strip():
        return "with a blank model type" if kind else "without a model type"
    safe = shown(kind)
    return f"with a model type that is not printable ({safe})" if "\\" in safe else f"{words} {safe}"


def _escape(character: str) -> str:
    if character.isprintable() and not re.match(_INVISIBLE, character):
        return character
    point = ord(character)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def shell_word(value: str) -> str:
    """Return ``value`` as one word of a shell command, as safe to print as the text of `shown`.

    A word that cannot be shown becomes `$'…'` with escaped bytes, which bash, zsh and ksh read.
    """
    if re.fullmatch(r"(?a:[\w@%+=:,./-]+)", value):
        return value  # as shlex.quote does; few words need its import
    if shown(value, len(value)) == value:
        import shlex

        return shlex.quote(value)
    try:
        raw = value.encode("utf-8", "surrogateescape")  # as file names are decoded
    except UnicodeEncodeError:
        raw = value.encode("utf-8", "surrogatepass")
    escaped = re.sub(rb"[^A-Za-z0-9_./:=@%+, -]", lambda match: b"\\x%02x" % match.group()[0], raw)
    return f"$'{escaped.decode('ascii')}'"


def path_word(path: str) -> str:
    """Return ``path`` as one word of a shell command that no program reads as an option."""
    return shell_word(f"./{path}" if path.startswith("-") else path)


class Hint(str):
    """A next step for two readers: the text itself for the shell, and ``python`` for a caller of `tieconv`.

    It is the join of its parts, of which a `Hint` has both forms. As a value of `call` it is a placeholder.
    """

    python: str

    def __new__(cls, *parts: str, python: str | None = None) -> Hint:
        hint = super().__new__(cls, "".join(parts))
        hint.python = "".join(getattr(part, "python", part) for part in parts) if python is None else python
        return hint


_FLAGS = {"out": "-o", "survivor": "--from", "pull_request": "--pr"}
"""Options that differ from their keyword."""
_OF_EXECUTE = ("out", "in_place", "overwrite", "hardlink")


def option(*names: str, **values: object) -> Hint:
    """Return options by their keyword: ``--text`` and ``text``, or with a value ``--text FILE`` and ``text=FILE``."""
    flags = (*map(_flag, names), *(_flag(name, value) for name, value in values.items()))
    return Hint(" ".join(flags), python=", ".join((*names, *(_keyword(*entry) for entry in values.items()))))


def call(verb: str, *words: str, **options: object) -> Hint:
    """Return the command `tieconv VERB WORDS --options`, and the call of the function that does the same.

    ``options`` have the keywords of the function, in the order of the command. Only the command has `--json`.
    """
    if options.get("out") == OUT and words and words[0].lower().endswith(".gguf"):
        options["out"] = Hint("OUT.gguf")  # a GGUF file is written to a file of this name
    paths = (word if isinstance(word, Hint) else path_word(word) for word in words)
    shell = " ".join(("tieconv", verb, *paths, *(_flag(name, value) for name, value in options.items())))
    name, *first = verb.split()
    values = [*map(_literal, (*first, *words))]
    if name in ("dedup", "untie") and ("head_form" in options or any(word.endswith(".onnx") for word in words)):
        name = f"graph_{name}"
    elif name == "convert" and words:
        values = [_keyword("path", *words)]
    if name not in ("inspect", "analyze", "diff", "parity", "check"):
        name = f"plan_{name.replace('-', '_')}"
    values += [_keyword(key, value) for key, value in options.items() if key not in ("json", *_OF_EXECUTE)]
    written = [_keyword(key, value).removeprefix("out=") for key, value in options.items() if key in _OF_EXECUTE]
    made = f"({', '.join(values)})" if values else ""
    return Hint(shell, python=f"tieconv.{name}{made}" + (f".execute({', '.join(written)})" if written else ""))


def _flag(name: str, value: object = True) -> str:
    """Return an option of a command with its value. With an empty `Hint` it is a flag."""
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    return f"{flag} {value if isinstance(value, Hint) else shell_word(str(value))}".rstrip()


def _keyword(name: str, value: object) -> str:
    return f"{name}={_literal(value)}"


def _literal(value: object) -> str:
    text = value.python if isinstance(value, Hint) else repr(value)
    return shown(text, len(text))


OUT, FILE, MODEL = Hint("OUT"), Hint("FILE"), Hint("MODEL")
ANOTHER_OUT = Hint("give another ", option("out"))
NEW_OUT = Hint("write a new model with ", option(out=OUT))
ELSEWHERE = Hint("write somewhere else with ", option("out"))


def size(number: int) -> str:
    """Return a number of bytes for people: decimal units, three digits (`525 MB`)."""
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def listed(values: Iterable[object], limit: int = 8) -> str:
    """Return the first ``limit`` values as text that is safe to print, and the number of the others."""
    every = [*values]
    names = ", ".join(shown(value, 60) for value in every[:limit])
    return names if len(every) <= limit else f"{names}, … and {len(every) - limit:,} more"


def in_words(names: Iterable[str], limit: int | None = None) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``; beyond ``limit`` names ``a, b and 3 more``."""
    every = [shown(name) for name in names]
    if limit is not None and len(every) > limit:
        return f"{', '.join(every[:limit])} and {len(every) - limit:,} more"
    return " and ".join(filter(None, (", ".join(every[:-1]), *every[-1:])))


def count(number: int, noun: str) -> str:
    """Return a number with its noun: ``3 tensors``, ``1 tensor``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def tally(nouns: Iterable[object]) -> list[str]:
    """Count each of ``nouns``, in the order of their first use: ``2 errors``, ``1 note``."""
    every = [*map(str, nouns)]
    return [count(every.count(noun), noun) for noun in dict.fromkeys(every)]


def close(word: str, words: Iterable[str]) -> list[str]:
    """Return the ``words`` that are most similar to ``word``, at most three."""
    from difflib import get_close_matches

    return get_close_matches(word[:60], list(words), 3, 0.6)


_UNITS = {"": 1, **{f"{unit}B": 1000**power for power, unit in enumerate(("", "K", "M", "G", "T"))}}
_UNITS |= {f"{unit}IB": 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)}
_AMOUNT = r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*"


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``5GB``, ``500 MB`` or ``2GiB``. Raises `ValueError` for other text and 0."""
    match = re.fullmatch(_AMOUNT, text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{shown(text)} is not a size: write 5GB, 500MB or 2GiB")
    number = int(float(match[1]) * _UNITS[match[2].upper()])
    if number < 1:
        raise ValueError(f"the size {shown(text)} is too small for a tensor")
    return number
