#!/usr/bin/env bash
# transformers 5.24.0: sixteen model types overrule the tie_word_embeddings that they are given, and say nothing.
#
# A config object is made with the flag false, then with the flag true, and the flag is read back from the object. Most
# of about 800 config classes keep what they got. For T5, mT5, UMT5, LongT5, Pop2Piano, UDOP, ViLT, CSM, ShieldGemma 2,
# HunYuan-VL and PaddleOCR-VL, false becomes true, also when false stands in a config.json that is read. So nobody can
# untie these models with the flag. For BLT's patcher, encoder and decoder parts and for VibeVoice, true becomes false.
# The depth decoder of CSM drops the flag. Seen with transformers 5.24.0:
#   false becomes True: csm hunyuan_vl longt5 mt5 paddleocr_vl pop2piano shieldgemma2 t5 udop umt5 vilt
#   false becomes None: csm_depth_decoder_model
#   true becomes False: blt_global_transformer blt_local_decoder blt_patcher vibevoice
# So a tool that edits this flag has to read back what the class makes of it.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0 2>/dev/null
TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" - "$work" <<'PY'
import json
import sys
from pathlib import Path

from transformers import CONFIG_MAPPING

folder, overruled, made = Path(sys.argv[1]) / "config", {}, 0
folder.mkdir()
for kind in sorted(CONFIG_MAPPING.keys()):
    for given in (False, True):
        try:
            flag = CONFIG_MAPPING[kind](tie_word_embeddings=given).tie_word_embeddings
            (folder / "config.json").write_text(json.dumps({"model_type": kind, "tie_word_embeddings": given}))
            read = CONFIG_MAPPING[kind].from_pretrained(folder).tie_word_embeddings
        except Exception as error:
            if not isinstance(error, AttributeError):
                continue
            flag = read = None
        made += 1
        if flag is not given:
            overruled.setdefault((given, flag, read), []).append(kind)
print(made, "objects")
for (given, flag, read), kinds in sorted(overruled.items(), key=str):
    print(f"{str(given).lower()} becomes {flag} (from a file: {read}):", *kinds)
assert {"t5", "shieldgemma2", "paddleocr_vl"} <= {*overruled.get((False, True, True), ())}
assert "vibevoice" in overruled[True, False, False]
assert sum(map(len, overruled.values())) == 16
PY
