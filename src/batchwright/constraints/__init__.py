"""What an answer must keep to: compiled before the engine sees it, checked when it comes back."""
