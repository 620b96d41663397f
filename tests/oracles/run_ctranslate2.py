"""Convert each job's model with the converter of CTranslate2, and report its embedding and head.

The interpreter needs ctranslate2, torch, transformers and numpy. The converter loads the model with transformers and
copies its tensors into a specification; its tables are the evidence.
"""

from __future__ import annotations

from typing import Any

import numpy
import observe

Job = dict[str, Any]


def answer(job: Job) -> dict[str, Any]:
    """Return the observation of one job."""
    from ctranslate2.converters import TransformersConverter

    decoder = TransformersConverter(job["folder"])._load().decoder
    tables = decoder.embeddings
    embedding = _array((tables[0] if isinstance(tables, list) else tables).weight)
    head, bias = _array(decoder.projection.weight), getattr(decoder.projection, "bias", None)
    values = None if bias is None or isinstance(bias, str) else _array(bias)
    # The file of CTranslate2 stores equal tensors once: two tables of equal values cannot be told apart.
    alone = not job["stored"]["embedding"] or job["stored"]["head"] == "absent"
    equal = numpy.array_equal(embedding, head)
    return observe.from_tables(job, embedding, head, equal and (alone or None), values)


def _array(value: Any) -> numpy.ndarray:
    tensor = getattr(value, "tensor", value)
    return tensor.detach().float().numpy() if hasattr(tensor, "detach") else numpy.asarray(tensor, numpy.float32)


if __name__ == "__main__":
    observe.serve_with_transformers(answer)
