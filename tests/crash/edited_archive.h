// An archive as its readers see it, edits of it at random, and who carries them out. The expected content is
// kept in maps, computed without the code under test.
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

/// What one transaction does: an edit, or new bytes for some tensors. Or a compaction, which takes several.
/// Or a replacement of the archive by a new file.
struct EditStep {
  EditedContent after;
  /// Names before, of the tensors whose bytes stay: by their names afterwards.
  std::map<std::string, std::string> kept;
  bool is_patch = false;
  bool is_compaction = false;
  bool is_replacement = false;
};

std::string random_bytes(std::uint64_t size_bytes, Choices& choices);
/// A tensor of bytes, as new ones are.
EditedContent::Value random_value(Choices& choices);
/// One of a few dozen; some are long, and some need escapes.
std::string random_name(Choices& choices);
/// Gives the tensor another dtype and shape for as many bytes.
void reinterpret(EditedContent::Value& value, Choices& choices);
/// One of a few keys of the metadata, and its new value; nothing: the key goes.
std::pair<std::string, std::optional<std::string>> random_entry(Choices& choices);

/// A random step. Deletes, adds, renames and reinterprets tensors, and changes metadata; or patches.
EditStep random_step(const EditedContent& before, Choices& choices);
/// An archive as the reference writes it: no room in the header, and data at a multiple of 8 only.
/// @param padding  spaces behind the header.
std::string tight_archive(const EditedContent& content, std::size_t padding = 0);
/// Some tensors to begin with.
EditedContent first_content(Choices& choices);

/// Carries out a step on an open archive, which shows the old version afterwards.
Result<void> carry_out(Archive& archive, const EditStep& step, const CommitOptions& options);
/// Compacts the archive at the path, and opens it anew for each step. Fails if there is no end.
Result<void> compact(Storage& storage, const std::filesystem::path& path, const CommitOptions& options);
/// What a reader of the archive finds.
Result<EditedContent> content_of(const Archive& archive);
/// What a program finds in a file's bytes that knows the format and nothing of journals; nothing where it
/// refuses them. Fillers are checked and left out.
std::optional<EditedContent> read_plainly(std::string_view bytes);

}  // namespace stfs::test
