"""Choose the settings, and cut the work: pure arithmetic."""
