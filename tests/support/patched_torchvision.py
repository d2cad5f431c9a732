"""A torchvision that imports beside a torch without its operators, in a folder of its own.

vLLM imports torchvision for most vision models, also where only its Python is used. The builds
that match a CPU-only torch are not on the package index; this one is patched not to look for its
own compiled operators.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

# torchvision's minor version is torch's plus 15.
OFFSET = 15


def install(folder: Path) -> str | None:
    """Install into `folder`; returns why that was not possible, or None."""
    _, minor, patch = metadata.version("torch").partition("+")[0].split(".")
    wanted = f"torchvision==0.{int(minor) + OFFSET}.{patch}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input",
               "--disable-pip-version-check", "--timeout", "10", "--retries", "1",
               "--target", str(folder), wanted]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return f"pip did not bring {wanted} within 90 s"
    if done.returncode != 0:
        return f"pip cannot bring {wanted}: {done.stderr.strip()[-300:]}"
    (folder / "torchvision" / "_meta_registrations.py").write_text("")
    return None
