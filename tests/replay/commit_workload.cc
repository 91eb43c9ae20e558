// Makes commits, one after the other, to an archive that a test is about to crash. The program announces each
// commit on stdout before it begins and when it has been promised, so the test knows which commits the
// archive must hold after the crash.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "core/commit/transaction.h"
#include "tests/replay/seeded_commits.h"
#include "tests/support/lying_storage.h"

namespace stfs::replay {
namespace {

struct Request {
  std::string path;
  std::uint64_t seed = 1;
  std::uint64_t first = 1;
  std::uint64_t commits = 8;
  std::uint64_t large_bytes = 8U << 20U;
  std::uint64_t patience_ms = 10'000;
  std::string durability = "power";
  std::string lie;
  std::string fill;      // tensor
  std::string position;  // file
  bool keeps_journal = false;
  bool creates = false;
};

const std::map<std::string, std::vector<test::SeamCall>> kLies = {
    {"journal-sync", {{test::FileCall::Sync, test::FileRole::Journal}}},
    {"directory-sync", {{test::FileCall::SyncDirectory, test::FileRole::Directory}}},
    {"archive-sync", {{test::FileCall::Sync, test::FileRole::Archive}}},
    {"journal-publish",
     {{test::FileCall::Publish, test::FileRole::Journal},
      {test::FileCall::Remove, test::FileRole::Journal}}}};

/// The position in the log of the block recorder: the number of its entries, in a file that the recorder
/// maps.
class LogPosition {
 public:
  explicit LogPosition(const std::string& path) : path_(path) {}
  /// " N", or "" when no recorder runs.
  [[nodiscard]] std::string text() const {
    if (path_.empty()) return {};
    std::uint64_t entries = 0;
    std::ifstream(path_, std::ios::binary).read(reinterpret_cast<char*>(&entries), sizeof entries);
    return " " + std::to_string(entries);
  }

 private:
  std::string path_;
};

/// Writes a line in one system call, so a kill leaves the whole line or nothing.
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::exit(3);
}

void create_archive(const Request& request, const Layout& layout) {
  const Expectation first(layout, request.seed);
  std::ofstream out(request.path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(first.bytes().data()),
            static_cast<std::streamsize>(first.bytes().size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + request.path);
}

Result<void> stage(Transaction& transaction, const Archive& archive, const Request& request,
                   const Layout& layout, std::uint64_t number) {
  std::vector<Patch> patches;
  if (request.fill.empty()) {
    patches = patches_of(layout, request.seed, number);
  } else {
    const std::size_t tensor = layout.position(request.fill);
    patches = {{tensor, 0, layout.tensors[tensor].size_bytes}};
  }
  std::vector<std::byte> bytes;
  for (const Patch& patch : patches) {
    const PlainTensor& tensor = layout.tensors[patch.tensor];
    bytes.assign(patch.size_bytes, static_cast<std::byte>(number));
    if (request.fill.empty()) fill_bytes(bytes, request.seed, number, tensor.offset + patch.begin);
    auto staging = transaction.stage(*archive.version()->find(tensor.name));
    if (!staging) return pass_on(std::move(staging));
    // The size of writes of `dd of=`.
    constexpr std::size_t kWriteBytes = 1 << 20;
    if (bytes.size() == tensor.size_bytes && bytes.size() > kWriteBytes) {
      if (auto cut = (*staging)->resize(0); !cut) return cut;
    }
    for (std::size_t at = 0; at < bytes.size(); at += kWriteBytes) {
      const auto part = std::span(bytes).subspan(at, std::min(kWriteBytes, bytes.size() - at));
      if (auto written = (*staging)->write(part, patch.begin + at); !written) return written;
    }
  }
  return {};
}

/// The outcome of a failed commit, as the archive reports it.
std::string_view outcome(const Archive& archive, const Error& error) {
  if (error.code == ErrorCode::CommitUnknown) return "unknown";
  return archive.check_writable() ? "aborted" : "committed";
}

int run(const Request& request) {
  const Layout layout(request.large_bytes);
  if (request.creates) {
    create_archive(request, layout);
    return 0;
  }
  std::optional<test::LyingStorage> liar;
  if (!request.lie.empty()) liar.emplace(system_storage(), kLies.at(request.lie));
  Storage& storage = liar ? static_cast<Storage&>(*liar) : system_storage();
  auto archive = Archive::open(request.path, Access::ReadWrite, storage);
  if (!archive) {
    say("unopened " + std::to_string(archive.error().errno_value) + " " + archive.error().message);
    return 1;
  }
  CommitOptions options;
  options.durability = request.durability == "power" ? Durability::Power : Durability::Process;
  options.lock_patience = std::chrono::milliseconds(request.patience_ms);
  ReaderWriterLock readers;
  const LogPosition position(request.position);
  for (std::uint64_t number = request.first; number < request.first + request.commits; ++number) {
    // A mount prepares a lane journal when commits follow one another, and settles it when none comes for a
    // while.
    LaneJournal& lane_journal = (*archive)->lane_journal();
    if (request.keeps_journal && number > request.first) {
      const auto kept = number % 3 == 0 ? lane_journal.settle(options.durability) : lane_journal.prepare();
      if (!kept) say("unkept " + kept.error().message);
    }
    say("begin " + std::to_string(number) + position.text());
    Transaction transaction(**archive);
    auto done = stage(transaction, **archive, request, layout, number);
    if (done) done = transaction.commit(options, [&](TensorId) -> ReaderWriterLock& { return readers; });
    if (!done) {
      say("failed " + std::to_string(number) + " " + std::to_string(done.error().errno_value) + " " +
          std::string(outcome(**archive, done.error())) + " " + done.error().message);
      return 1;
    }
    say("done " + std::to_string(number) + position.text());
  }
  if (const auto retired = (*archive)->lane_journal().retire(options.durability); !retired) {
    say("unkept " + retired.error().message);
  }
  say("finished");
  return 0;
}

}  // namespace
}  // namespace stfs::replay

int main(int argc, char** argv) {
  stfs::replay::Request request;
  CLI::App app("Commits that follow from a seed, to an archive of --create.");
  app.add_option("ARCHIVE", request.path)->required();
  app.add_option("--seed", request.seed);
  app.add_option("--first", request.first, "number of the first commit");
  app.add_option("--commits", request.commits);
  app.add_option("--large-bytes", request.large_bytes, "size of the largest tensor");
  app.add_option("--patience-ms", request.patience_ms, "how long to wait for a lock");
  app.add_option("--durability", request.durability)->check(CLI::IsMember({"power", "process"}));
  app.add_option("--lie", request.lie, "the step that is said to be done and is not")
      ->check(CLI::IsMember(stfs::replay::kLies));
  app.add_option("--fill", request.fill, "commit N fills this tensor with the byte N, and nothing else");
  app.add_option("--position", request.position, "the block recorder's position, to be told with each line");
  app.add_flag("--keep-journal", request.keeps_journal, "small commits go through a lane journal");
  app.add_flag("--create", request.creates, "write the archive as it is before commit 1, and end");
  CLI11_PARSE(app, argc, argv);
  return stfs::replay::run(request);
}
