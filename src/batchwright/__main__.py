"""`python -m batchwright`."""

from batchwright.cli.app import main

if __name__ == "__main__":
    main()
