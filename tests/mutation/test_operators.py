"""The operators make the faults that they are named for. A file with faults still compiles, and behaves as before while
no fault is on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from candidate import IS_ON, Candidate, Edit
from equivalents import read_table
from mutated_file import MutatedFile
from source_text import SourceText

pytest.importorskip("clang.cindex", reason="libclang is missing: see tests/requirements.txt")

from reader import read_text  # noqa: E402

FOLDER = Path(__file__).resolve().parent
SAMPLE = """\
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <vector>
namespace tl { template <class T> struct expected { bool ok = true; explicit operator bool() const { return ok; } }; }
#define RETURN_IF_ERROR(...)                               \\
  do {                                                     \\
    if (auto&& checked = (__VA_ARGS__); !checked) return checked; \\
  } while (false)
namespace sample {
template <class Lock> struct MutexLock {
  explicit MutexLock(Lock& lock) : held(lock) {}
  std::unique_lock<Lock> held;
};
constexpr std::uint64_t kLimit = 10;
std::mutex mutex;
int calls = 0;
int steps = 0;
void call(int a, int b) { calls += 10 * a + b; }
tl::expected<void> check(bool ok) {
  return {ok};
}
tl::expected<void> step() { ++steps; return check(true); }
bool is_below(int a, int b) { return a < b; }
bool is_both(bool a, bool b) { return a && b; }
int forced(bool a) {
  if (a) return 7;
  return 8;
}
int sum(const std::vector<int>& all) {
  int result = 0;
  for (const int one : all) result += one;
  for (const int none : {0, 0}) result += none;
  for (std::size_t at = 0; at < all.size(); ++at) result += all[at];
  return result;
}
int caller() {
  const std::scoped_lock lock(mutex);
  call(1, 2);
  return calls;
}
int checked() {
  if (const auto done = check(false); !done) return 3;
  return 4;
}
int stepped() {
  if (const auto done = step(); !done) return 3;
  return steps;
}
tl::expected<void> passing(int a, int b) {
  RETURN_IF_ERROR(check(a < b));
  return {};
}
bool is_free() {
  const bool is_locked = mutex.try_lock();
  if (is_locked) mutex.unlock();
  return is_locked;
}
bool leaves_free() {
  const MutexLock lock(mutex);
  return is_free();
}
std::uint64_t limit() { return kLimit; }
static_assert(kLimit == 10);
std::uint64_t two(std::uint64_t size_bytes) { return size_bytes; }
std::uint64_t size(std::uint64_t size_bytes) { return two(size_bytes); }
}  // namespace sample
int main() {
  using namespace sample;
  const auto done = check(false);
  std::printf("%d %d %d %d %d ", is_below(2, 2), is_both(true, false), forced(true), sum({1, 2, 3}), caller());
  std::printf("%d %d %d %d %d ", checked(), leaves_free(), static_cast<int>(limit()), static_cast<int>(size(9)), done.ok);
  std::printf("%d %d%d", stepped(), passing(2, 2).ok, passing(1, 2).ok);
}
"""
NORMAL = "0 0 7 12 12 3 0 10 9 0 1 01"


@pytest.fixture(scope="module")
def candidates() -> list[Candidate]:
    return read_sample()


def read_sample() -> list[Candidate]:
    place = Path(os.environ.get("TMPDIR", "/tmp")) / f"sample.{os.getpid()}.cc"
    place.write_text(SAMPLE)
    try:
        return read_text(place, "sample.cc", ["-std=c++20"], SAMPLE.encode())
    finally:
        place.unlink()


@pytest.fixture(scope="module")
def program(candidates: list[Candidate], tmp_path_factory) -> Path:
    compiler = shutil.which("g++") or pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("mutated")
    text = MutatedFile(SAMPLE, dict(enumerate(candidates, 1))).text
    (folder / "sample.cc").write_text(text)
    shutil.copy(FOLDER / "switch.h", folder / "mutation_switch.h")
    command = [compiler, "-std=c++20", "-w", "-Wno-narrowing", "sample.cc", "-o", "sample", "-pthread"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "sample"


def output_with(program: Path, candidates: list[Candidate], operator: str, function: str, new: str) -> list[str]:
    numbers = [
        number
        for number, one in enumerate(candidates, 1)
        if (one.operator, one.function, one.new) == (operator, function, new)
    ]
    assert len(numbers) == 1, [str(one) for one in candidates if one.function == function]
    environment = {**os.environ, "STFS_MUTANT": str(numbers[0])}
    return subprocess.run([program], env=environment, capture_output=True, text=True).stdout.split()


def test_nothing_changes_while_no_fault_is_on(program: Path):
    assert subprocess.run([program], capture_output=True, text=True).stdout == NORMAL


@pytest.mark.parametrize(
    ("operator", "function", "new", "position", "value"),
    [
        ("comparison", "is_below", "a <= b", 0, "1"),
        ("dropped term", "is_both", "a", 1, "1"),
        ("forced condition", "forced", "false", 2, "8"),
        ("shorter loop", "sum", "all but the last", 3, "9"),
        ("shorter loop", "sum", "ends one step early", 3, "9"),
        ("call left out", "caller", "(nothing)", 4, "0"),
        ("swapped arguments", "caller", "2, 1", 4, "21"),
        ("ignored result", "checked", "false", 5, "4"),
        ("no lock", "leaves_free", "no lock", 6, "1"),
        ("number by one", "limit", "kLimit - 1", 7, "9"),
        ("size by one", "size", "size_bytes - 1", 8, "8"),
        ("early success", "check", "returns success at once", 9, "1"),
        ("step left out", "stepped", "success", 10, "0"),
        ("ignored result", "passing", "goes on", 11, "11"),
        ("comparison", "passing", "a <= b", 11, "11"),
        ("step left out", "passing", "success", 11, "11"),
    ],
)
def test_operator(program, candidates, operator: str, function: str, new: str, position: int, value: str):
    assert output_with(program, candidates, operator, function, new)[position] == value


def test_faults_that_are_passed_by_are_marked(program: Path, candidates: list[Candidate], tmp_path: Path):
    seen = tmp_path / "seen"
    seen.write_bytes(bytes(len(candidates) + 1))
    subprocess.run([program], env={**os.environ, "STFS_MUTANTS_SEEN": str(seen)}, check=True, capture_output=True)
    marks = seen.read_bytes()
    passed = {one.function for number, one in enumerate(candidates, 1) if marks[number]}
    assert {"is_below", "caller", "check"} <= passed


def test_what_is_decided_while_compiling_has_no_fault(candidates: list[Candidate]):
    lines = SAMPLE.splitlines()
    texts = {lines[one.line - 1].strip() for one in candidates}
    assert not any(text.startswith(("static_assert", "constexpr")) for text in texts)


def test_key_stays_when_lines_move():
    fault = Candidate("a.cc", 3, "comparison", "f", "a < b", "a <= b", (Edit(5, 9, f"({IS_ON} ? "),))
    moved = Candidate("a.cc", 7, "comparison", "f", "a < b", "a <= b", (Edit(50, 54, f"({IS_ON} ? "),))
    assert fault.key == moved.key


def test_comments_and_strings_hide_brackets():
    source = SourceText(b'f("(", \')\', /* ( */ 1\'000) // )\n')
    assert source.closing(1) == source.text.index(" // )") - 1


def test_a_line_names_the_inner_fault():
    outer = Candidate("a.cc", 1, "x", "f", "", "", (Edit(0, 10, "\n(\n", "\n)"),))
    inner = Candidate("a.cc", 1, "x", "f", "", "", (Edit(4, 6, "\n[\n", "\n]"),))
    mutated = MutatedFile("0123456789", {1: outer, 2: inner})
    lines = mutated.text.splitlines()
    assert mutated.faults_at(lines.index("45") + 1)[-1] == 2
    assert mutated.faults_at(lines.index("0123") + 1)[-1] == 1


def test_table_of_equivalents_can_be_read():
    read_table()
