"""A small fault for a source file, to test whether a test notices it."""

import dataclasses
import hashlib

# In the text of an edit, IS_ON is replaced by the check whether this fault is on.
IS_ON = "\x01"


@dataclasses.dataclass(frozen=True)
class Edit:
    """Text before and behind a part of the file. The part itself stays. Offsets count characters."""

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
    ordinal: int = 0  # counts equal candidates of one function

    @property
    def key(self) -> str:
        """Stays the same while the text of the function stays, even if its lines move."""
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
    """Returns the candidates with ordinals, and without duplicates."""
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
