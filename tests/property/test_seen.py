"""SeenIds equals a dictionary, whatever the batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.plan.seen import SeenIds

IDS = st.one_of(st.integers(0, 12).map(str), st.text(max_size=2))
BATCHES = st.lists(st.lists(IDS, max_size=12), max_size=12)


@settings(max_examples=200, deadline=None)
@given(BATCHES, st.integers(1, 5))
def test_repeats_are_those_of_a_dictionary(batches: list[list[str]], gap: int) -> None:
    seen, oracle = SeenIds(), dict[str, int]()
    row = 0
    for batch in batches:
        numbers = np.arange(row, row + gap * len(batch), gap, dtype=np.int64)
        expected = []
        for index, (name, number) in enumerate(zip(batch, numbers.tolist(), strict=True)):
            if oracle.setdefault(name, number) != number:
                expected.append((index, oracle[name]))
        assert seen.add(batch, numbers) == expected
        row += gap * len(batch) + 1
