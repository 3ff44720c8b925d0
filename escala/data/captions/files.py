"""Names of the files between the steps of a dataset's preparation."""

from __future__ import annotations

#: What acquisition writes: captions, and for a simulation the features of each side.
CAPTIONS_FILE, FEATURES_FILE = "captions.json", "{side}_features.npy"
#: What the extraction writes: features of pictures, the name of the picture of each row, and times.
FEATURES, NAMES, EXTRACTION = "features.npy", "names.json", "extraction.json"
