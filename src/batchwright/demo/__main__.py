"""`python -m batchwright.demo`: make the demo's model, in a process that may load torch."""

from __future__ import annotations

import sys

from batchwright.core.errors import BatchwrightError
from batchwright.demo.model import demo_model


def main() -> None:
    """Convert the model if it is not there; say what is wrong if that fails."""
    try:
        demo_model()
    except BatchwrightError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
