"""Graphs: `dedup`, `untie` and `export` killed; what must hold is what the tests of `execute` ask of other formats."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.onnx_graphs import build
from tests.execute.kills import Case, Stage, Zygote, calls_of, kill_at_random, kill_before, spread
from tests.execute.test_kill import judge, needs_strace, report, tied


def graph(root: Path) -> None:
    """Two copies of a matrix, and a config."""
    path = build("transposed", root / "model.onnx")
    (path.parent / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')


def shared(root: Path) -> None:
    """The same graph with the matrix stored once."""
    from tests.cli.run import ok

    graph(root.with_name("before"))
    ok("dedup", root.with_name("before"), "-o", root)
    shutil.rmtree(root.with_name("before"))


CASES = [
    Case(verb, make, how, file)
    for verb, make in (("dedup", graph), ("untie", shared))
    for how in ("-o", "--overwrite", "--in-place")
    for file in ("", "model.onnx")
    if not file or how == "-o"  # of a lone graph in place, see test_in_place
]
CUT = {("dedup", "--overwrite"), ("untie", "--in-place")}
"""The cases whose power is cut in every run."""
EXPORTS = [Case("export", tied, how) for how in ("-o", "--overwrite")]


class GraphStage(Stage):
    """A lone graph's data has a name of its own: alone it is nothing yet, and the next run takes it away."""

    def _names(self) -> set[str]:
        return {*super()._names(), *({f"{self.out.name}.data"} if self.case.file else ())}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    process = Zygote("onnx", "onnxruntime")
    yield process
    process.close()


@pytest.fixture(scope="module")
def exporter() -> Iterator[Zygote]:
    process = Zygote("onnx", "onnxruntime", "torch", "transformers", "tieconv.onnx.export.carry_out")
    yield process
    process.close()


@pytest.mark.parametrize(
    "case", [CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])], ids=str
)
def test_killed_at_random(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    assert kill_at_random(GraphStage(case, tmp_path, zygote), 1).total() == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_at_many_moments(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    report("killed at random", case, kill_at_random(GraphStage(case, tmp_path, zygote), 20))


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_killed_before_every_call(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    stage = GraphStage(case, tmp_path, zygote)
    found = Counter(str(kill_before(stage, call)) for call in spread(calls_of(stage), 40))
    report("killed before each call", case, found)
    assert found["old"]
    assert found["whole"]


@pytest.mark.slow
@needs_strace
def test_killed_between_data_and_graph(tmp_path: Path, zygote: Zygote) -> None:
    """The data has its name and the graph has none: the next run removes that data and succeeds."""
    stage = GraphStage(Case("dedup", graph, "-o", "model.onnx"), tmp_path, zygote)
    renames = [call for call in calls_of(stage) if call.name == "renameat2"]
    assert [kill_before(stage, call) for call in renames] == ["old", "old"]


@pytest.mark.slow
@pytest.mark.parametrize("case", EXPORTS, ids=str)
def test_killed_exports(case: Case, tmp_path: Path, exporter: Zygote) -> None:
    """At random moments of the whole export; a few, since each takes seconds."""
    report("killed at random", case, kill_at_random(Stage(case, tmp_path, exporter), 8))


@pytest.mark.sampled(1)
@needs_strace
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if (case.verb, case.how) in CUT else pytest.mark.slow)
        for case in CASES
        if not case.file
    ],
)
def test_every_image_of_a_power_cut(case: Case, tmp_path: Path, zygote: Zygote) -> None:
    """Every image that keeps the names so far and only synced bytes: OUT is absent, old or whole."""
    found = judge(GraphStage(case, tmp_path, zygote))
    report("power cut after each call", case, found)
    assert found["whole"]


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("case", EXPORTS, ids=str)
def test_every_image_of_an_export(case: Case, tmp_path: Path, exporter: Zygote) -> None:
    report("power cut after each call", case, judge(Stage(case, tmp_path, exporter)))
