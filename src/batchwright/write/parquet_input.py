"""The input's own columns, kept as a struct: made plain for Parquet, and for JSON."""

from __future__ import annotations

import base64
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_TICKS_A_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}

# From 1970: the years that have four digits.
_FIRST_DAY = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY = date(9999, 12, 31).toordinal() - date(1970, 1, 1).toordinal()


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, which are numbered differently in every part."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def to_json_values(array: pa.Array) -> list[Any]:
    """Values that orjson can write: times as ISO text, decimals as text, bytes in base64."""
    return list(_jsonable(array).to_pylist())


def _jsonable(array: pa.Array) -> pa.Array:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _jsonable(array.storage)
    if pa.types.is_dictionary(kind):
        return _jsonable(array.cast(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list(array, array.flatten())
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return _list(array, entries)
    return _leaf(array)


def _struct(array: pa.StructArray) -> pa.Array:
    if not array.type.num_fields:
        return array
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    children = [_jsonable(child) for child in array.flatten()]
    return pa.StructArray.from_arrays(children, names, mask=array.is_null())


def _list(array: pa.Array, items: pa.Array) -> pa.Array:
    missing = array.is_null()
    lengths = pc.fill_null(_lengths(array), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), _jsonable(items), mask=missing)


def _lengths(array: pa.Array) -> pa.Array:
    if pa.types.is_map(array.type):
        offsets = array.offsets.to_numpy()
        return pa.array(offsets[1:] - offsets[:-1])
    return pc.list_value_length(array)


def _leaf(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _with_far_times(array, _iso(array), kind.unit)
    if pa.types.is_date(kind):
        unit = "D" if pa.types.is_date32(kind) else "ms"
        return _with_far_times(array, array.cast(pa.string()), unit)
    if pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return array.cast(pa.string())
    if pa.types.is_duration(kind):
        return pa.array([_iso_duration(v, kind.unit) for v in array.cast(pa.int64()).to_pylist()])
    if _is_binary(kind):
        return pa.array([_base64(value) for value in array.to_pylist()], pa.large_string())
    return array


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in (*tests, pa.types.is_binary_view))


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _iso(array: pa.Array) -> pa.Array:
    # Arrow writes a space where ISO 8601 has a T, and +0100 where it has +01:00.
    text = pc.replace_substring(array.cast(pa.string()), " ", "T", max_replacements=1)
    return (
        pc.replace_substring_regex(text, r"([+-]\d\d)(\d\d)$", r"\1:\2") if array.type.tz else text
    )


def _with_far_times(array: pa.Array, texts: pa.Array, unit: str) -> pa.Array:
    """The texts, with those of years that have not four digits made anew.

    Arrow writes `<value out of range>` for some of these, and for others a wrong year. They are in
    UTC where the type has a zone, with the sign that ISO 8601 asks for.
    """
    if unit == "ns":  # ends in the year 2262
        return texts
    ticks = array.cast(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64())
    day = _TICKS_A_DAY[unit]
    far = pc.or_(pc.less(ticks, _FIRST_DAY * day), pc.greater(ticks, _LAST_DAY * day + day - 1))
    far = pc.fill_null(far, False)  # noqa: FBT003
    if not pc.any(far).as_py():
        return texts
    zone = "Z" if getattr(array.type, "tz", None) else ""
    days = pa.types.is_date(array.type)
    # The least number is no time to numpy.
    counts = np.maximum(ticks.filter(far).to_numpy(), np.iinfo(np.int64).min + 1)
    moments = counts.astype(f"datetime64[{unit}]")
    written = np.datetime_as_string(moments.astype("datetime64[D]") if days else moments)
    signed = [one if one.startswith("-") else f"+{one}" for one in written.tolist()]
    return pc.replace_with_mask(texts, far, pa.array([one + zone for one in signed], texts.type))


def _iso_duration(count: int | None, unit: str) -> str | None:
    if count is None:
        return None
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    whole, rest = divmod(abs(count), 10**digits)
    fraction = f".{rest:0{digits}d}".rstrip("0").rstrip(".") if digits else ""
    return f"{'-' if count < 0 else ''}PT{whole}{fraction}S"
