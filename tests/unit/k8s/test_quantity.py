"""Quantities are read as Kubernetes reads them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from batchwright.k8s.quantity import gibibytes, parse_quantity, times


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", Decimal("0.5")), ("16", Decimal(16)), ("64Gi", Decimal(64 << 30)), ("1e3", Decimal(1000)),
        ("1.5Ki", Decimal(1536)), ("2G", Decimal(2 * 10**9)), (4, Decimal(4)), ("10E", Decimal(10**19)),
    ],
)  # fmt: skip
def test_a_quantity_is_a_number(text: object, number: Decimal) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["4 GB", "4GB", "", "Gi", "1k5", None, True, "4gi"])
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert parse_quantity(text) is None


def test_quantities_are_multiplied_and_rounded_up() -> None:
    assert [times("8", 4), times("1.5Gi", 2), times("500m", 3), times("100Gi", 10)] == [
        "32", "3Gi", "1500m", "1000Gi",
    ]  # fmt: skip
    assert gibibytes((45 << 30) + 1) == "46Gi"
