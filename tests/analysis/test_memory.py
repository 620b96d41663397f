"""Memory does not grow with the tables."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

ROWS, WIDTH = 128_256, 512
PEAK = 170


def test_tables_larger_than_the_memory_that_is_used(tmp_path: Path) -> None:
    """Two tables of 125 MiB each, which would be 1,000 MiB as float64, are analysed in less than 170 MiB."""
    size = ROWS * WIDTH * 2
    names = ("model.embed_tokens.weight", "lm_head.weight")
    header: dict[str, object] = {
        name: {"dtype": "BF16", "shape": [ROWS, WIDTH], "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 2 * size)  # zeros that take no disk
        file.seek(8 + len(text))
        for _ in range(64):
            file.write(struct.pack("<e", 1.5) * WIDTH)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = (
        f"import tieconv; print(tieconv.analyze({str(tmp_path)!r}).relation)\n"
        "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    relation, peak = answer.stdout.split()
    assert relation == "k-rows-differ"
    assert int(peak) / 1024 < PEAK
