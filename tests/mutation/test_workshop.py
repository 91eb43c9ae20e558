"""Errors of the compiler are assigned to the faults that cause them."""

from pathlib import Path

from candidate import Candidate, Edit
from mutated_file import MutatedFile
from workshop import Workshop

HEADER = "int limit() {\n  return 10;\n}\n"
SOURCE = "int first = 1;\nint second = 2;\n"


def fault(file: str, text: str, part: str) -> Candidate:
    begin = text.index(part)
    edit = Edit(begin, begin + len(part), "(", ")")
    return Candidate(file, text[:begin].count("\n") + 1, "constant", "f", part, "0", (edit,))


FAULTS = {1: fault("core/a.h", HEADER, "10"), 2: fault("core/b.cc", SOURCE, "1"), 3: fault("core/c.cc", SOURCE, "2")}
TOUCHED = {
    "core/a.h": MutatedFile(HEADER, {1: FAULTS[1]}),
    "core/b.cc": MutatedFile(SOURCE, {2: FAULTS[2]}),
    "core/c.cc": MutatedFile(SOURCE, {3: FAULTS[3]}),
}


def blamed(output: str, everything: bool = False) -> set[int]:
    workshop = Workshop(Path("/r"), Path("/r/m"), Path("/r/plain"))
    return workshop.blamed(output, TOUCHED, FAULTS, everything)


AT_ITS_LINE = "FAILED: c.o\ng++ ../source/core/c.cc\n../source/core/c.cc:3:14: error: no\n"
ELSEWHERE = "FAILED: b.o\ng++ ../source/core/b.cc\nIn file included from ../source/core/a.h:3:\n../source/core/b.cc:9:1: error: no\n"


def test_a_fault_is_to_blame_for_an_error_at_its_line():
    assert blamed(AT_ITS_LINE) == {3}


def test_an_error_at_a_sound_line_waits_until_no_other_fault_is_to_blame():
    assert blamed(AT_ITS_LINE + ELSEWHERE) == {3}


def test_an_error_at_a_sound_line_is_the_headers():
    assert blamed(ELSEWHERE) == {1}


def test_in_the_end_all_faults_of_what_does_not_compile_go():
    assert blamed(AT_ITS_LINE + ELSEWHERE, everything=True) == {1, 2, 3}


def test_the_step_after_a_failure_is_not_to_blame():
    failure = "FAILED: c.o\ng++ ../source/core/c.cc\n../source/core/c.cc:9:1: error: no\n"
    assert blamed(failure + "[2/9] g++ ../source/core/b.cc\n") == {3}


def test_each_line_of_the_text_of_a_fault_is_the_faults():
    begin = SOURCE.index("2")
    edit = Edit(begin, begin + 1, "\n(on ? (\n0\n) : (\n", "\n))")
    file = MutatedFile(SOURCE, {7: Candidate("core/c.cc", 2, "constant", "f", "2", "0", (edit,))})
    lines = file.text.splitlines()
    first = lines.index("(on ? (") + 1
    assert [file.faults_at(line) for line in range(first, first + 5)] == [(7,)] * 5
    assert lines[first + 3] == "));"
    assert file.faults_at(first - 2) == ()
