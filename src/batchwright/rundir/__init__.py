"""What a run leaves on disk: layout, ledger, events, storage."""
