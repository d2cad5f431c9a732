from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from batchwright.core.workload import LengthHistogram
from batchwright.profile.histogram import log_bins, svg_histogram, text_histogram


def some() -> LengthHistogram:
    lengths = np.random.default_rng(0).lognormal(5, 1, 3000).astype(int) + 1
    return LengthHistogram.of(lengths.tolist())


@pytest.mark.parametrize("lengths", [[5], [1, 2, 3], [0, 1, 100_000], [7, 7, 8], [1, 1 << 20]])
def test_bins_hold_every_row_once(lengths: list[int]) -> None:
    bins = log_bins(LengthHistogram.of(lengths))
    for one in bins:
        assert one.rows == sum(one.low <= length <= one.high for length in lengths)
    assert sum(one.rows for one in bins) == len(lengths)
    assert [a.high + 1 for a in bins[:-1]] == [b.low for b in bins[1:]]


def test_text_has_a_bar_a_count_and_a_share_per_line() -> None:
    lines = text_histogram(some())
    assert 10 <= len(lines) <= 16
    assert max(line.count("█") for line in lines) == 40
    assert sum(int(line.split()[-2].replace(",", "")) for line in lines) == 3000
    assert all(line.endswith("%") for line in lines)
    assert len({len(line) for line in lines}) == 1


def test_svg_is_well_formed_and_without_scripts() -> None:
    drawing = svg_histogram(some(), "Tokens of <a & b>")
    root = ET.fromstring(drawing)
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert texts[0] == "Tokens of <a & b>"
    assert {"rows", "prompt tokens (logarithmic)"} <= set(texts)
    assert len(list(root.iter(f"{space}rect"))) > 16
    assert "script" not in drawing
    assert "background" not in drawing


def test_no_rows() -> None:
    assert text_histogram(LengthHistogram()) == []
    ET.fromstring(svg_histogram(LengthHistogram()))
