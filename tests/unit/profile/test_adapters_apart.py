from __future__ import annotations

import numpy as np

from batchwright.profile.blocks import adapters_apart, block_signatures
from batchwright.profile.signs import RowSigns, make_signs

ONE, TWO = '{"adapter":"one"}', '{"adapter":"two"}'


def signs(extras: list[str | None]) -> RowSigns:
    """Rows with the very same prompt of two blocks."""
    rows = len(extras)
    return make_signs(
        ids=[None] * rows,
        codes=[None] * rows,
        full=np.full(rows, 8, dtype=np.int32),
        token_ids=np.tile(np.arange(8, dtype=np.int32), rows),
        offsets=np.arange(0, 8 * rows + 1, 8),
        max_tokens=[5] * rows,
        sampling=["{}"] * rows,
        scripts=np.full(rows, -1, dtype=np.int8),
        block_size=4,
        extras=extras,
    )


def test_rows_of_different_adapters_share_nothing() -> None:
    found = signs([None, ONE, TWO, ONE, None, '{"tools":[1]}'])
    prefixes = [tuple(row) for row in found.blocks.values.reshape(6, 2).tolist()]
    digests = [tuple(row) for row in found.digests.tolist()]
    for keys in (prefixes, digests):
        assert keys[1] == keys[3]
        assert keys[0] == keys[4] == keys[5]
        assert len(set(keys)) == 3
    assert not set(prefixes[0]) & set(prefixes[1])


def test_without_adapters_the_signatures_are_what_they_were() -> None:
    ids, offsets = np.arange(8, dtype=np.int32), np.array([0, 8])
    assert adapters_apart([None, '{"tools":[1]}']) is None
    assert adapters_apart([]) is None
    plain = block_signatures(ids, offsets, 4).values
    assert plain.tolist() == signs([None]).blocks.values.tolist()
    assert plain.tolist() == signs([None, ONE]).blocks.values[:2].tolist()
