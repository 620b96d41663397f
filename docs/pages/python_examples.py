"""An example for each public name, as a session at Python's prompt. `tests/python/test_reference.py` runs each one.

`model` stores a redundant copy of its tied embedding, `tied` and `untied` are what they say, and the two tables of
`diverged` differ though its config says tied. `graph/model.onnx` is an export of `graph-model`.
"""

from __future__ import annotations

EXAMPLES = {
    "analyze": """\
>>> analysis = tieconv.analyze("model")
>>> analysis.relation, analysis.verdict
('bit-equal', 'Yes, nothing is lost. Run: tieconv retie model -o OUT.')
""",
    "analyze_revisions": """\
>>> evolution = tieconv.analyze_revisions(".", "tied,untied")
>>> evolution.revisions[1].measure("knn E→U").n
192
""",
    "check": """\
>>> report = tieconv.check(["model", "tied"], fail_on="warning")
>>> report.failed, report.exit_code
(1, 1)
>>> report = tieconv.check(["tied", "absent"])
>>> report.exit_code, report.models[1].failure.message
(2, 'absent: no such file or directory')
""",
    "diff": """\
>>> tieconv.diff("model", "tied").same_function
True
""",
    "explain": """\
>>> cases = tieconv.explain("the loss is NaN")
>>> cases["C53"]["rules"]
['NUM001 (nan-in-tie)']
""",
    "inspect": """\
>>> inspection = tieconv.inspect("model")
>>> inspection
Inspection('model', tied, 1 tie, 1 file, 1 warning)
>>> inspection.findings[0].rule, inspection.findings[0].remedy.command
('TIE002', 'tieconv retie model -o OUT')
""",
    "parity": """\
>>> report = tieconv.parity("graph/model.onnx", "graph-model", provider="cpu")
>>> str(report.verdict)
'passed'
""",
    "export": """\
>>> tieconv.export("tied", "onnx", provider="cpu")
ExportOutcome('tied', export, written to 'onnx', parity passed)
""",
    "plan_bias": """\
>>> tieconv.plan_bias("zero", "tied").execute("with-bias")
Outcome('tied', bias zero, written to 'with-bias')
""",
    "plan_convert": """\
>>> tieconv.plan_convert("torch", "tied").execute("as-torch")
Outcome('tied', convert, written to 'as-torch')
""",
    "plan_dedup": """\
>>> tieconv.plan_dedup("model").execute("once")
Outcome('model', dedup, written to 'once')
""",
    "plan_export": """\
>>> tieconv.plan_export("tied", precision="fp16")
PlannedExport('tied', export, writes about 43.3 kB)
""",
    "plan_graph_dedup": """\
>>> planned = tieconv.plan_graph_dedup("graph/model.onnx")
>>> planned.plan.summary
'1 matrix is stored once'
""",
    "plan_graph_untie": """\
>>> tieconv.plan_graph_untie("graph/model.onnx").execute("graph-untied.onnx")
GraphOutcome('graph/model.onnx', untie, written to 'graph-untied.onnx')
""",
    "plan_push": """\
>>> tieconv.plan_push("out", "hf://org/name")
Push('out', 'org/name', 2 files to push)
""",
    "plan_reindex": """\
>>> tieconv.plan_reindex("sharded").execute("indexed")
Outcome('sharded', reindex, written to 'indexed')
""",
    "plan_resize": """\
>>> tieconv.plan_resize("tied", to=256).execute("resized")
Outcome('tied', resize, written to 'resized')
""",
    "plan_retie": """\
>>> planned = tieconv.plan_retie("model")
>>> print(planned)
retie model: 1 tensor dropped
  drop     lm_head.weight     12.3 kB, equal to model.embed_tokens.weight, byte for byte
  keep     20 tensors         byte for byte
  rewrite  model.safetensors  43.3 kB
  copy     2 files            909 B, unchanged
  bytes    reads 43.3 kB, writes 43.3 kB, copies 909 B
>>> planned.execute("retied")
Outcome('model', retie, written to 'retied')
""",
    "plan_set_tie": """\
>>> tieconv.plan_set_tie("false", "diverged").execute("flag-set")
Outcome('diverged', set-tie, written to 'flag-set')
""",
    "plan_untie": """\
>>> tieconv.plan_untie("tied").execute("head-stored")
Outcome('tied', untie, written to 'head-stored')
""",
    "push": """\
>>> tieconv.push(tieconv.plan_push("out", "hf://org/name")).executed
True
""",
    "Evolution": """\
>>> tieconv.analyze_revisions(".", "tied,untied")
Evolution('.', 2 revisions)
""",
    "Analysis": """\
>>> for section in tieconv.analyze("model").sections:
...     print(section.title)
Relation
Re-tying
Rows
Bias
""",
    "CheckReport": """\
>>> for model in tieconv.check(["model", "tied"]).models:
...     print(model.source, [entry.finding.rule for entry in model.open])
model ['TIE002']
tied []
""",
    "Comparison": """\
>>> for difference in tieconv.diff("tied", "diverged").tensors:
...     print(difference.name, difference.contrast)
lm_head.weight near
""",
    "Depth": """\
>>> tieconv.inspect("model", depth=tieconv.Depth.HEADER).depth
<Depth.HEADER: 'header'>
>>> [str(depth) for depth in tieconv.Depth]
['header', 'candidates', 'full']
""",
    "DestinationError": """\
>>> try:
...     tieconv.plan_retie("model").execute("tied")
... except tieconv.DestinationError as error:
...     print(error)
...     print(error.hint)
tied exists
give another out, or overwrite=True
""",
    "ExportOutcome": """\
>>> outcome = tieconv.plan_export("tied", parity=False).outcome()
>>> outcome.executed, outcome.to_dict()["schema"]
(False, 'tieconv.plan/1')
""",
    "GraphOutcome": """\
>>> tieconv.plan_graph_dedup("graph/model.onnx").outcome()
GraphOutcome('graph/model.onnx', dedup, not executed)
""",
    "Inspection": """\
>>> inspection = tieconv.inspect("model")
>>> inspection.headline, inspection.word_tie.canonical
('Tied: tie_word_embeddings is true.', 'model.embed_tokens.weight')
>>> diverged = tieconv.inspect("diverged")
>>> diverged.headline.partition(":")[0], diverged.config.verdict
('Untied in transformers 5', 'tied')
>>> print(inspection)  # the JSON of `tieconv inspect --json`
{
  "schema": "tieconv.inspect/1",
...
""",
    "MissingPackageError": """\
>>> try:
...     report = tieconv.parity("graph/model.onnx", "graph-model")
... except tieconv.MissingPackageError as error:
...     print(error.hint)  # how to install what is missing
""",
    "Outcome": """\
>>> outcome = tieconv.plan_untie("tied").execute("untied-anew")
>>> outcome.executed, outcome.verified, outcome.output
(True, True, 'untied-anew')
""",
    "Parity": """\
>>> report = tieconv.parity("graph/model.onnx", "graph-model", provider="cpu")
>>> [gate.name for gate in report.gates if not gate.passed]
[]
""",
    "PlannedWrite": """\
>>> planned = tieconv.plan_retie("model")
>>> planned
PlannedWrite('model', retie, writes 43.3 kB)
>>> planned.check("planned")  # raises what `execute` would, and writes nothing
>>> planned.execute("planned", verify="full").verified
True
""",
    "Push": """\
>>> planned = tieconv.plan_push("out", "hf://org/name")
>>> planned.pull_request, [change.name for change in planned.changes]
(True, ['config.json', 'model.safetensors'])
""",
    "RefusedError": """\
>>> try:
...     tieconv.plan_retie("diverged")
... except tieconv.RefusedError as error:
...     print(error.code)
...     print(error.hint)
retie.not-equal
keep them untied with: tieconv.plan_untie('diverged'); measure what a re-tie loses: tieconv.analyze('diverged'); \
or choose the values to keep: tieconv.plan_retie('diverged', survivor='embed', force=True) (or survivor='head')
""",
    "SettingsError": """\
>>> try:
...     tieconv.check("model", select=["TIE77"])
... except tieconv.SettingsError as error:
...     print(error.hint)
did you mean TIE007 (version-decides)? List all rules with: tieconv rules
""",
    "TieconvError": """\
>>> try:
...     tieconv.inspect("no-such-model")
... except tieconv.TieconvError as error:
...     print(error.message, error.hint, error.code, sep="; ")
no-such-model: no such file or directory; give a model directory, a weight file or an index; path.absent
""",
    "UnknownConsumerError": """\
>>> try:
...     tieconv.inspect("tied", consumers="vlm")
... except tieconv.UnknownConsumerError as error:
...     print(error.message)
unknown loader "vlm"; did you mean vllm?
""",
    "UnreadableError": """\
>>> try:
...     tieconv.inspect("tied/config.json")
... except tieconv.UnreadableError as error:
...     print(error)
tied/config.json describes a model but holds no weights
""",
}
"""By the name; doctest's `...` stands for what is left out."""

ON_THE_HUB = ("Push", "plan_push", "push")
MEASURED = ("MissingPackageError", "Parity", "export", "parity")
"""Examples that run a model through ONNX Runtime."""
