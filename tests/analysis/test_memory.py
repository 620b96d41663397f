"""Memory does not grow with the tables."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROWS, WIDTH = 128_256, 512
PEAK = 170


NAMES = ("model.embed_tokens.weight", "lm_head.weight")


def write(folder: Path, head: float, last: float | None = None, rows: int = ROWS) -> None:
    """Two tables and a norm of ones: 64 rows of the embedding are 1.5, of the head ``head`` and one ``last``."""
    size = rows * WIDTH * 2
    header: dict[str, object] = {
        name: {"dtype": "BF16", "shape": [rows, WIDTH], "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(NAMES)
    }
    ends = [2 * size, 2 * size + 2 * WIDTH]
    header["model.norm.weight"] = {"dtype": "BF16", "shape": [WIDTH], "data_offsets": ends}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + ends[1])  # zeros that take no disk
        last = head if last is None else last
        for place, value, count in ((0, 1.5, 64), (size, head, 63), (size + 126 * WIDTH, last, 1), (2 * size, 1.0, 1)):
            file.seek(8 + len(text) + place)
            file.write(struct.pack("<f", value)[2:] * WIDTH * count)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))


def peak(code: str) -> tuple[str, float]:
    """What a program of its own prints, and the most memory that it had, in MiB."""
    code += "\nprint([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *told, size = answer.stdout.split()
    return " ".join(told), int(size) / 1024


@pytest.mark.slow
def test_a_quarter_of_the_tables_takes_as_little(tmp_path: Path) -> None:
    """Two tables of 31 MiB each, which would be 250 MiB as float64."""
    write(tmp_path, head=0.0, rows=ROWS // 4)
    relation, used = peak(f"import tieconv; print(tieconv.analyze({str(tmp_path)!r}).relation)")
    assert relation == "k-rows-differ" and used < PEAK


@pytest.mark.slow
def test_tables_larger_than_the_memory_that_is_used(tmp_path: Path) -> None:
    """Two tables of 125 MiB each, which would be 1,000 MiB as float64, are analysed in less than 170 MiB."""
    write(tmp_path, head=0.0)
    relation, used = peak(f"import tieconv; print(tieconv.analyze({str(tmp_path)!r}).relation)")
    assert relation == "k-rows-differ" and used < PEAK


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "last", "most"), [("survivor='mean', force=True", -1.0, 80), ("fold_norm=True", 3.0, PEAK)]
)
def test_tables_are_averaged_and_unfolded_a_block_at_a_time(
    tmp_path: Path, options: str, last: float, most: int
) -> None:
    """So are they written: the mean in less than 80 MiB, the proof of a fold in less than 170."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    write(source, 3.0, last)
    program = f"import tieconv\nplan = tieconv.plan_retie({str(source)!r}, {options})\n"
    program += f"print(plan.execute({str(out)!r}).verified)"
    told, used = peak(program)
    assert told == "True" and used < most
    assert (out / "model.safetensors").stat().st_size < 1.01 * ROWS * WIDTH * 2
