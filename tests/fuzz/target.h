// Targets of fuzzing. One function judges an input. The input comes from our mutator in every run of the
// tests (fuzz_run.h), or from libFuzzer (libfuzzer.cc).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "tests/support/mutator.h"

namespace stfs::test {

struct FuzzOutcome {
  /// The outcome, in a word. The outcomes are counted, so that a test sees which cases its inputs reach.
  std::string_view what;
  /// The reason if the outcome is wrong, or an empty string.
  std::string wrong = {};
};

/// The expected share of an outcome in percent. A case that is too rare is not tested.
struct FuzzShare {
  std::string_view what;
  double least = 0;
  double most = 100;
};

/// Only one thread may use a target.
struct FuzzTarget {
  std::string_view name;
  /// The shares for many inputs of make().
  std::span<const FuzzShare> shares;
  /// Returns the bytes of an input: the same bytes for the same choices, on every machine.
  Bytes (*make)(Choices& choices);
  /// Changes an input along its structure, for libFuzzer.
  void (*mutate)(Bytes& input, Choices& choices);
  /// Judges any bytes. The result depends on the input only.
  FuzzOutcome (*fuzz_one)(std::span<const std::byte> input);
};

/// The input is a whole file. The reader of headers accepts archives, and says why it refuses other files.
const FuzzTarget& header_target();
/// The input is a file beside an archive. The byte behind the file selects the other files there. Recovery
/// makes the changes of a valid journal in the archive, and no others.
const FuzzTarget& journal_target();
/// The input is DELTA.safetensors, and behind it a byte of options. `stfs apply` makes the changes of a delta
/// that fits, or none.
const FuzzTarget& delta_target();
/// The input is the text of an index beside its shards. A tensor is served if the index names it and its
/// shard has it. No path outside of the directory is requested.
const FuzzTarget& index_target();
/// The input is a packet to `stfs serve` or its client, or the manifest of a generation. The byte behind it
/// says which. A packet that is accepted has the meaning that was sent, and a manifest has no tensor outside
/// of its arena.
const FuzzTarget& serve_target();

}  // namespace stfs::test
