"""A small fault that may be put into a source file, to see whether a test notices."""

import dataclasses
import hashlib

# Stands in the text of an edit for the question whether this fault is the one that is on.
IS_ON = "\x01"


@dataclasses.dataclass(frozen=True)
class Edit:
    """Text before and behind a part of the file, which itself stays. Offsets count characters."""

    begin: int
    end: int
    before: str
    behind: str = ""


@dataclasses.dataclass(frozen=True)
class Candidate:
    file: str  # relative to the repository
    line: int
    operator: str
    function: str
    old: str
    new: str
    edits: tuple[Edit, ...]
    ordinal: int = 0  # counts those of one function that read alike

    @property
    def key(self) -> str:
        """Stays the same while the function keeps its text, wherever its lines go."""
        words = (self.file, self.function, self.operator, self.old, self.new, str(self.ordinal))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.operator}: {self.old}  ->  {self.new}"

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(fields: dict) -> "Candidate":
        return Candidate(**{**fields, "edits": tuple(Edit(**edit) for edit in fields["edits"])})


def numbered(candidates: list[Candidate]) -> list[Candidate]:
    """The same, without those that are there twice, and with ordinals."""
    seen_edits = set()
    counts: dict[str, int] = {}
    result = []
    for candidate in sorted(candidates, key=lambda one: (one.edits[0].begin, one.operator, one.new)):
        if candidate.edits in seen_edits:
            continue
        seen_edits.add(candidate.edits)
        count = counts[candidate.key] = counts.get(candidate.key, -1) + 1
        result.append(dataclasses.replace(candidate, ordinal=count))
    return result
