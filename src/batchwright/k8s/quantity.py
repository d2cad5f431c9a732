"""Quantities as Kubernetes writes them: 500m, 16, 64Gi."""

from __future__ import annotations

import math
import re
from decimal import Decimal

GIB = 1 << 30

_PARTS = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(value: object) -> Decimal | None:
    """The number that a quantity stands for; None if it is not one."""
    found = _PARTS.fullmatch(str(value))
    if found is None or isinstance(value, bool):
        return None
    number, exponent, suffix = Decimal(found[1]), found[2], found[3] or ""
    if exponent:
        return number.scaleb(int(exponent[1:]))
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    return number.scaleb(_DECIMAL[suffix])


def times(value: str, count: int) -> str:
    """A quantity so many times, with the same suffix."""
    found = _PARTS.fullmatch(value)
    assert found is not None, "checked when the job file was read"
    product = (Decimal(found[1]) * count).normalize()
    return f"{product:f}{found[3] or ''}"


def gibibytes(size_bytes: float) -> str:
    """Bytes as whole Gi, rounded up."""
    return f"{math.ceil(size_bytes / GIB)}Gi"
