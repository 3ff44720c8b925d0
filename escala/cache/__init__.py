"""Keep results by the content of all that determines them."""
