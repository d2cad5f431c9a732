"""Bytes to rows: files, splits, formats, compression."""
