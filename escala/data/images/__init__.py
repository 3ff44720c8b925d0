"""The kind `images`: pictures of classes."""
