from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.read import compression, jsonl
from batchwright.read.jsonl import read_jsonl
from tests.unit.read.helpers import codes, kept, lines, read, records, write

BOM = b"\xef\xbb\xbf"


def test_a_leading_bom_is_dropped_on_any_line_and_nowhere_else(tmp_path: Path) -> None:
    data = BOM + b'{"id": 1}\n{"id": 2}\n' + BOM + '{"id": "a\ufeffb"}\n'.encode()
    batches = read(write(tmp_path / "a.jsonl", data))
    assert records(batches) == [{"id": 1}, {"id": 2}, {"id": "a\ufeffb"}]
    assert kept(batches) == ['{"id": 1}', '{"id": 2}', '{"id": "a\ufeffb"}']


def test_blank_lines_are_no_rows_but_count(tmp_path: Path) -> None:
    data = '\n{"a": 1}\n  \t\n\r\n{"a": 2}\n{"a": \n\n\n'
    batches = read(write(tmp_path / "a.jsonl", data))
    assert records(batches) == [{"a": 1}, {"a": 2}, None]
    assert lines(batches) == [2, 5, 6]
    assert codes(batches) == [(6, "bad_json")]
    assert batches[-1].num_lines == 8


def test_only_blank_lines_give_no_rows_but_are_counted(tmp_path: Path) -> None:
    (batch,) = read(write(tmp_path / "a.jsonl", "\n \n\n"))
    assert (batch.records, batch.num_lines) == ([], 3)
    assert read(write(tmp_path / "empty.jsonl", "")) == []


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_ends_of_lines(tmp_path: Path, end: str) -> None:
    data = '{"a": "x\\r\\ny"}\r\n{"a": "\u2028\x85"}' + end
    batches = read(write(tmp_path / "a.jsonl", data))
    assert kept(batches) == ['{"a": "x\\r\\ny"}', '{"a": "\u2028\x85"}']
    assert batches[-1].num_lines == 2


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (b'{"a": 1} {"b": 2}', "bad_json", "extra data after the object at column 10"),
        (b'{"a": 1}\r{"b": 2}', "bad_json", "extra data after the object"),
        (b'{"a": 1', "bad_json", "pretty-printed"),
        (b'{"a": nope}', "bad_json", "column 7"),
        (b"hello", "bad_json", "Expecting value"),
        (b'{"a": ' * 100_000, "bad_json", "nested too deeply"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "bad_json", "digits"),
        (b'{"a": "\xff"}', "bad_unicode", "byte 8 of the line is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "bad_unicode", "not UTF-8"),
        (b'{"\\udc00": 1}', "bad_unicode", "lone surrogate U+DC00"),
        (b"[1]", "not_an_object", "a list"),
        (b"1", "not_an_object", "a number"),
        (b'"a"', "not_an_object", "text"),
        (b"null", "not_an_object", "null"),
        (b"true", "not_an_object", "a boolean"),
        (b"NaN", "not_an_object", "a number"),
    ],
)
def test_a_bad_line_is_one_bad_row(tmp_path: Path, line: bytes, code: str, message: str) -> None:
    data = b'{"id": 1}\n' + line + b'\n{"id": 3}\n'
    batches = read(write(tmp_path / "a.jsonl", data))
    assert records(batches) == [{"id": 1}, None, {"id": 3}]
    assert codes(batches) == [(2, code)]
    assert message in batches[0].problems[1][1]


def test_nan_and_infinity_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"a": NaN}\n{"a": -Infinity}\n{"a": 1e999}\n')
    first, second, third = records(read(path))
    assert first is not None
    assert math.isnan(first["a"])
    assert (second, third) == ({"a": -math.inf}, {"a": math.inf})
    assert kept(read(path))[0] == '{"a": NaN}'


@pytest.mark.parametrize(
    "number",
    [2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**19, 10**30, -(10**40)],
)
def test_no_digit_of_an_integer_is_lost(tmp_path: Path, number: int) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"id": 1}}\n{{"id": {number}}}\n')
    assert records(read(path)) == [{"id": 1}, {"id": number}]
    assert kept(read(path))[1] == f'{{"id": {number}}}'


def test_what_is_kept_is_the_line_itself(tmp_path: Path) -> None:
    line = ' {"b": 1.10, "a": 0.12345678901234567890123, "e": "\\u00e9"} '
    assert kept(read(write(tmp_path / "a.jsonl", line + "\r\n"))) == [line]


CUT_DATA = (
    BOM + b'{"id": 0}\r\n\n{"id": 1, "p": "' + b"x" * 70 + b'"}\n\n \n{"id": 2\n'
    b'{"id": 3}\r\n{"id": 4}\n\n{"id": 5}'
)


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n", b"\n\n"])
def test_every_cut_reads_each_line_once(tmp_path: Path, tail: bytes) -> None:
    path = write(tmp_path / "a.jsonl", CUT_DATA + tail)
    whole = read(path)
    physical = whole[-1].num_lines
    for split_bytes in range(1, 129):
        batches = read(path, split_bytes=split_bytes)
        assert records(batches) == records(whole)
        assert kept(batches) == kept(whole)
        assert len(codes(batches)) == 1
    for split_bytes in (1, 7, 64):
        assert _physical_lines(path, split_bytes) == (lines(whole), physical)


def _physical_lines(path: str, split_bytes: int) -> tuple[list[int], int]:
    found: list[int] = []
    before = 0
    size = Path(path).stat().st_size
    for start in range(0, size, split_bytes):
        batches = list(read_jsonl(path, start, min(start + split_bytes, size), 2))
        found += [before + line for line in lines(batches)]
        before += batches[-1].num_lines if batches else 0
    return found, before


def test_blocks_and_batches_may_end_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", CUT_DATA)
    whole = read(path)
    for block in (1, 2, 3, 10, 64):
        monkeypatch.setattr(jsonl, "BLOCK", block)
        monkeypatch.setattr(compression, "BLOCK", block)
        batches = read(path, split_bytes=50, batch_rows=2)
        assert records(batches) == records(whole)
        assert max(len(batch.records) for batch in batches) <= 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["", " ", '{"a": 1}', '{"b": "é\\n"}', "oops", "[]", "\r"])),
    st.integers(1, 40),
    st.booleans(),
)
def test_any_cut_of_any_lines(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], split_bytes: int, final: bool
) -> None:
    data = "\n".join(texts) + ("\n" if final else "")
    path = write(tmp_path_factory.mktemp("cut") / "a.jsonl", data)
    expected = [number for number, text in enumerate(texts, 1) if text.strip()]
    assert _physical_lines(path, split_bytes)[0] == expected
    good = [json.loads(text) for text in texts if text.startswith("{")]
    assert [record for record in records(read(path)) if record is not None] == good


@pytest.mark.parametrize("as_array", [False, True])
def test_half_a_pair_of_surrogates_leaves_the_row_its_id(tmp_path: Path, as_array: bool) -> None:
    """Texts that were cut in the middle of an emoji are common."""
    line = '{"id": 90071992547409931234, "a": ["x\\ud83d"], "b": "\\ud83d\\ude00"}'
    data = f"[{line}]" if as_array else line
    batches = read(write(tmp_path / ("a.json" if as_array else "a.jsonl"), data))
    row = records(batches)[0]
    assert row == {"id": 90071992547409931234, "a": ["x\ufffd"], "b": "😀"}
    assert batches[0].problems[0] == ("bad_unicode", "lone surrogate U+D83D in the text")
    assert kept(batches)[0] == line
