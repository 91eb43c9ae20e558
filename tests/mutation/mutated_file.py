"""A source file that contains faults, each behind a switch with its number."""

import bisect

from candidate import IS_ON, Candidate

HEAD = '#include "mutation_switch.h"\n'


class MutatedFile:
    """`text` is the file with its faults. For each line, the object knows the numbers of the faults around it."""

    def __init__(self, original: str, faults: dict[int, Candidate]):
        edits = [
            (edit.begin, edit.end, number, edit) for number, candidate in faults.items() for edit in candidate.edits
        ]
        # An outer fault comes before an inner one. Text between two characters comes before an edit that begins there.
        edits.sort(key=lambda one: (one[0], one[0] != one[1], -one[1], one[2]))
        self.original = original
        self.pieces: list[str] = []
        self.line = 1
        self.line_starts: list[tuple[int, tuple[int, ...]]] = [(1, ())]
        self.around: list[int] = []
        self.put(HEAD)
        self.put_edits(edits, 0, len(original))
        self.text = "".join(self.pieces)

    def put(self, text: str):
        self.pieces.append(text)
        self.line += text.count("\n")
        self.line_starts.append((self.line, tuple(self.around)))

    def put_edits(self, edits: list, begin: int, end: int):
        at = begin
        index = 0
        while index < len(edits):
            first, last, number, edit = edits[index]
            inner = index + 1
            while inner < len(edits) and edits[inner][0] < max(last, first + 1) and first != last:
                inner += 1
            self.put(self.original[at:first])
            is_on = f"stfs_mutation::is({number})"
            self.around.append(number)
            # The new text has several lines, and an error may be at any of them.
            self.line_starts.append((self.line + edit.before.startswith("\n"), tuple(self.around)))
            self.put(edit.before.replace(IS_ON, is_on))
            self.put_edits(edits[index + 1 : inner], first, last)
            self.put(edit.behind.replace(IS_ON, is_on))
            self.around.pop()
            at = last
            index = inner
        self.put(self.original[at:end])

    def faults_at(self, line: int) -> tuple[int, ...]:
        """Returns the faults around a line, the outermost first."""
        at = bisect.bisect_right(self.line_starts, line, key=lambda one: one[0]) - 1
        # Several pieces may share a line.
        found = [numbers for first, numbers in self.line_starts[max(0, at - 6) : at + 2] if first == line]
        found.append(self.line_starts[at][1])
        return max(found, key=len)
