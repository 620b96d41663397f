"""Text files of the user: what is read, and what is said of those that are in another encoding."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.run import run
from tieconv.errors import SettingsError
from tieconv.sources.texts import read_text

TEXT = "A line of words.\nGrüße, 世界, 🙂 and more words.\n"
ENCODINGS = ["utf-16", "utf-16le", "utf-16be", "utf-32"]


def stored(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@pytest.mark.skipif(shutil.which("iconv") is None, reason="the command of the hint is not installed")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_another_encoding_comes_with_its_conversion(encoding: str, tmp_path: Path) -> None:
    """With a mark or without: the sentence names it, and the command of the hint gives a file that reads the same."""
    path = stored(tmp_path / "a text.txt", TEXT.encode(encoding))
    with pytest.raises(SettingsError, match=f"it is {encoding.upper()} text instead of UTF-8") as raised:
        read_text(path)
    assert raised.value.hint.startswith(f"iconv -f {encoding} -t utf-8 {shlex.quote(path)} > ")
    subprocess.run(["sh", "-c", raised.value.hint], check=True)
    assert read_text(f"{path}.utf-8") == TEXT


def test_on_the_command_line(models: Path, tmp_path: Path) -> None:
    """`analyze --text` says so before it loads anything."""
    result = run("analyze --text", stored(tmp_path / "text", TEXT.encode("utf-16")), models / "llama-tied")
    assert result.exit_code == 2 and "it is UTF-16 text" in result.stderr
    assert result.stderr.splitlines()[1].startswith("hint: iconv -f utf-16 -t utf-8 ")


@pytest.mark.parametrize("data", [b"words\0and words", b"\0\0\0\0", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
def test_no_text_at_all(data: bytes, tmp_path: Path) -> None:
    """A file with NUL bytes that is no UTF-16 is not converted to anything."""
    with pytest.raises(SettingsError, match="NUL bytes") as raised:
        read_text(stored(tmp_path / "text", data))
    assert "iconv" not in raised.value.hint


def test_bytes_of_an_older_encoding(tmp_path: Path) -> None:
    """Latin-1 cannot be told from its like: the hint says how to guess."""
    with pytest.raises(SettingsError, match="not UTF-8 text") as raised:
        read_text(stored(tmp_path / "text", TEXT[:24].encode("latin-1", "replace")))
    assert "file " in raised.value.hint


@given(st.text())
def test_any_text_in_utf8(text: str) -> None:
    """Comes back as it is, a mark of UTF-8 at its start left out; NULs are refused."""
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        if "\0" in text:
            with pytest.raises(SettingsError):
                read_text(file.name)
        else:
            assert read_text(file.name) == text.removeprefix("\ufeff")
