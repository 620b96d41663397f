"""A run without some packages skips what needs them and says so; it never hides a bug in tieconv."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import optional

pytest_plugins = ["pytester"]
PLUGIN = "from tests.optional import *  # noqa\n"
IMPORTS = "import nowhere_to_be_found.inside\ndef test_it(): pass\n"
CALLS = """
import pytest
def test_it():
    import nowhere_to_be_found
@pytest.fixture
def made():
    import nowhere_to_be_found
def test_fixture(made): pass
@pytest.mark.needs("nowhere_to_be_found")
def test_marked(): raise AssertionError
def test_other():
    import somewhere_else_to_be_found
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeconftest(PLUGIN)
    pytester.makeini("[pytest]\nmarkers =\n    needs: packages")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return pytester


def test_an_absent_package_skips_with_a_reason(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """At import, in a test, in a fixture and by marker; another package that is missing still fails."""
    monkeypatch.setenv("TIECONV_WITHOUT", "torch nowhere_to_be_found")
    suite.makepyfile(test_imports=IMPORTS, test_calls=CALLS)
    result = suite.runpytest_subprocess("-ra", "-p", "no:randomly", "-p", "no:xdist")
    result.assert_outcomes(skipped=4, failed=1)
    assert str(result.stdout).count("needs the package nowhere_to_be_found") >= 2


def test_without_the_variable_nothing_is_skipped(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that should be there is an error."""
    monkeypatch.delenv("TIECONV_WITHOUT", raising=False)
    suite.makepyfile(test_imports=IMPORTS, test_calls=CALLS)
    result = suite.runpytest_subprocess("-p", "no:randomly", "-p", "no:xdist", "--continue-on-collection-errors")
    result.assert_outcomes(errors=2, failed=3)


def test_an_import_by_tieconv_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base needs no framework: where tieconv's own frame is on the way, the failure stands."""
    monkeypatch.setenv("TIECONV_WITHOUT", "torch")
    test, own = optional.ROOT / "tests" / "x.py", optional.ROOT / "tieconv" / "api.py"
    assert optional._skips("torch", [test])
    assert not optional._skips("torch", [test, own]) and not optional._skips("onnx", [test])
