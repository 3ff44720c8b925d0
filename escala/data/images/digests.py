"""Compare files of pictures with digests that are published for them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from escala.core.errors import InputError


def require_md5(path: Path, published: str, file: str, remedy: str) -> None:
    """Refuse a file whose MD5 is not the published one.

    MD5 shows damage and mistakes. It is no protection against a forged file.

    Parameters
    ----------
    published : in hexadecimal.
    file : what the published file is called, for the message.

    Raises
    ------
    InputError : the digest is another.
    """
    with open(path, "rb") as handle:
        content = hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False))
    digest = content.hexdigest()
    if digest != published:
        raise InputError(path, f"MD5 {digest}", f"is not {published}, that of {file}", remedy)
