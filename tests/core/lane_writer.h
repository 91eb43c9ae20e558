// Writers of an archive who commit through a lane journal, as a mount does for each close.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/commit/transaction.h"
#include "core/journal/lane_scan.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/temporary_directory.h"

namespace stfs::test {

/// "a" and "b" have 4 blocks each, and "large" has 40. No block has bytes of two tensors.
inline constexpr std::string_view kHeader =
    R"({"a":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]},)"
    R"("b":{"dtype":"U8","shape":[16384],"data_offsets":[16384,32768]},)"
    R"("large":{"dtype":"U8","shape":[163840],"data_offsets":[32768,196608]}})";
inline constexpr std::uint64_t kData = kBlockBytes;
inline constexpr std::uint64_t kLargeBytes = 163'840;

/// Counts calls, fails calls on request, and passes each call to a function.
class Watched final : private Interceptor, public InterceptedStorage {
 public:
  Watched() : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)) {}

  std::map<std::pair<FileCall, FileRole>, int> calls;
  std::set<std::pair<FileCall, FileRole>> failing;  // all of these calls fail
  int errno_value = EIO;
  std::function<void(const SeamCall&)> look;

  [[nodiscard]] int count(FileCall kind) const {
    int sum = 0;
    for (const auto& [call, times] : calls) sum += call.first == kind ? times : 0;
    return sum;
  }
  [[nodiscard]] int count(FileCall kind, FileRole role) const {
    const auto found = calls.find({kind, role});
    return found == calls.end() ? 0 : found->second;
  }

 private:
  Verdict before(const SeamCall& call) override {
    ++calls[{call.kind, call.role}];
    if (look) look(call);
    if (!failing.contains({call.kind, call.role})) return {};
    return {.kind = Verdict::Kind::Fail, .errno_value = errno_value};
  }
};

inline std::string archive_text() {
  std::string header(kHeader);
  header.resize(kData - 8, ' ');
  return archive_bytes(header, std::string(196'608, 'o'));
}

/// One process's view of the archive: what a mount does for each close.
class Writer {
 public:
  explicit Writer(const std::filesystem::path& path, Storage& storage = system_storage())
      : archive(Archive::open(path, Access::ReadWrite, storage).value()) {
    options.lock_patience = std::chrono::milliseconds(50);
    begin();
  }
  void begin() { transaction = std::make_unique<Transaction>(*archive); }
  Staging& stage(std::string_view tensor) const {
    return **transaction->stage(archive->version()->find(tensor).value());
  }
  void write(std::string_view tensor, std::string_view bytes, std::uint64_t offset = 0) const {
    const auto staged = stage(tensor).write(std::as_bytes(std::span(bytes.data(), bytes.size())), offset);
    if (!staged) throw std::runtime_error(staged.error().message);
  }
  Result<void> commit() {
    auto committed = transaction->commit(options, [this](TensorId) -> ReaderWriterLock& { return lock; });
    if (committed) begin();
    return committed;
  }
  Result<void> put(std::string_view tensor, std::string_view bytes, std::uint64_t offset = 0) {
    begin();
    write(tensor, bytes, offset);
    return commit();
  }
  /// Prepares the journal, as Committer::keep_journal() does after each commit.
  void keep_journal() const {
    if (lane_journal().is_wanted() && !lane_journal().prepare()) throw std::runtime_error("prepare");
  }
  /// Makes two small commits that change nothing, and prepares the journal for the third.
  void warm_up() {
    for (int at = 0; at < 2; ++at) {
      if (!put("a", "o") || lane_journal().is_ready()) throw std::runtime_error("warm up");
      keep_journal();
    }
    if (!lane_journal().is_ready()) throw std::runtime_error("no lane journal");
  }
  [[nodiscard]] LaneJournal& lane_journal() const { return archive->lane_journal(); }
  [[nodiscard]] std::string read(std::string_view tensor) const {
    std::vector<std::byte> scratch;
    const Tensor found = archive->tensors()[archive->tensors().find(tensor).value()];
    const auto bytes = archive->read(archive->file_range(found.data), scratch).value();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::unique_ptr<Archive> archive;
  ReaderWriterLock lock;
  CommitOptions options;
  std::unique_ptr<Transaction> transaction;
};

struct Place {
  Place() : path(directory.write("m.safetensors", archive_text())), expected(archive_text()) {}
  /// Changes the bytes that the test expects in the archive.
  void expect(std::string_view bytes, std::uint64_t data_offset) {
    expected.replace(kData + data_offset, bytes.size(), bytes);
  }
  [[nodiscard]] std::string content() const { return content_of(path); }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      all.insert(entry.path().filename().string());
    return all;
  }

  TemporaryDirectory directory;
  std::string path;
  std::string expected;
};

inline std::vector<JournalRecord> records_in(const std::filesystem::path& journal) {
  const auto file = system_storage().open(journal, Access::ReadOnly).value();
  return read_lanes(*file).value();
}

/// A writer whose third commit uses a lane journal, on storage that the test observes.
struct WarmWriter {
  WarmWriter() { writer.warm_up(); }

  Place place;
  Watched storage;
  Writer writer{place.path, storage};
};

}  // namespace stfs::test
