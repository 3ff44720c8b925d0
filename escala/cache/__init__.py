"""The content store, and what a step depends on."""
