"""Every case of the table in `docs/testing.md` is accounted for: tests name it where it says, or it says why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "docs" / "testing.md").read_text(encoding="utf-8")
ROWS = {row[1]: row[2].strip() for row in re.finditer(r"^\| ([A-G]\d\d) \| \S+#\d+ \| (.+) \|$", TEXT, re.MULTILINE)}
COUNTS = {"A": 11, "B": 9, "C": 26, "D": 10, "E": 17, "F": 14, "G": 14}
MUST_BE_TESTED = "ACDG"


def _named() -> dict[str, set[str]]:
    """The files that name a case, by its id."""
    named: dict[str, set[str]] = {}
    for file in TESTS.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        ids = re.findall(r"(?<!\w)([A-G]\d\d)(?!\w)", text) + re.findall(r"def test_([a-g]\d\d)_", text)
        for each in ids:
            named.setdefault(each.upper(), set()).add(str(file.relative_to(TESTS)))
    return named


NAMED = _named()


def test_no_case_is_left_out_and_none_is_made_up() -> None:
    expected = [f"{kind}{number:02}" for kind, count in COUNTS.items() for number in range(1, count + 1)]
    assert list(ROWS) == expected
    assert NAMED.keys() <= ROWS.keys()


@pytest.mark.parametrize("case", ROWS)
def test_it_is_tested_where_the_table_says_or_does_not_apply(case: str) -> None:
    files = set(re.findall(r"`([\w/]+\.py)`", ROWS[case]))
    assert files == NAMED.get(case, set())
    if not files:
        assert ROWS[case].startswith("does not apply: ")
        assert case[0] not in MUST_BE_TESTED
