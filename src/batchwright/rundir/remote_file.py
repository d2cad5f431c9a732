"""An object as a file that can be read from anywhere: in growing blocks, each checked for its length."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import BaseError, GenericError, PreconditionError

from batchwright.core.errors import InputError
from batchwright.rundir.locations import split_address
from batchwright.rundir.stores import (
    FIRST_PATIENCE_S,
    PATIENCE_S,
    explained,
    is_missing_bucket,
    patiently,
    shared_store,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# A look at the beginning of a file stays small; who reads on gets more with each request.
FIRST_BLOCK_BYTES = 1 << 16
LARGEST_BLOCK_BYTES = 8 << 20


class RemoteFile(io.RawIOBase):
    """Reads one object. It must stay as it is while it is open.

    Raises:
        FileNotFoundError: there is no such object.
        InputError: it was changed between two reads.
        JobError, StorageError: the bucket is missing, refuses the keys, or cannot be reached.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        bucket, self._key = split_address(address)
        self._store = shared_store(bucket)
        self._at = 0
        self._proved = False
        found = self._try(lambda: obstore.head(self._store, self._key))
        self.size: int = found["size"]
        self._e_tag: str | None = found["e_tag"]
        self._block = b""
        self._block_at = 0
        self._block_bytes = FIRST_BLOCK_BYTES

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere; costs nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer as far as the object reaches."""
        target = memoryview(buffer).cast("B")
        stop = min(self._at + len(target), self.size)
        if stop <= self._at:
            return 0
        if not self._block_at <= self._at < stop <= self._block_at + len(self._block):
            self._fetch(stop)
        start = self._at - self._block_at
        data = self._block[start : start + stop - self._at]
        target[: len(data)] = data
        self._at = stop
        return len(data)

    def readall(self) -> bytes:
        """All that is left, by one request."""
        return self.read(self.size - self._at)

    def _fetch(self, stop: int) -> None:
        """Read a block that holds everything up to `stop`, larger if the last one was used up."""
        goes_on = self._block_at < self._at <= self._block_at + len(self._block)
        grown = min(2 * self._block_bytes, LARGEST_BLOCK_BYTES) if goes_on else FIRST_BLOCK_BYTES
        self._block_bytes = grown
        end = min(max(stop, self._at + grown), self.size)
        self._block = self._try(lambda: self._get(self._at, end))
        self._block_at = self._at

    def _get(self, start: int, end: int) -> bytes:
        options: Any = {"range": (start, end)}
        if self._e_tag:
            options["if_match"] = self._e_tag
        data = bytes(obstore.get(self._store, self._key, options=options).bytes())
        if len(data) != end - start:
            raise GenericError(f"the answer broke off after {len(data)} of {end - start} bytes")
        return data

    def _try(self, attempt: Any) -> Any:
        try:
            found = patiently(attempt, PATIENCE_S if self._proved else FIRST_PATIENCE_S)
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise self._explained(error) from error
            raise FileNotFoundError(2, "there is no such object", self._address) from error
        except PreconditionError as error:
            raise InputError(
                f"{self._address} was changed while it was read",
                "Write new data to a name of its own, and start again in another run directory.",
            ) from error
        except (BaseError, OSError) as error:
            raise self._explained(error) from error
        self._proved = True
        return found

    def _explained(self, error: Exception) -> Exception:
        what = f"cannot read {self._address}"
        return explained(what, error, self._address, proved=self._proved)


def list_objects(address: str, prefix: str) -> list[tuple[str, int, str]]:
    """Every object of a bucket below a folder: its address, size, and what tells its versions apart.

    Args:
        address: of the bucket.
        prefix: whole names of folders; empty for all.

    Raises:
        JobError, StorageError: the bucket is missing, refuses the keys, or cannot be reached.
    """
    store = shared_store(address)

    def attempt() -> list[Any]:
        return [
            one for page in obstore.list(store, prefix or None, chunk_size=1000) for one in page
        ]

    try:
        found = patiently(attempt, FIRST_PATIENCE_S)
    except (BaseError, OSError) as error:
        raise explained(f"cannot list {address}/{prefix}", error, address, proved=False) from error
    return [(f"{address}/{one['path']}", one["size"], _identity(one)) for one in found]


def find_object(address: str) -> tuple[str, int, str] | None:
    """One object: its address, size, and what tells its versions apart; None if there is none."""
    bucket, key = split_address(address)
    if not key:
        return None
    store = shared_store(bucket)

    def attempt() -> Any:
        return obstore.head(store, key)

    try:
        found = patiently(attempt, FIRST_PATIENCE_S)
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise explained(f"cannot read {address}", error, address, proved=False) from error
        return None
    except (BaseError, OSError) as error:
        raise explained(f"cannot read {address}", error, address, proved=False) from error
    return f"{bucket}/{key}", found["size"], _identity(found)


def _identity(meta: Any) -> str:
    return str(meta["e_tag"] or meta["last_modified"].isoformat())
