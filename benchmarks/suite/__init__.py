"""Runs a plan of benchmarks on the cards of a machine, within a time."""
