"""Export each family in each layout, generate with the layout's program, and compare the tokens with torch.

python -m tests.onnx.layouts.measure [--write] [--layout NAME...] [--only FAMILY...] [--precision fp16]
    [--quantise int4]

A float graph must give torch's tokens. A quantised graph has its own: ONNX Runtime gives them from the same graph.
``--write`` puts the results into docs/measured/layouts.json. The programs are found by these variables:
TIECONV_OPTIMUM (a Python with optimum-onnx), TIECONV_GENAI (a Python with onnxruntime-genai), TIECONV_TRANSFORMERS_JS
(a folder whose node_modules have @huggingface/transformers; node must be on PATH).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tieconv
from tests.lazy import adapter, bindings, carry_out, graph_forward, ort_session, torch
from tests.onnx import exported
from tests.onnx.encoder_decoder.stored_pair import stored_pair
from tests.onnx.export_table import optimised
from tests.onnx.layouts.families import FAMILIES
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.reference.model import Batch, Features, encoder_input

FILE = Path(__file__).parents[3] / "docs" / "measured" / "layouts.json"
HERE = Path(__file__).parent
VARIABLES = {"optimum": "TIECONV_OPTIMUM", "genai": "TIECONV_GENAI", "transformers.js": "TIECONV_TRANSFORMERS_JS"}
PACKAGES = {
    "optimum": ("optimum-onnx", "transformers", "torch", "onnxruntime"),
    "genai": ("onnxruntime-genai", "onnxruntime"),
}
STEPS, PROMPT, PADDING = 24, 20, 3


def command(layout: str) -> list[str]:
    """The command of the program that loads the layout; empty if its variable is not set."""
    where = os.environ.get(VARIABLES[layout], "")
    if not where:
        return []
    if layout == "transformers.js":
        node = shutil.which("node")
        return [node, str(HERE / "run_transformers_js.mjs"), where] if node else []
    return [where, str(HERE / f"run_{layout}.py")]


def versions(layout: str) -> dict[str, str]:
    """The releases of the program and of what it runs on."""
    where = os.environ[VARIABLES[layout]]
    if layout == "transformers.js":
        modules = Path(where) / "node_modules"
        packages = ("@huggingface/transformers", "onnxruntime-node")
        return {name: json.loads((modules / name / "package.json").read_text())["version"] for name in packages}
    script = "import sys\nfrom importlib.metadata import version\nfor p in sys.argv[1:]: print(p, version(p))"
    lines = subprocess.run([where, "-c", script, *PACKAGES[layout]], check=True, text=True, capture_output=True).stdout
    return {name: release.partition("+")[0] for name, release in map(str.split, lines.splitlines())}


def make(family: str) -> Any:
    """The tiny model of a family."""
    before, exported.MODELS = exported.MODELS, FAMILIES
    try:
        return exported.make(family)
    finally:
        exported.MODELS = before


def prompts(*, masked: bool, encodes: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows longer than every window, the first with padding; a masked model gets none.

    The padding is on the left, and on the right for an encoder.
    """
    ids = torch.randint(3, exported.ROWS, (2, PROMPT), generator=torch.Generator().manual_seed(11))
    mask = torch.ones_like(ids)
    if not masked:
        padding = slice(PROMPT - PADDING, PROMPT) if encodes else slice(PADDING)
        ids[0, padding], mask[0, padding] = 0, 0
    return ids, mask


def drawn_features(model: Any) -> Features | None:
    """Two rows of random features for the encoder; `None` for one of token ids."""
    reads = encoder_input(model)
    if reads is None:
        return None
    return Features(reads.name, torch.randn((2, *reads.shape), generator=torch.Generator().manual_seed(12)))


def wanted(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, features: Features | None, *, masked: bool
) -> list[list[int]]:
    """The greedy tokens of torch, or each position's best token of a masked model."""
    with torch.no_grad():
        if masked:
            best: list[list[int]] = model(input_ids=ids, attention_mask=mask).logits.argmax(-1).tolist()
            return best
        start = {"decoder_start_token_id": first} if (first := start_of(model)) is not None else {}
        inputs = {"input_ids": ids, "attention_mask": mask}
        if features is not None:
            inputs = {features.name: features.values.to(model.dtype)}
        made = model.generate(**inputs, max_new_tokens=STEPS, do_sample=False, num_beams=1, **start)
    # Whisper's own `generate` does not return the decoder's first token.
    begin = int(bool((made[:, 0] == first).all())) if start else ids.shape[1]
    tokens: list[list[int]] = made[:, begin:].tolist()
    return tokens


def tokens_of(graph: Path, ids: torch.Tensor, mask: torch.Tensor, *, masked: bool) -> list[list[int]]:
    """The greedy tokens of the graph in ONNX Runtime, or each position's best token of a masked model."""
    file = read_graph(str(graph))
    model = graph_forward.GraphModel(ort_session.open_session(str(graph), "cpu"), bindings.bind(file, masked=masked))
    types = torch.zeros_like(ids) if masked else None
    batch = Batch(ids, mask, types=types)
    made: list[list[int]] = (model.logits(batch).argmax(-1) if masked else greedy(model, batch)).tolist()
    return made


def greedy(model: graph_forward.GraphModel, batch: Batch) -> torch.Tensor:
    """Greedy tokens (batch × steps), each fed back with the cache."""
    state, start, tokens = model.no_past(batch), 0, []
    for _ in range(STEPS):
        logits, state = model.run(batch, start, state)
        start = batch.ids.shape[1]
        tokens.append(logits[:, -1:].argmax(-1))
        mask = torch.cat([batch.mask, torch.ones_like(tokens[-1])], 1)
        batch = Batch(torch.cat([batch.ids, tokens[-1]], 1), mask, types=batch.types)
    return torch.cat(tokens, 1)


def start_of(model: Any) -> int | None:
    """The first token of the decoder of an encoder-decoder."""
    return int(model.config.decoder_start_token_id) if model.config.is_encoder_decoder else None


class Program:
    """The program that loads a layout, as a process that answers one job a line."""

    def __init__(self, layout: str) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"HF_HUB_OFFLINE": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command(layout), **pipes, text=True, env=environment)

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one job."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        return {"error": f"the program ended with {self._process.wait()}"}

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextlib.contextmanager
def traced_once(folder: Path) -> Iterator[None]:
    """Trace a model only for its first export: the layouts share what the exporter wrote."""
    trace, save, pair = adapter.export_graph, adapter.save, carry_out.trace_pair
    documents: list[dict[str, Any]] = []

    def save_once(made: Any, directory: Path) -> dict[str, Any]:
        if not documents:
            folder.mkdir(parents=True)
            documents.append(save(made, folder))
        for path in folder.iterdir():
            shutil.copy(path, directory)
        return documents[0]

    def pair_once(reference: Any, raw: Path, data_of: Callable[[str], str], *settings: Any) -> None:
        if not folder.exists():
            folder.mkdir(parents=True)
            pair(reference, folder, lambda stem: f"{stem}.data", *settings)
        stored_pair(folder)(reference, raw, data_of)

    carry_out.trace_pair = pair_once
    adapter.export_graph = lambda *inputs, **more: None if documents else trace(*inputs, **more)
    adapter.save = save_once
    try:
        yield
    finally:
        adapter.export_graph, adapter.save, carry_out.trace_pair = trace, save, pair


def rows_of(
    family: str, layouts: Mapping[str, Program], folder: Path, precision: str = "fp32", quantise: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the result of each layout: the family is exported, and the program's tokens are compared with torch's."""
    model = make(family)
    masked = type(model).__name__.endswith("MaskedLM")
    model.save_pretrained(folder / "model")
    if precision == "fp16":
        model = type(model).from_pretrained(folder / "model", dtype="float16").eval()
    matrix = model.get_input_embeddings().weight.detach().numpy()
    start = start_of(model)
    ids, mask = prompts(masked=masked, encodes=start is not None)
    features = drawn_features(model)
    want: list[list[int]] = []
    with traced_once(folder / "traced"):
        for layout, program in layouts.items():
            found: dict[str, Any] = {"family": family, "layout": layout, "precision": precision}
            found |= {"quantise": quantise} if quantise else {}
            out = folder / layout
            try:
                made = tieconv.export(
                    folder / "model", out, layout=layout, precision=precision, quantise=quantise, parity=False
                )
            except tieconv.TieconvError as error:
                yield found | {"refused": error.message.partition(": ")[2]}
                continue
            graph = [out / name for name in made.files if name.endswith(".onnx")][-1]
            if quantise:
                rows = [(ids, mask)]
                if layout == "genai":  # it runs each row alone, and a dynamic scale depends on all rows
                    rows = [
                        (row[real.bool()][None], real[real.bool()][None]) for row, real in zip(ids, mask, strict=True)
                    ]
                want = [tokens for row, real in rows for tokens in tokens_of(graph, row, real, masked=masked)]
            want = want or wanted(model, ids, mask, features, masked=masked)
            job = {"folder": str(out), "ids": ids.tolist(), "mask": mask.tolist(), "steps": STEPS, "masked": masked}
            job |= {} if start is None else {"start": start}
            if features is not None:
                values = features.values
                job |= {"features": features.name, "shape": list(values.shape), "values": values.flatten().tolist()}
            answer = program.ask(job)
            got = answer.get("tokens", [])
            same = bool(got) and [cut(row, model) for row in got] == [cut(row, model) for row in want]
            found |= {"same": same, "tokens": sum(map(len, want))}
            # Codes are not the matrix: the export itself proves that a session holds them once.
            found |= {} if quantise else {"session": optimised(graph, matrix)}
            yield found | ({"error": answer["error"]} if "error" in answer else {})


def cut(tokens: list[int], model: Any) -> list[int]:
    """The tokens before the first that ends a text: programs pad or stop after it."""
    end = model.config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    return tokens[: next((index for index, token in enumerate(tokens) if token in ends), len(tokens))]


def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The row's place in the document: float graphs first, then fp32 before fp16."""
    places = list(VARIABLES).index(row["layout"]), list(FAMILIES).index(row["family"])
    return row.get("quantise", ""), row["precision"] != "fp32", *places


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--layout", nargs="*", default=[name for name in VARIABLES if command(name)])
    parser.add_argument("--only", nargs="*", default=[name for name in FAMILIES if name != "llama-untied"])
    parser.add_argument("--precision", choices=["fp32", "fp16"], default="fp32")
    parser.add_argument("--quantise", choices=["int8", "int4", "dynamic-int8"])
    given = parser.parse_args()
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"versions": {}, "rows": []}
    rows = {order(entry): entry for entry in before["rows"]}
    before["versions"] |= {layout: versions(layout) for layout in given.layout}
    programs = {layout: Program(layout) for layout in given.layout}
    for family in given.only:
        with tempfile.TemporaryDirectory() as folder:
            for row in rows_of(family, programs, Path(folder), given.precision, given.quantise):
                rows[order(row)] = row
                print(json.dumps(row), flush=True)
        if given.write:
            document = before | {"rows": [rows[place] for place in sorted(rows)]}
            FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for program in programs.values():
        program.close()


if __name__ == "__main__":
    main()
