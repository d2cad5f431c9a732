"""Images and sounds: fetched and checked ahead of the engine."""
