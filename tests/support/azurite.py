"""Azure Blob Storage for tests: Microsoft's emulator Azurite, started once, killed with the tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlencode

from obstore.store import AzureStore

from tests.support.object_store import die_with_parent, free_ports

CONTAINER = "tests"
# Azurite's own account, the same everywhere.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

# Names the folder of `npm install --prefix FOLDER azurite`.
FOLDER_VARIABLE = "BATCHWRIGHT_AZURITE"

START_S = 60.0

# Azurite's pages hold 5,000 names, which take long to make; it has no option for less.
PAGE = 1000
_SMALLER_PAGES = """
const constants = require({file});
if (!("DEFAULT_LIST_BLOBS_MAX_RESULTS" in constants)) throw new Error("pages have another name");
constants.DEFAULT_LIST_BLOBS_MAX_RESULTS = {page};
"""


@dataclass(frozen=True, slots=True)
class AzureBlobs:
    """A running emulator. `url` is its endpoint, without the account."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The usual variables, for whoever shall use it."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def new_place(self) -> str:
        """The address of an empty folder."""
        return f"az://{CONTAINER}/{uuid.uuid4().hex[:12]}"

    def client(self) -> AzureStore:
        """A client of the container that knows nothing of the product."""
        return AzureStore(
            CONTAINER, endpoint=f"{self.url}/{ACCOUNT}", account_name=ACCOUNT, account_key=KEY,
            client_options={"allow_http": True},
        )  # fmt: skip

    def sas_token(self) -> str:
        """A shared access signature of the account, as its portal makes them."""
        version, permissions, until = "2021-08-06", "rwdlc", "2099-01-01T00:00:00Z"
        parts = (ACCOUNT, permissions, "b", "co", "", until, "", "https,http", version, "", "")
        fields = {"sv": version, "ss": "b", "srt": "co", "sp": permissions, "se": until}
        return urlencode({**fields, "spr": "https,http", "sig": _signature("\n".join(parts))})

    def make_container(self) -> None:
        """Make the container: clients of blobs cannot."""
        path = f"/{ACCOUNT}/{CONTAINER}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "\n".join(f"{name}:{value}" for name, value in sorted(headers.items()))
        text = "PUT" + 12 * "\n" + f"{signed}\n/{ACCOUNT}{path}\nrestype:container"
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(text)}"
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
        connection.close()


def _signature(text: str) -> str:
    mac = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    return base64.b64encode(mac.digest()).decode()


def find_azurite() -> str | None:
    """The emulator's program: in the folder that a variable names, or on the PATH."""
    folder = os.environ.get(FOLDER_VARIABLE)
    own = Path(folder, "node_modules/.bin/azurite-blob") if folder else None
    return str(own) if own and own.exists() else shutil.which("azurite-blob")


@contextmanager
def azurite(program: str) -> Iterator[AzureBlobs]:
    """An emulator of our own on a free port, with a key that it checks."""
    folder = Path(tempfile.mkdtemp(prefix="azurite-"))
    (port,) = free_ports(1)
    constants = Path(program).resolve().parent / "utils" / "constants.js"
    smaller = _SMALLER_PAGES.format(file=json.dumps(str(constants)), page=PAGE)
    (folder / "pages.js").write_text(smaller)
    command = [
        program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder),
        "--skipApiVersionCheck", "--disableTelemetry", "--silent",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
            env={**os.environ, "NODE_OPTIONS": f"--require={folder / 'pages.js'}"},
        )  # fmt: skip
    blobs = AzureBlobs(f"http://127.0.0.1:{port}")
    try:
        _until_up(blobs, process, folder / "log")
        yield blobs
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _until_up(blobs: AzureBlobs, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            blobs.make_container()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return
