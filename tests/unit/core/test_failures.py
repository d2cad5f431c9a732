from __future__ import annotations

import pytest

from batchwright.core.errors import ROW_CODES
from batchwright.core.failures import (
    MAX_PATTERNS,
    OTHER,
    Failure,
    group_failures,
    in_all,
    pattern_of,
)
from batchwright.core.remedies import REMEDIES


def refused(row: int, message: str) -> Failure:
    return Failure(row, "failed", "engine_refused", message)


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("the prompt has 4,120 tokens, 4096 fit", "the prompt has # tokens, # fit"),
        ("unknown field 'colour' in row 7", "unknown field '…' in row #"),
        ('no "name" here', 'no "…" here'),
        ("the row's own schema isn't one", "the row's own schema isn't one"),
        ("GET https://x.org/a?b=1 gave 404", "GET URL gave #"),
        ("no such file: /data/pics/a 1.png", "no such file: PATH #.png"),
        ("request 5f3a9c1d-77aa-4b1e-9a55-0123456789ab lost", "request # lost"),
        ("first\nsecond 2", "first"),
    ],
)
def test_a_pattern_leaves_out_what_differs(message: str, pattern: str) -> None:
    assert pattern_of(message) == pattern


def test_failures_that_are_alike_are_one_group_the_largest_first() -> None:
    groups = group_failures(
        [
            Failure(9, "rejected", "bad_json", "at column 3"),
            *(refused(row, f"too long: {row}") for row in (50, 3, 40, 20, 30, 10, 60)),
            refused(4, "other"),
        ]
    )
    assert [(one.code, one.count) for one in groups] == [
        ("engine_refused", 7), ("bad_json", 1), ("engine_refused", 1),
    ]  # fmt: skip
    assert groups[0].rows == (3, 10, 20, 30, 40)
    assert groups[0].example == "too long: 3"
    assert groups[0].pattern == "too long: #"
    assert groups[0].remedy == REMEDIES["engine_refused"]
    assert groups[0].exact


def test_messages_that_all_differ_do_not_fill_memory() -> None:
    words = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(300)]
    groups = group_failures(refused(row, f"because {word}") for row, word in enumerate(words))
    assert len(groups) == MAX_PATTERNS + 1
    assert (groups[0].pattern, groups[0].count) == (OTHER, 300 - MAX_PATTERNS)
    assert sum(one.count for one in groups) == 300


def test_a_part_of_the_failures_stands_for_all() -> None:
    seen = group_failures([refused(1, "a"), refused(2, "a"), refused(3, "b")])
    estimated = in_all(seen, {"engine_refused": 300})
    assert [(one.count, one.exact) for one in estimated] == [(200, False), (100, False)]
    by_sum = in_all(seen, None, 30)
    assert [one.count for one in by_sum] == [20, 10]


def test_every_code_has_a_remedy() -> None:
    assert REMEDIES.keys() == ROW_CODES.keys()
