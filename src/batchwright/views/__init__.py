"""Looks at a run from outside: how far it is, its report, its diagnosis."""
