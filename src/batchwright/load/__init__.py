"""Vectors into databases: one adapter each, and what they share."""
