"""How long is the work: token lengths, duplicates, shared prefixes. Pure arithmetic."""
