"""Where a run, its input or its results are: a folder, or an address in an object store."""

from __future__ import annotations

from pathlib import Path

from batchwright.core.errors import JobError

# A folder of this machine, or the address of a place in an object store.
Location = Path | str

SCHEMES = ("s3", "gs", "az")


def is_address(place: Location) -> bool:
    """Whether a place is in an object store, and not a folder of this machine."""
    return isinstance(place, str) and "://" in place


def location_of(text: str) -> Location:
    """A place as a person names it.

    Raises:
        JobError: the scheme is not known, or there is no bucket.
    """
    if not is_address(text):
        return Path(text)
    split_address(text)
    return text.rstrip("/")


def below(place: Location, path: str) -> Location:
    """A file or folder in a place."""
    return place / path if isinstance(place, Path) else f"{place.rstrip('/')}/{path}"


def split_address(address: str) -> tuple[str, str]:
    """`s3://bucket/a/b` to the bucket's address `s3://bucket` and the key `a/b`.

    Raises:
        JobError: the scheme is not known, or there is no bucket.
    """
    scheme, _, rest = address.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise JobError(f"{address}: {scheme}:// is not known", f"There are {known} and folders.")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise JobError(f"{address}: there is no bucket", f"Write {scheme}://BUCKET/FOLDER.")
    return f"{scheme}://{bucket}", key.strip("/")
