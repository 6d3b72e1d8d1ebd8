"""Every seeded bug of `make mutants` still applies, is Python and names tests that exist. `make mutants` says which are found."""

from __future__ import annotations

import ast

import pytest

from ._list import ROOT, Mutant, read_mutants


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: mutant.name)
def test_a_seeded_bug_applies(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    changed = mutant.applied(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name.partition('[')[0]}(" in text, test


def test_a_pattern_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected its pattern once in x\.py, found it 2 times"):
        Mutant("m", "x.py", "a", "b", ()).applied("a a")
