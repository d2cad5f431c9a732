"""The word `demo` as a model's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from batchwright.core.errors import JobError
from batchwright.demo.model import model_folder

DEMO = "demo"


def embedded_model() -> Path:
    """Folder of the demo's model, made first if need be. Raises JobError if that fails."""
    folder = model_folder()
    if not folder.is_dir():
        # A process of its own: converting loads torch and 2 GB, which this one never needs again.
        ended = subprocess.run([sys.executable, "-m", "batchwright.demo"], check=False)
        if ended.returncode != 0:
            raise JobError("the demo's model could not be made", "The lines above say why.")
    return folder
