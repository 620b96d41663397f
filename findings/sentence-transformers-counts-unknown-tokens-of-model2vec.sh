#!/usr/bin/env bash
# sentence-transformers 6.2.0: a model2vec directory gives other vectors than in model2vec, once a word is unknown.
#
# model2vec makes small static models: the vector of a text is the mean of the rows of its tokens. `save_pretrained` of
# model2vec writes a modules.json too, so that sentence-transformers loads the same directory. Both read the same
# matrix. model2vec leaves the unknown token out of the mean, and returns zeros for a text that has no known token. The
# StaticEmbedding of sentence-transformers counts the unknown token as any other. So each word that the vocabulary lacks
# pulls the text towards one and the same row. Texts without a common word become alike. All texts of unknown words have
# the similarity 1. `from_model2vec` does the same as the load. Nothing is raised or warned. Texts of known words are
# right. model2vec mended the same in its own ONNX export (pull request 353) and in training (pull request 359), and
# issue 51 of model2vec-rs reports it of Rust. The docstring of StaticEmbedding does not mention it, and no public issue
# of sentence-transformers was found. Seen with sentence-transformers 6.2.0, model2vec 0.10.0 and torch 2.13.0; the
# figures are similarities (cosine) of two texts:
#   both known: model2vec -0.02, sentence-transformers -0.02, from_model2vec -0.02
#   half unknown: model2vec 0.02, sentence-transformers 0.57, from_model2vec 0.57
#   one all unknown: model2vec 0.00, sentence-transformers 0.15, from_model2vec 0.15
#   both all unknown: model2vec 0.00, sentence-transformers 1.00, from_model2vec 1.00
# So use one library for an index and its queries.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 sentence-transformers==6.2.0 model2vec==0.10.0 \
  transformers==5.24.0 2>/dev/null
cd "$work"
HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" -W ignore - <<'PY' 2>/dev/null
import sys

import numpy as np
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

words = "river boat stone bridge music dance guitar song".split()
vocabulary = {token: number for number, token in enumerate(["[UNK]", "[PAD]", *words])}
tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
rows = np.random.default_rng(0).normal(size=(len(vocabulary), 32)).astype(np.float32)
StaticModel(rows, tokenizer, config={"normalize": False}).save_pretrained("model")
readers = {
    "model2vec": StaticModel.from_pretrained("model"),
    "sentence-transformers": SentenceTransformer("model", device="cpu"),
    "from_model2vec": SentenceTransformer(modules=[StaticEmbedding.from_model2vec("model")], device="cpu"),
}
pairs = {
    "both known": ("river boat stone bridge", "music dance river song"),
    "half unknown": ("Fluss boat Stein bridge", "Musik dance Gitarre song"),
    "one all unknown": ("Fluss Boot Stein", "music dance guitar"),
    "both all unknown": ("Fluss Boot Stein", "Musik Tanz Gitarre"),
}


def similarity(reader, pair):
    first, second = reader.encode(list(pair))
    return round(float(first @ second / max(np.linalg.norm(first) * np.linalg.norm(second), 1e-9)), 2)


seen = {}
for name, pair in pairs.items():
    seen[name] = figures = {reader: similarity(readers[reader], pair) for reader in readers}
    print(f"{name}: " + ", ".join(f"{reader} {figure:.2f}" for reader, figure in figures.items()))
agree = [len(set(figures.values())) == 1 for figures in seen.values()]
sys.exit(agree[0] is not True or agree[1] or seen["both all unknown"]["sentence-transformers"] < 0.99)
PY
