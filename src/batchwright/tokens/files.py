"""The small JSON files beside a model: where they are, and what they say of its tokens."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from batchwright.core.errors import HubUnreachable, JobError

# One file, or the list of several.
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


def is_folder(name: str) -> bool:
    """Whether `name` is a local folder; a hub id is not.

    Raises:
        JobError: it is plainly a path, but there is no such folder.
    """
    path = Path(name)
    if path.is_dir():
        return True
    if path.exists():
        raise JobError(
            f"{name} is a file, not a model folder",
            "Give the folder; for a single-file model, set model.tokenizer to a tokenizer.",
        )
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise JobError(f"there is no folder {name}", "Check model.name and model.tokenizer.")
    return False


def read_json(name: str, file: str, revision: str | None) -> dict[str, Any]:
    """A JSON file of a model folder or hub repository; empty when there is none.

    Raises:
        JobError: the file is damaged, or the hub refuses.
        HubUnreachable: the hub does not answer.
    """
    value = _read(name, file, revision)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise JobError(f"{file} of {name} holds no JSON object", "Copy the model again.")
    return value


def read_list(name: str, file: str, revision: str | None) -> list[dict[str, Any]]:
    """The same for a file that holds a list of objects."""
    value = _read(name, file, revision)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise JobError(f"{file} of {name} holds no list of objects", "Copy the model again.")
    return value


def has_safetensors(name: str, revision: str | None) -> bool:
    """Whether the weights of a model folder or hub repository are safetensors; none are fetched.

    Raises:
        JobError: there is no such folder, or the hub refuses.
    """
    if is_folder(name):
        return any(Path(name).glob("*.safetensors"))
    prefer_cache_if_cut_off()
    from transformers.utils import hub as hub_files

    hub: Any = hub_files

    def is_there(*, cached: bool) -> bool:
        asked = {"revision": revision, "local_files_only": cached}
        return any(hub.has_file(name, file, **asked) for file in _SAFETENSORS)

    try:
        return is_there(cached=True) or is_there(cached=False)
    except (OSError, ValueError, hub.httpx.ProxyError) as error:
        raise not_reachable(name, error) from None


def _read(name: str, file: str, revision: str | None) -> Any:
    path = Path(name) / file if is_folder(name) else _from_hub(name, file, revision)
    if path is None or not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"{path} cannot be read: {error}", "Copy the model again.") from None


@cache
def prefer_cache_if_cut_off() -> bool:
    """Where the hub has no address, say so to its client: it would try for more than a minute.

    The client reads the variable when it is imported, and so do the engine's processes. A model that
    is in the cache is found all the same.

    Returns:
        Whether the hub has no address.
    """
    is_cut_off = _is_cut_off(os.environ)
    if is_cut_off:
        os.environ["HF_HUB_OFFLINE"] = "1"
    return is_cut_off


def _is_cut_off(environ: Mapping[str, str]) -> bool:
    """Whether no name service knows the hub's host; behind a proxy only the proxy can tell."""
    proxies = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    if "HF_HUB_OFFLINE" in environ or any(environ.get(name) for name in proxies):
        return False
    host = urlsplit(environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror:
        return True
    return False


def _from_hub(name: str, file: str, revision: str | None) -> Path | None:
    prefer_cache_if_cut_off()
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(
            name, file, revision=revision, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError) as error:
        raise not_reachable(name, error) from None
    return None if found is None else Path(found)


def not_reachable(name: str, error: BaseException) -> JobError:
    """The error for a name that is neither a folder nor to be had from the hub."""
    first = str(error).strip().partition("\n")[0]
    kind = HubUnreachable if _may_pass(error) else JobError
    return kind(
        f"{name} is no folder here, and the hub does not give it: {first}",
        "Give the path of a downloaded model, or check the name, the network and HF_TOKEN.",
    )


# Names of the errors of httpx and of the hub's client that are about the connection. A proxy that
# refuses (ProxyError) is none of them.
_LOST = {"ConnectError", "ConnectTimeout", "ReadTimeout", "ReadError", "RemoteProtocolError"}
_TOO_MANY = 429
_SERVER_FAULT = 500


def _may_pass(error: BaseException) -> bool:
    """Whether the hub did not answer, or could not: the same request may succeed later."""
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    if offline and not prefer_cache_if_cut_off():
        return False  # it was not asked, because somebody wants it so
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        link = link.__cause__ or link.__context__
    names = {type(one).__name__ for one in seen}
    if "ProxyError" in names:
        return False
    codes = [getattr(getattr(one, "response", None), "status_code", 0) for one in seen]
    return (
        prefer_cache_if_cut_off()
        or bool(_LOST & names)
        or any(isinstance(one, (ConnectionError, TimeoutError)) for one in seen)
        or any(code == _TOO_MANY or code >= _SERVER_FAULT for code in codes)
    )


def token_ids(configs: Iterable[dict[str, Any]], field: str) -> set[int]:
    """The ids under `field` of several configs: an integer or a list, here or in `text_config`."""
    found: set[int] = set()
    for config in with_text_config(configs):
        value = config.get(field)
        items = value if isinstance(value, list) else [value]
        found.update(item for item in items if type(item) is int)
    return found


def with_text_config(configs: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Each config, and its `text_config` where a multimodal model has one."""
    for config in configs:
        yield config
        inner = config.get("text_config")
        if isinstance(inner, dict):
            yield inner
