"""Offline batch inference for language models: a dataset in, every row's answer out."""

__version__ = "0.1.0"
