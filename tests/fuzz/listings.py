"""An object store and a Hub whose listings are those of a case, in a process that knows no other endpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path

from tests.fuzz import hub
from tests.fuzz.case import Case
from tests.fuzz.targets.listing_target import STORE
from tests.objects.conftest import variables
from tests.objects.stub import LIST, Fault, Store, start


@lru_cache(maxsize=1)
def _store() -> Store:
    from tieconv.sources.objects import client as object_client

    store, _ = start()
    os.environ |= variables(store, Path(tempfile.gettempdir()))
    object_client.SILENCE, object_client.RETRIES, object_client.PAGE_SECONDS = timedelta(seconds=1), 1, 2.0
    return store


@contextmanager
def served(case: Case) -> Iterator[None]:
    """Serve the files of a case as ``s3://bucket/m`` and ``hf://org/model``, with its pages."""
    with hub.served(case):
        store = _store()
        store.requests.clear()
        store.objects = {f"m/{name}": data for name, data in case.files.items()}
        page = case.answers.get(STORE)
        store.faults = {LIST: Fault("malformed", value=page.decode("utf-8", "replace"))} if page else {}
        yield
