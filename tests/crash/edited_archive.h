// The content of an archive as readers see it, random edits, and functions that carry them out. The expected
// content is in maps, computed without the code under test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "core/commit/commit_options.h"
#include "tests/support/choices.h"

namespace stfs::test {

struct EditedContent {
  struct Value {
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::string bytes;
    friend bool operator==(const Value&, const Value&) = default;
  };
  std::map<std::string, Value> tensors;
  std::map<std::string, std::string> metadata;
  friend bool operator==(const EditedContent&, const EditedContent&) = default;
};

/// One transaction: an edit, or new bytes for some tensors. Also a compaction, which takes several
/// transactions, or a replacement of the archive by a new file.
struct EditStep {
  EditedContent after;
  /// The tensors whose bytes stay: maps their new names to their old names.
  std::map<std::string, std::string> kept;
  bool is_patch = false;
  bool is_compaction = false;
  bool is_replacement = false;
};

std::string random_bytes(std::uint64_t size_bytes, Choices& choices);
/// A random new tensor.
EditedContent::Value random_value(Choices& choices);
/// One of a few dozen names. Some are long, and some need escapes.
std::string random_name(Choices& choices);
/// Gives the tensor another dtype and shape of the same size.
void reinterpret(EditedContent::Value& value, Choices& choices);
/// One of a few keys of the metadata, and its new value; nothing: the key is removed.
std::pair<std::string, std::optional<std::string>> random_entry(Choices& choices);

/// A random step. Deletes, adds, renames and reinterprets tensors, and changes metadata; or patches.
EditStep random_step(const EditedContent& before, Choices& choices);
/// An archive as the reference library writes it: no room in the header, and data at a multiple of 8 only.
/// @param padding  spaces after the header.
std::string tight_archive(const EditedContent& content, std::size_t padding = 0);
/// The tensors at the beginning.
EditedContent first_content(Choices& choices);

/// Carries out a step on an open archive. The object still shows the old version afterwards.
Result<void> carry_out(Archive& archive, const EditStep& step, const CommitOptions& options);
/// Compacts the archive at the path, and opens it again for each step. Fails if the steps do not end.
Result<void> compact(Storage& storage, const std::filesystem::path& path, const CommitOptions& options);
/// Reads the content of the archive.
Result<EditedContent> content_of(const Archive& archive);
/// Reads a file's bytes as a program does that knows the format and no journals; nothing if it refuses them.
/// The content has no fillers, but they are checked.
std::optional<EditedContent> read_plainly(std::string_view bytes);

}  // namespace stfs::test
