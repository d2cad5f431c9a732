"""A chunk to a committed part: the parts of `worker.py`."""
