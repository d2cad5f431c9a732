"""Rows numbered, looked at, put in order and cut into chunks: the parts of `order.py`."""
