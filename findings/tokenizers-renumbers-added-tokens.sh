#!/usr/bin/env bash
# tokenizers 0.23.3: Python and JavaScript read different token ids from one tokenizer.json.
#
# The "added_tokens" of tokenizer.json carry ids. A file gives <img> the id 10, behind a vocabulary of three tokens, as a
# model does that leaves rows for later tokens. The Python library ignores that id and gives <img> the next number, 3. It
# says so in the log of its Rust code alone, which Python does not show. Its `to_str` then writes 3. So the model looks up
# row 3 of its embedding for <img>. The JavaScript library of the same publisher, @huggingface/tokenizers 0.2.0, keeps 10.
# "The next number" is the count of tokens, not the highest id plus 1. In a vocabulary with a gap, `add_tokens` hands out
# an id that is taken, and two tokens share a row. Issues 523 and 1366 of tokenizers touch on both. Seen:
#   written: <img> 10
#   Python reads: <img> 3, and writes 3
#   JavaScript reads: <img> 10
#   vocabulary a 0, b 1, c 3, d 4: add_tokens gives <new> the id 4, and d decodes as <new>
# transformers 5.24.0 reads as tokenizers does. So compare the ids after each load with those in the file.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3 2>/dev/null
npm install --silent --no-audit --no-fund --prefix "$work" @huggingface/tokenizers@0.2.0
"$work/venv/bin/python" - "$work" <<'PY'
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

path = Path(sys.argv[1]) / "tokenizer.json"


def word_level(vocab):
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


tokenizer = word_level({"a": 0, "b": 1, "c": 2})
tokenizer.add_tokens(["<img>"])
content = json.loads(tokenizer.to_str())
content["added_tokens"][0]["id"] = 10
path.write_text(json.dumps(content))
read = Tokenizer.from_file(str(path))
(number,) = read.encode("<img>").ids
written = json.loads(read.to_str())["added_tokens"][0]["id"]
print("written: <img> 10")
print(f"Python reads: <img> {number}, and writes {written}")
gap = word_level({"a": 0, "b": 1, "c": 3, "d": 4})
gap.add_tokens(["<new>"])
collision = gap.token_to_id("<new>"), gap.decode(gap.encode("d").ids)
path.with_name("collision").write_text(
    f"vocabulary a 0, b 1, c 3, d 4: add_tokens gives <new> the id {collision[0]}, and d decodes as {collision[1]}"
)
sys.exit((number, written, *collision) != (3, 3, 4, "<new>"))
PY
cat > "$work/read.mjs" <<'JS'
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";

const tokenizer = new Tokenizer(JSON.parse(readFileSync(process.argv[2])), {});
const [number] = tokenizer.encode("<img>").ids;
console.log(`JavaScript reads: <img> ${number}`);
process.exit(Number(number !== 10));
JS
node "$work/read.mjs" "$work/tokenizer.json"
echo "$(cat "$work/collision")"
