"""The text of a C++ file, and the same text without comments, strings and characters."""

import re

HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\\ ]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])*\'',
    re.S,
)
PAIRS = {"(": ")", "{": "}", "[": "]"}


class SourceText:
    """libclang counts bytes, so the text has a character for each byte."""

    def __init__(self, content: bytes):
        self.text = content.decode("latin-1")
        self.plain = HIDDEN.sub(lambda found: re.sub(r"[^\n]", "~", found[0]), self.text)
        self.starts = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def closing(self, opening: int) -> int:
        """Returns the offset of the bracket that closes the one at `opening`, or -1."""
        depth = 0
        for at in range(opening, len(self.plain)):
            if self.plain[at] in "([{":
                depth += 1
            elif self.plain[at] in ")]}":
                depth -= 1
                if depth == 0:
                    return at
        return -1

    def semicolons(self, begin: int, end: int) -> list[int]:
        """Returns the semicolons between the two offsets that are outside of further brackets."""
        found, depth = [], 0
        for at in range(begin, end):
            if self.plain[at] in "([{":
                depth += 1
            elif self.plain[at] in ")]}":
                depth -= 1
            elif self.plain[at] == ";" and depth == 0:
                found.append(at)
        return found

    def char_before(self, at: int) -> str:
        return self.plain[:at].rstrip("~ \n")[-1:]

    def char_behind(self, at: int) -> str:
        return self.plain[at : at + 400].lstrip("~ \n")[:1]

    def words(self, begin: int, end: int) -> str:
        """Returns the text on one line, for a person."""
        without_comments = re.sub(r"//[^\n]*", "", self.text[begin:end])
        return " ".join(without_comments.split())
