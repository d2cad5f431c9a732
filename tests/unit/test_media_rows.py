"""Rows with images from input to committed part, on the fake engine."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchwright.core.media import MediaReference, media_extras
from batchwright.core.ports import EngineSettings
from batchwright.core.records import Request
from batchwright.drafts.references import media_limits
from batchwright.drafts.signer import Signer
from batchwright.engines.fake import FakeEngine
from batchwright.engines.feeder import Supervisor
from batchwright.profile.signs import with_media
from batchwright.rundir import layout
from batchwright.rundir.clock import SystemClock
from batchwright.rundir.prepared import prompt_lengths
from batchwright.tokens.media import GUESSED_TOKENS
from batchwright.worker import Worker
from batchwright.working.committer import set_copies_apart
from tests.support.media_server import MediaServer
from tests.support.pictures import png
from tests.unit.rundir.small_runs import SmallRun, small_run, write_rows


@pytest.fixture
def server() -> Iterator[MediaServer]:
    server = MediaServer()
    server.files |= {"a.png": png(1), "b.png": png(2)}
    yield server
    server.close()


def outcomes(run: SmallRun) -> list[dict[str, Any]]:
    """Prepare, order and run; the rows of all parts, in order."""
    run.prepare()
    run.order()
    settings = EngineSettings("fake", "", max_num_seqs=4, max_model_len=8192)
    limits = media_limits(run.job, run.manifest.files)
    worker = Worker(
        run.storage, run.job, "w", SystemClock(), Supervisor(FakeEngine, settings), run.tokenizer,
        media=limits,
    )  # fmt: skip
    worker.run(threading.Event())
    found: list[dict[str, Any]] = []
    for name in run.storage.names(layout.OUTPUT):
        data = run.storage.read(f"{layout.OUTPUT}/{name}")
        found += pq.read_table(io.BytesIO(data)).to_pylist()
    return sorted(found, key=lambda row: row["row"])


def texts(rows: list[dict[str, Any]]) -> list[str]:
    assert [row["error_code"] for row in rows] == [None] * len(rows), [row["error"] for row in rows]
    return [row["text"] for row in rows]


def ask(image: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "?"}]
    return {"messages": [{"role": "user", "content": parts}]}


def test_the_same_image_from_anywhere_gives_the_same_answer(
    tmp_path: Path, server: MediaServer
) -> None:
    data = "data:image/png;base64," + base64.b64encode(png(1)).decode()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(png(1))
    (tmp_path / "data" / "b.png").write_bytes(png(2))
    sources = ["a.png", data, f"{server.url}/a.png", f"{server.url}/slow/0.3/a.png", "b.png"]
    rows = write_rows(tmp_path / "data" / "rows.jsonl", [ask(one) for one in sources])
    run = small_run(tmp_path, rows, media__allow_private_addresses=True)
    a, *same, b = texts(outcomes(run))
    assert same == [a] * 3
    assert b != a
    extras = json.loads(rows_of_extras(run)[1])
    place = ["messages", 0, "content", 0, "image_url", "url"]
    assert extras["media"] == [{"kind": "image", "at": place}], "nothing is written twice"


def test_relative_names_are_looked_up_beside_their_own_file(tmp_path: Path) -> None:
    for folder, image in (("a", 1), ("b", 2), ("c", 1)):
        write_rows(tmp_path / "data" / folder / "rows.jsonl", [ask("image.png")])
        (tmp_path / "data" / folder / "image.png").write_bytes(png(image))
    run = small_run(tmp_path, tmp_path / "data" / "*" / "*.jsonl", shared_bytes=1 << 20)
    assert len(run.manifest.splits) == 1
    a, b, c = texts(outcomes(run))
    assert a == c != b


def rows_of_extras(run: SmallRun) -> list[str]:
    names = [name for name in run.storage.names(layout.PREPARED) if name.endswith(".arrow")]
    found: list[str] = []
    for name in names:
        data = run.storage.read(f"{layout.PREPARED}/{name}")
        found += pa.ipc.open_file(data).read_all().column("extras").to_pylist()
    return found


def test_images_in_a_column_of_parquet(tmp_path: Path) -> None:
    """Bytes, the structs of Hugging Face's datasets, and lists of them."""
    (tmp_path / "a.png").write_bytes(png(1))
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {
        "plain": pa.array([png(1), png(2)], pa.binary()),
        "struct": pa.array([{"bytes": png(1)}, {"bytes": png(2)}], image),
        "paths": pa.array([{"path": "a.png"}, {"bytes": png(2)}], image),
        "lists": pa.array([[png(1)], [png(2)]], pa.list_(pa.binary())),
    }
    path = tmp_path / "rows.parquet"
    found = []
    for name, column in columns.items():
        pq.write_table(pa.table({"q": ["what?", "what?"], "pics": column}), path)
        run = small_run(
            tmp_path, path, run_dir=name, prompt__column="q", prompt__images="pics"
        )  # fmt: skip
        found.append(texts(outcomes(run)))
    assert found == [found[0]] * len(columns)
    assert found[0][0] != found[0][1], "the same words beside another image"


def test_images_in_lines_of_the_batch_format(tmp_path: Path) -> None:
    lines = [
        {"custom_id": str(row), "method": "POST", "url": "/v1/chat/completions",
         "body": ask("data:image/png;base64," + base64.b64encode(png(n)).decode())}
        for row, n in enumerate((1, 2, 1))
    ]  # fmt: skip
    one, two, again = texts(outcomes(small_run(tmp_path, lines)))
    assert one == again
    assert one != two


def test_a_bad_image_fails_its_own_row_and_no_other(tmp_path: Path, server: MediaServer) -> None:
    sources = {
        f"{server.url}/a.png": None,
        f"{server.url}/none.png": "media_not_found",
        f"{server.url}/html": "bad_media",
        f"{server.url}/endless": "media_too_large",
        f"{server.url}/drip": "media_timeout",
        f"{server.url}/cut": "media_unreachable",
        f"{server.url}/b.png": None,
    }
    run = small_run(
        tmp_path, [ask(one) for one in sources], media__allow_private_addresses=True,
        media__timeout_s=0.5, media__retries=0, media__max_bytes=100_000,
        run__stop_at_failed=1.0,
    )  # fmt: skip
    rows = outcomes(run)
    assert [row["error_code"] for row in rows] == list(sources.values())
    assert [row["status"] for row in rows] == [
        "ok" if not code else "failed" for code in sources.values()
    ]


def test_rows_with_the_same_words_and_other_images_are_no_copies() -> None:
    extras = json.dumps(
        media_extras([MediaReference("image", at=("pics",))], 9), separators=(",", ":")
    )
    rows = [Request(row, [1, 2], 4, '{"temperature":0.0}', extras) for row in (0, 1)]
    firsts, copies = set_copies_apart(rows)
    assert [one.row for one in firsts] == [0, 1]
    assert copies == {}


def test_images_count_in_lengths_before_and_after_preparing(tmp_path: Path) -> None:
    """The fake model's images are guessed to be 1,024 tokens each."""
    rows = write_rows(tmp_path / "data" / "rows.jsonl", [ask("a.png"), {"prompt": "four"}])
    run = small_run(tmp_path, rows)
    (receipt,) = run.prepare()
    run.order()
    words = len("user: <image>\n?\nassistant:")
    assert receipt.prompt_tokens == words + GUESSED_TOKENS["image"] + len("four")
    (batch,) = run.batches()
    (chunk,) = batch.chunks
    lengths = prompt_lengths(run.storage, chunk.slices)
    assert lengths.tolist() == [words + GUESSED_TOKENS["image"], 4]
    signs = Signer(run.manifest, run.job, run.tokenizer, None, 16)
    (found,) = signs.split(0)
    assert found.tokens.tolist() == found.full.tolist() == lengths.tolist()


def test_equal_rows_are_those_with_equal_images() -> None:
    def extras(*references: MediaReference) -> str:
        return orjson.dumps(media_extras(references, 3)).decode()

    a, b = (MediaReference("image", f"/{name}.png") for name in "ab")
    own = MediaReference("image", at=("pics",))
    texts = with_media(
        ["{}"] * 6, [extras(a), extras(a), extras(b), extras(own), extras(own), None]
    )
    assert texts[0] == texts[1]
    assert len(set(texts)) == 5
