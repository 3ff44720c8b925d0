"""The kind `captions`: pictures with captions."""
