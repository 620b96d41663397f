"""Text files of the user: what is read, and what is said of those that are in another encoding."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.cli.run import run
from tieconv.errors import DestinationError, SettingsError
from tieconv.sources.user_files import guard_report, read_text

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


PACKAGE = Path(__file__).parents[2] / "tieconv"
ONE_MODULE = "sources/user_files.py"
OWN_PLACE = "a new file in the staging directory, which only this process can reach"
TORCH = "the library writes below a directory that only this process can reach"
WRITES = {
    ("execute", "created", "os.open"): OWN_PLACE,
    ("execute", "reset", "os.open"): OWN_PLACE,
    ("execute", "can_clone", "os.open"): "a nameless file, which asks what the file system can",
    ("execute", "_open", "os.open"): "the staging directory's marker: it must be new, and its lock is the ownership",
    ("execute", "_open_marker", "os.open"): "the marker of a killed run, opened to lock it and never written to",
    ("execute", "keep", "os.open"): "a file that a killed run left in the staging directory, opened to set its mode",
    ("sources", "make_temporary", "tempfile.mkdtemp"): "the one place that makes temporary directories",
    ("cli", "_have_streams", "os.fdopen"): "standard error, which the caller closed",
    ("onnx", "limited", "tempfile.mkdtemp"): "the working directory of a limited child, removed with it",
    ("onnx", "_serve", "os.fdopen"): "the pipe from a limited child to its parent",
}
"""Calls that write elsewhere than in the one module, by room and function, and why each may."""
LIBRARIES = {"demo": TORCH, "onnx": TORCH, "gate": "Parquet in memory", "reporters": "Parquet in memory"}
"""Rooms in which a library writes, and where."""
_FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC", "O_TMPFILE", "local.CREATE")
_LIBRARY = {"save", "save_pretrained", "write_table"}
_METHODS = _LIBRARY | {
    "write_text", "write_bytes", "touch", "save", "savez", "savez_compressed", "save_pretrained", "save_file",
    "save_model", "write_table", "ParquetWriter", "tofile", "memmap", "open_memmap", "to_csv", "to_parquet",
    "to_json", "FileHandler", "copyfile", "copy2", "copytree", "dump", "extractall", "mkfifo", "symlink",
    "symlink_to", "fdopen", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory",
    "SpooledTemporaryFile", "OSFile", "write_feather", "write_csv",
}  # fmt: skip
"""Methods and functions of libraries that write a file at a path."""


def writes_of(source: str) -> set[tuple[str, str]]:
    """The calls in a module that open a file for writing, or let a library write one, with their functions."""
    tree = ast.parse(source)
    named = {
        target.id: ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    calls: dict[ast.AST, tuple[str, str]] = {}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.FunctionDef):  # the innermost function is visited last
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and (name := _write(node, named)):
                    calls[node] = getattr(scope, "name", ""), name
    return set(calls.values())


def _write(call: ast.Call, named: dict[str, str]) -> str:
    called = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if called not in _METHODS | {"open", "move", "ZipFile"}:
        return ""
    function = ast.unparse(call.func)
    method = function.rpartition(".")[2]
    if function in ("os.open", "posix.open"):
        words = ast.unparse(call)
        for name, value in named.items():
            words = re.sub(rf"\b{name}\b", value, words)
        return function if any(flag in words for flag in _FLAGS) and "os.devnull" not in words else ""
    if method == "open" and function not in ("self.open", "files.open", "self.client.open"):
        position = 1 if function in ("open", "io.open", "codecs.open", "gzip.open") else 0
        modes = [word.value for word in call.keywords if word.arg == "mode"] + call.args[position : position + 1]
        if not modes:
            return ""
        mode = modes[0].value if isinstance(modes[0], ast.Constant) else "?"
        return function if not isinstance(mode, str) or set(mode) & set("wax+?") else ""
    if function == "shutil.move":
        return function
    if method == "ZipFile":
        return function if len(call.args) > 1 else ""
    if method not in _METHODS or function in ("write_text", "write_bytes", "save", "self.to_json"):
        return ""
    return function if function.startswith(("tempfile.", "os.")) else method


def test_one_module_writes_files() -> None:
    """Every call of the product that writes a file is in that module, or in the list with its reason."""
    calls = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if str(name) != ONE_MODULE:
            calls |= {(name.parts[0], *call) for call in writes_of(path.read_text(encoding="utf-8"))}
    of_libraries = {each for each in calls if each[2] in _LIBRARY and each[0] in LIBRARIES}
    assert calls - of_libraries == set(WRITES)
    assert {room for room, _, _ in of_libraries} == set(LIBRARIES)


def test_the_search_sees_each_way_to_write() -> None:
    ways = (
        "open(p, 'w')", "open(p, mode='ab')", "open(p, mode)", "io.open(p, 'x')", "Path(p).open('r+b')",
        "p.open(mode=m)", "Path(p).write_text('')", "p.write_bytes(b'')", "os.open(p, os.O_WRONLY)",
        "os.open(p, F)\nF = os.O_CREAT | 1",
        "numpy.save(p, a)", "np.memmap(p)", "parquet.write_table(t, p)", "torch.save(t, p)", "shutil.copyfile(a, p)",
        "model.save_pretrained(p)", "tempfile.mkstemp()", "zipfile.ZipFile(p, 'w')", "os.fdopen(1, 'w')", "p.touch()",
    )  # fmt: skip
    assert [line for line in ways if not writes_of(line)] == []
    reads = ("open(p)", "open(p, 'rb')", "Path(p).open()", "os.open(p, os.O_RDONLY)", "os.open(os.devnull, os.O_RDWR)",
             "write_text(p, '')", "zipfile.ZipFile(p)")  # fmt: skip
    assert [line for line in reads if writes_of(line)] == []


def test_a_report_replaces_no_file_of_a_model(tmp_path: Path) -> None:
    """The file that is the model, and every file in its directory; a file beside it is written."""
    model, file = tmp_path / "model", tmp_path / "lone.safetensors"
    model.mkdir()
    (model / "config.json").touch()
    file.touch()
    (tmp_path / "report.json").touch()
    for path, of in ((file, file), (model / "config.json", model)):
        with pytest.raises(DestinationError, match="is a file of the model"):
            guard_report(str(path), [str(of)])
    guard_report(str(tmp_path / "report.json"), [str(model), str(file)])
