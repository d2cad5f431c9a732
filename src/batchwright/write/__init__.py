"""Outcomes to storage: parts, verification, export."""
