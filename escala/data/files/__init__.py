"""Files and folders of a user's own, which a program reads itself."""
