"""Secrets in files. Every connection reads its file again, so a rotated secret needs no restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr

_SECRET_MAX = 64 * 1024


class FileSecret(SecretStr):
    """The secret in a file, read again at each use. While the file cannot be used, the last secret counts.

    Two are equal if file and content were equal when they were made: so a reload finds what changed.
    """

    def __init__(self, file: str, judge: Callable[[str], None]) -> None:
        """``judge`` raises ValueError for a wrong text. Raises OSError and ValueError for a file without a secret."""
        super().__init__(read_secret(file))
        self.file = file
        #: The text when this was made.
        self.first = self._secret_value
        self._judge = judge

    def get_secret_value(self) -> str:
        """Return the secret that the file has now."""
        try:
            text = read_secret(self.file)
            self._judge(text)
        except (OSError, ValueError):
            return self._secret_value
        self._secret_value = text
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileSecret) and (self.file, self.first) == (other.file, other.first)

    def __hash__(self) -> int:
        return hash((self.file, self.first))


def read_secret(file: str) -> str:
    """The text of a secret file without its last line break, which editors and ``echo`` add.

    Raises OSError, and ValueError for what is no secret.
    """
    if not file:
        raise ValueError("the name is empty")
    with Path(file).open("rb") as stream:
        content = stream.read(_SECRET_MAX + 1)
    if len(content) > _SECRET_MAX:
        raise ValueError("it is over 64 KiB")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        # Not chained: the decoder's exception contains the secret.
        raise ValueError("it is not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError("it is empty")
    return text
