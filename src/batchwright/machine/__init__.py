"""What this machine has, and what it and its cards are doing."""
