#!/usr/bin/env bash
# transformers 5.23.0: a config.json without "model_type" is refused, though the documentation says otherwise.
#
# Configs of 2019 and 2020 have no "model_type". transformers 4 then takes the first known type that is part of the
# directory's name. The docstring of AutoConfig.from_pretrained in 5.23.0 still says that it falls back to pattern
# matching on `pretrained_model_name_or_path`. It does not: the same directory raises ValueError. So whether such a model
# loads depends on the name of its directory in 4.57.6, and on nothing in 5.23.0. Seen:
#   4.57.6 my-gpt2-small GPT2Config; checkpoint ValueError
#   5.23.0 my-gpt2-small ValueError; checkpoint ValueError; its docstring promises pattern matching: True
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
for name in my-gpt2-small checkpoint; do
  mkdir "$work/$name"
  echo '{"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 100}' > "$work/$name/config.json"
done
for release in 4.57.6 5.23.0; do
  python3 -m venv "$work/venv-$release"
  "$work/venv-$release/bin/pip" install -q --disable-pip-version-check "transformers==$release" 2>/dev/null
  "$work/venv-$release/bin/python" - "$work" "$release" <<'PY' 2>/dev/null
import sys

from transformers import AutoConfig

work, release = sys.argv[1:]
seen = []
for name in ("my-gpt2-small", "checkpoint"):
    try:
        seen.append(type(AutoConfig.from_pretrained(f"{work}/{name}")).__name__)
    except ValueError:
        seen.append("ValueError")
promised = "pattern matching" in (AutoConfig.from_pretrained.__doc__ or "")
tail = f"; its docstring promises pattern matching: {promised}"
print(f"{release} my-gpt2-small {seen[0]}; checkpoint {seen[1]}" + tail * (release[0] == "5"))
want = {"4.57.6": ["GPT2Config", "ValueError"], "5.23.0": ["ValueError", "ValueError"]}[release]
sys.exit(seen != want or not promised)
PY
done
