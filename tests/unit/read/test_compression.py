from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from batchwright.core.errors import InputError
from batchwright.read.compression import compression_of
from tests.unit.read.helpers import read, records, until_error, write

ROWS = [{"id": number, "text": f"row {number} {number * 7919}"} for number in range(200)]
TEXT = "".join(f'{{"id": {r["id"]}, "text": "{r["text"]}"}}\n' for r in ROWS).encode()
HALF = TEXT.index(b'{"id": 100,') + 5
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def test_the_content_says_what_is_compressed_not_the_name(tmp_path: Path) -> None:
    assert records(read(write(tmp_path / "gzip.jsonl", gzip.compress(TEXT)))) == ROWS
    assert records(read(write(tmp_path / "zstd.jsonl", zst(TEXT)))) == ROWS
    assert records(read(write(tmp_path / "plain.jsonl.gz", TEXT))) == ROWS
    assert records(read(write(tmp_path / "a.json.zst", gzip.compress(TEXT)))) == ROWS


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(TEXT[:HALF]) + gzip.compress(b"") + gzip.compress(TEXT[HALF:]),
        gzip.compress(TEXT) + b"\0" * 300_000,
        zst(TEXT[:HALF]) + SKIPPABLE + zst(TEXT[HALF:]),
        SKIPPABLE + zst(TEXT),
    ],
    ids=["gzip members", "gzip padding", "zstd frames", "zstd skippable first"],
)
def test_all_members_are_read(tmp_path: Path, data: bytes) -> None:
    assert records(read(write(tmp_path / "a.jsonl.gz", data))) == ROWS


@pytest.mark.parametrize(("pack", "kind"), [(gzip.compress, "gzip"), (zst, "zstd")])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".json"])
def test_a_cut_file_gives_its_rows_and_then_an_error(
    tmp_path: Path, suffix: str, pack: object, kind: str
) -> None:
    assert callable(pack)
    data = {
        ".jsonl": TEXT,
        ".csv": b"id,text\n" + b"".join(b"%d,some text\n" % number for number in range(200)),
        ".json": b"[" + b",".join(TEXT.splitlines()) + b"]",
    }[suffix]
    # Two members, the second cut: what the first holds is surely there.
    half = len(data) // 2
    path = write(tmp_path / f"a{suffix}", pack(data[:half]) + pack(data[half:])[:-9])
    for batch_rows in (7, 4096):
        found, error = until_error(path, batch_rows=batch_rows)
        assert len(found) >= 90
        assert error.message.startswith(f"{path}: truncated {kind} after {len(found)} rows")


def test_damage_and_foreign_data_are_errors(tmp_path: Path) -> None:
    found, error = until_error(write(tmp_path / "a.jsonl", gzip.compress(TEXT) + b"garbage"))
    assert len(found) == 200
    assert "other data behind the gzip data after 200 rows" in error.message
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 1
    assert "damaged gzip" in until_error(write(tmp_path / "b.jsonl", bytes(packed)))[1].message
    assert (
        "damaged zstd" in until_error(write(tmp_path / "c.jsonl", zst(TEXT) + b"junk"))[1].message
    )


def test_other_compressions_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bzip2"):
        compression_of(write(tmp_path / "a", b"BZh91AY"))
    with pytest.raises(InputError, match="Excel"):
        read(write(tmp_path / "a.csv", b"PK\x03\x04rest"))
