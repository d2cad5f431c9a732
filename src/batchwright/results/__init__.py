"""What a run has committed: by fate, as files, as tables, in a database."""
