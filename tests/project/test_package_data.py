"""The data beside a module is read in one way, from a zip too."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tieconv.package_data import data_text

ROOT = Path(__file__).parents[2] / "tieconv"
READERS = (
    "architectures.class_table",
    "architectures.guess",
    "formats.other_tools",
    "gate.settings",
    "inspection.config_values",
    "loaders.release_tables",
    "reporters.html.__init__",
    "reporters.html.fleet_page",
    "reporters.html.parity_page",
)


def test_one_function_reads_it() -> None:
    """No other module asks an import loader for a file; these name theirs."""
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    assert [name for name, text in sources.items() if ".get_data(" in text] == ["package_data.py"]
    users = [name for name, text in sources.items() if "data_text(__name__" in text]
    assert sorted(users) == [f"{reader.replace('.', '/')}.py" for reader in READERS]


def test_it_is_the_file_beside_the_module() -> None:
    """The text is that of the file on disk."""
    import tieconv.formats.other_tools as module

    expected = (ROOT / "formats" / "data" / "other_tools.json").read_text(encoding="utf-8")
    assert data_text(module.__name__, "other_tools.json") == expected


def test_it_is_read_from_a_zip(tmp_path: Path) -> None:
    """A package that was never unpacked knows a class and a loader."""
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in ROOT.rglob("*"):
            if path.suffix in (".py", ".json", ".css"):
                archive.write(path, path.relative_to(ROOT.parent))
    program = (
        "from tieconv.architectures import find, guess; from tieconv.formats import other_tools\n"
        "from tieconv.loaders import release_tables; import tieconv\n"
        "print(find({'architectures': ['LlamaForCausalLM']}).input_embedding)\n"
        "print(release_tables.kind('vllm-0.28', 'GPT2LMHeadModel'), bool(guess.pairs()), tieconv.__file__)\n"
        "print(other_tools.by_name('model.h5') is not None)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(packed)}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    first, second, third = run.stdout.splitlines()
    assert (first, third) == ("model.embed_tokens.weight", "True")
    assert second.startswith("ties True ") and "packed.zip" in second
