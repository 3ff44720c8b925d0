"""The kind `motifs`: DNA sequences with or without an instance of a motif."""
