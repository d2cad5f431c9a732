"""Object stores by their addresses (`s3://`, `gs://`, `az://`): opening them, patience, plain errors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from obstore import store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from batchwright.core.errors import BatchwrightError, JobError, StorageError
from batchwright.rundir.locations import split_address

# How long one request is tried again: a service that throttles, or restarts, is back by then.
# An address that has never answered is more likely wrong.
PATIENCE_S = 300.0
FIRST_PATIENCE_S = 8.0

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0

_FINAL = (
    AlreadyExistsError,
    FileNotFoundError,
    InvalidPathError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]+)")  # Azure puts a number and the time on lines below

# Client errors that pass: a time-out, two writers at once, too many requests.
_PASSING = {"408", "409", "425", "429"}

_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|bucket does not exist|container does not exist"
)
_SHARED_ROOT_CAUSE = re.compile(r"169\.254\.|metadata\.google|Missing[A-Z]|must be specified")

# Variables that name a store's own endpoint.
_ENDPOINTS = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
)

# Variables that decide how a store is opened.
_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")

_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), AWS_REGION and, "
    "unless it is Amazon's own, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN) and, "
    "unless it is Azure's own, AZURE_STORAGE_ENDPOINT",
}

Found = TypeVar("Found")


def open_store(address: str) -> Any:
    """The store of an address, with keys, region and endpoint from the usual environment variables.

    Raises:
        JobError: the address or those variables cannot be understood.
    """
    options: dict[str, Any] = {
        # For the whole of one request: the largest objects are results files.
        "timeout": timedelta(seconds=300),
        "connect_timeout": timedelta(seconds=5),
        "allow_http": _plain_http(os.environ),
    }
    retry: Any = {
        "max_retries": 4,
        "retry_timeout": timedelta(seconds=30),
        "backoff": {"init_backoff": timedelta(milliseconds=100)},
    }
    split_address(address)
    try:
        opened: Any = store.from_url
        return opened(address, client_options=options, retry_config=retry)
    except (BaseError, ValueError) as error:
        raise _refused(f"cannot open {address}", error, address) from error


def shared_store(address: str) -> Any:
    """The same store each time: it keeps connections open. Raises JobError."""
    own = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(_PREFIXES)))
    return _opened(address, own)


@lru_cache(maxsize=16)
def _opened(address: str, _environment: tuple[tuple[str, str], ...]) -> Any:
    return open_store(address)


def _plain_http(environment: Mapping[str, str]) -> bool:
    """Whether somebody names an endpoint without TLS, as servers in one's own network have."""
    found = [environment[name] for name in _ENDPOINTS if name in environment]
    emulated = "GOOGLE_BASE_URL" in environment or "AZURE_STORAGE_USE_EMULATOR" in environment
    return emulated or any(one.startswith("http://") for one in found)


def patiently(attempt: Callable[[], Found], patience_s: float) -> Found:
    """The result of a request, which is made again while the service throttles or is away."""
    deadline = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return attempt()
        except (BaseError, OSError) as error:
            if not _may_pass(error) or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, _FINAL):
        return False
    status = _STATUS.search(str(error))
    return status is None or status[1][0] != "4" or status[1] in _PASSING


def is_missing_bucket(error: Exception) -> bool:
    """Whether not only an object is missing, but the bucket that it should be in."""
    return bool(_NO_BUCKET.search(str(error)))


def explained(what: str, error: Exception, address: str, *, proved: bool) -> BatchwrightError:
    """An error of an object store in plain words, with what to do.

    Args:
        what: was tried: `cannot read s3://…`.
        error: of the store.
        address: of the place, for its bucket.
        proved: whether the place has answered before: then its keys and its name are right.
    """
    if is_missing_bucket(error):
        bucket, _ = split_address(address)
        return JobError(f"{what}: there is no bucket {bucket}", "Create it, or correct the name.")
    if not proved and _is_refusal(error):
        return _refused(what, error, address)
    hint = "Mend that and run the same command again: it goes on where it stopped."
    if not proved and not _STATUS.search(str(error)):  # perhaps there is nobody of that name
        hint = f"If it never worked, look at {_KEYS[address.partition('://')[0]]}. {hint}"
    return StorageError(f"{what}: {_reason(error)}", hint)


def _is_refusal(error: Exception) -> bool:
    status = _STATUS.search(str(error))
    kinds = PermissionDeniedError | UnauthenticatedError | UnknownConfigurationKeyError
    no_keys = bool(_SHARED_ROOT_CAUSE.search(str(error)))
    return isinstance(error, kinds) or no_keys or (status is not None and status[1] in "401 403")


def _refused(what: str, error: Exception, address: str) -> JobError:
    scheme = address.partition("://")[0]
    reason = _reason(error)
    if _SHARED_ROOT_CAUSE.search(str(error)):
        reason = "no keys were found"
    return JobError(f"{what}: {reason}", f"Look at {_KEYS[scheme]}; and may they use the bucket?")


def _reason(error: Exception) -> str:
    """What the service said, without the pages of XML and debugging around it."""
    text = str(error)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        return f"{code[1]}: {message[1]}" if message else code[1]
    first = text.splitlines()[0] if text else type(error).__name__
    return first.rpartition(": Error performing ")[2] or first
