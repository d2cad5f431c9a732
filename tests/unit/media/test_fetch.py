from __future__ import annotations

import base64
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batchwright.core.media import Media, MediaLimits, MediaReference, find_inline
from batchwright.media import addresses
from batchwright.media.content import check_media
from batchwright.media.fetch import fetch
from batchwright.media.http import fetch_url
from batchwright.media.inline import inline_bytes
from batchwright.media.problems import MediaProblem
from tests.support.media_server import MediaServer
from tests.support.pictures import bomb, png, wav

OPEN = MediaLimits(timeout_s=5.0, retries=0, max_bytes=100_000, allow_private_addresses=True)


@pytest.fixture(scope="module")
def server() -> Iterator[MediaServer]:
    server = MediaServer()
    server.files["a.png"] = png(1)
    yield server
    server.close()


def get(reference: MediaReference, limits: MediaLimits = OPEN, row: Any = None) -> Media:
    return fetch(reference, limits, partial(find_inline, row), lambda _: False)


def problem(source: str, limits: MediaLimits = OPEN) -> MediaProblem:
    with pytest.raises(MediaProblem) as caught:
        get(MediaReference("image", source), limits)
    return caught.value


def test_a_picture_comes_over_http_also_after_a_redirect(server: MediaServer) -> None:
    for url in (f"{server.url}/a.png", f"{server.url}/to?/a.png", f"{server.url}/to?/to?/a.png"):
        assert get(MediaReference("image", url)) == Media("image", "image/png", png(1))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/none.png", "media_not_found"),
        ("/status/410", "media_not_found"),
        ("/status/403", "media_unreachable"),
        ("/status/500", "media_unreachable"),
        ("/html", "bad_media"),
        ("/packed", "bad_media"),
        ("/cut", "media_unreachable"),
        ("/endless", "media_too_large"),
        ("/announced", "media_too_large"),
        ("/loop", "media_unreachable"),
        ("/to?ftp://127.0.0.1/x", "media_forbidden"),
        ("/to?file:///etc/passwd", "media_forbidden"),
    ],
)
def test_what_servers_do_has_its_code(server: MediaServer, path: str, code: str) -> None:
    assert problem(server.url + path).code == code


@pytest.mark.parametrize("path", ["/drip", "/slow/2/a.png"])
def test_a_slow_answer_ends_at_the_timeout(server: MediaServer, path: str) -> None:
    begin = time.monotonic()
    assert problem(server.url + path, replace(OPEN, timeout_s=0.3)).code == "media_timeout"
    assert time.monotonic() - begin < 1.5


def test_a_failure_that_may_pass_is_tried_again(server: MediaServer) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    url = MediaReference("image", f"{server.url}/flaky/a.png")
    found = fetch(url, replace(OPEN, retries=2), partial(find_inline, None), pause)
    assert found.data == png(1)
    assert len(pauses) == 2
    server.asked.clear()
    assert problem(f"{server.url}/none.png", replace(OPEN, retries=2)).code == "media_not_found"
    assert server.asked["/none.png"] == 1, "what is not there is not asked for again"


def test_this_machine_is_not_asked_by_default(server: MediaServer) -> None:
    server.asked.clear()
    closed = replace(OPEN, allow_private_addresses=False)
    for url in (f"{server.url}/a.png", "http://localhost:1/", "http://169.254.169.254/latest"):
        assert problem(url, closed).code == "media_forbidden"
    assert not server.asked


def test_a_redirect_into_the_private_network_is_not_followed(
    server: MediaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server counts as public here; where it sends us does not."""
    real = addresses.why_forbidden
    monkeypatch.setattr(
        addresses, "why_forbidden", lambda ip: None if ip == "127.0.0.1" else real(ip)
    )
    closed = replace(OPEN, allow_private_addresses=False)
    for target in ("http://169.254.169.254/latest/meta-data", "http://127.0.0.2/", "//10.0.0.1/"):
        found = problem(f"{server.url}/to?{target}", closed)
        assert found.code == "media_forbidden", found


def test_the_address_that_was_checked_is_the_one_that_is_asked(
    server: MediaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: each further look-up would lead elsewhere."""
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def answer(host: Any, *rest: Any, **named: Any) -> Any:
        if host == "rebind.example":
            looked_up.append(host)
            host = "127.0.0.1" if len(looked_up) == 1 else "127.0.0.9"
        return real(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    port = server.url.rpartition(":")[2]
    assert fetch_url(f"http://rebind.example:{port}/a.png", OPEN) == png(1)
    assert looked_up == ["rebind.example"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(1))
    (tmp_path / "secret.png").write_bytes(png(9))
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "in.png").symlink_to(folder / "a.png")
    (folder / "large.png").write_bytes(png(1) + b"x" * 200_000)
    os.mkfifo(folder / "pipe.png")
    return folder


def test_files_below_the_allowed_folders_are_read(folder: Path) -> None:
    limits = replace(OPEN, allowed_roots=(str(folder),))
    for name in ("a.png", "in.png"):
        assert get(MediaReference("image", str(folder / name)), limits).data == png(1)
    codes = {"out.png": "media_forbidden", "none.png": "media_not_found", "pipe.png": "bad_media",
             "large.png": "media_too_large", "a.png/b": "media_not_found"}  # fmt: skip
    for name, code in codes.items():
        assert problem(str(folder / name), limits).code == code, name
    assert problem(str(folder / "a.png"), OPEN).code == "media_forbidden"
    assert problem(f"{folder}/../secret.png", limits).code == "media_forbidden"


def test_a_folder_that_is_a_link_is_an_allowed_folder_all_the_same(folder: Path) -> None:
    other = folder.parent / "link"
    other.symlink_to(folder)
    limits = replace(OPEN, allowed_roots=(str(other),))
    assert get(MediaReference("image", f"{other}/a.png"), limits).data == png(1)


PACKED = base64.b64encode(png(1)).decode()


@pytest.mark.parametrize(
    "value", [png(1), PACKED, PACKED.rstrip("="), f"data:image/png;base64,{PACKED}",
              "\n".join(PACKED[i : i + 60] for i in range(0, len(PACKED), 60))],
)  # fmt: skip
def test_what_the_row_itself_holds_is_decoded(value: Any) -> None:
    row = {"messages": [{"content": [{"image": value}]}]}
    at: Sequence[str | int] = ("messages", 0, "content", 0, "image")
    assert get(MediaReference("image", at=tuple(at)), row=row).data == png(1)


@pytest.mark.parametrize(
    ("value", "code"),
    [("data:image/png;base64,@@@@", "bad_media"), ("ä" * 80, "bad_media"), (7, "bad_media"),
     ("A" * 400_000, "media_too_large"), (b"x" * 200_000, "media_too_large")],
)  # fmt: skip
def test_what_cannot_be_decoded_has_its_code(value: Any, code: str) -> None:
    with pytest.raises(MediaProblem) as caught:
        inline_bytes(partial(find_inline, {"a": value}), ["a"], OPEN)
    assert caught.value.code == code
    with pytest.raises(MediaProblem, match="nothing at"):
        inline_bytes(partial(find_inline, {"a": value}), ["b"], OPEN)


def test_content_is_known_by_itself_and_bounded() -> None:
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        data = png(image_format=kind)
        assert check_media("image", data, OPEN, "it").type == f"image/{kind.lower()}"
    assert check_media("audio", wav(), OPEN, "it").type == "audio/wav"


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("image", b"", "bad_media"),
        ("image", b"<svg onload=x>", "bad_media"),
        ("image", png()[:20], "bad_media"),
        ("image", bomb(), "media_too_large"),
        ("image", wav(), "bad_media"),
        ("audio", png(), "bad_media"),
        ("audio", wav()[:30], "bad_media"),
        ("audio", wav(0.0), "bad_media"),
        ("audio", wav(2.0, rate=100), "media_too_large"),
        ("image", png(image_format="GIF"), "bad_media"),
    ],
)
def test_bad_content_has_its_code(kind: Any, data: bytes, code: str) -> None:
    types = OPEN.allowed_types - {"image/gif"}
    limits = replace(OPEN, max_seconds=1.0, allowed_types=types)
    with pytest.raises(MediaProblem) as caught:
        check_media(kind, data, limits, "it")
    assert caught.value.code == code
