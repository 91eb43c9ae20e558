"""Names and paths for messages."""
from __future__ import annotations


def printable(name: object) -> str:
    """Escapes all characters that could disturb a terminal or forge a line: another user may have chosen the name."""
    text = str(name)
    return text if text.isprintable() else repr(text)[1:-1]
