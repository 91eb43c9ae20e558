// What is fuzzed. One function judges an input, whoever made it: our own mutator in every run of the tests
// (fuzz_run.h), or libFuzzer (libfuzzer.h).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "tests/support/mutator.h"

namespace stfs::test {

struct FuzzOutcome {
  /// What became of it, in a word: counted, so that a test sees what its inputs reach.
  std::string_view what;
  /// Why that must not be; empty where all is well.
  std::string wrong = {};
};

/// How often an outcome comes, of 100 executions: what is tried too rarely is not tested.
struct FuzzShare {
  std::string_view what;
  double least = 0;
  double most = 100;
};

/// A target is used by one thread.
struct FuzzTarget {
  std::string_view name;
  /// Of many inputs that make() has made.
  std::span<const FuzzShare> shares;
  /// The bytes of an input: the same for the same choices, on every machine.
  Bytes (*make)(Choices& choices);
  /// Changes an input along its structure, for libFuzzer.
  void (*mutate)(Bytes& input, Choices& choices);
  /// Any bytes are allowed; depends on nothing but them.
  FuzzOutcome (*fuzz_one)(std::span<const std::byte> input);
};

/// A whole file: the reader of headers takes what is an archive, and says why where it takes none.
const FuzzTarget& header_target();
/// A file beside an archive, and behind it a byte that says what lies around it: recovery does to the archive
/// what a valid journal says, and nothing else.
const FuzzTarget& journal_target();
/// DELTA.safetensors, and behind it a byte of options: `stfs apply` changes what a delta that fits says, or
/// nothing.
const FuzzTarget& delta_target();
/// The text of an index beside two shards: what it says and they hold is served, nothing else, and no path
/// that leads out of its directory is so much as asked for.
const FuzzTarget& index_target();
/// A packet to `stfs serve` or its client, or the manifest of a generation, and behind it a byte that says
/// which: what is taken means what was sent, and no tensor leads out of its arena.
const FuzzTarget& serve_target();

}  // namespace stfs::test
