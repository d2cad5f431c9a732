"""Who works on a run, and who watches that they do."""
