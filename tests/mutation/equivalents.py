"""The faults that have no visible effect: tests/mutation/equivalent."""

import dataclasses
from pathlib import Path

from candidate import Candidate

TABLE = Path(__file__).resolve().parent / "equivalent"


@dataclasses.dataclass(frozen=True)
class Equivalent:
    file: str
    function: str
    operator: str
    old: str
    new: str
    reason: str

    def is_of(self, candidate: Candidate) -> bool:
        return (self.file, self.function, self.operator, self.old, self.new) == (
            candidate.file, candidate.function, candidate.operator, candidate.old, candidate.new,
        )  # fmt: skip


def read_table(path: Path = TABLE) -> list[Equivalent]:
    """Reads blocks of six lines, with an empty line between blocks. A line that begins with # is a comment."""
    text = path.read_text() if path.exists() else ""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    blocks = [block.splitlines() for block in "\n".join(lines).strip().split("\n\n") if block.strip()]
    for block in blocks:
        if len(block) != 6:
            raise ValueError(f"{path}: a row has {len(block)} lines in place of 6: {block[0]}")
    return [Equivalent(*(line.strip() for line in block)) for block in blocks]
