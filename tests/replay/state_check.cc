// Opens an archive after a crash, which recovers it, and prints a line of JSON: whether its content is the
// content after a whole number of commits, and this number. Exit status 0: nothing is torn, lost or left
// over.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/archive/archive.h"
#include "core/commit/transaction.h"
#include "core/journal/journal_format.h"
#include "tests/replay/seeded_commits.h"

namespace stfs::replay {
namespace {

using Json = nlohmann::ordered_json;
using Bytes = std::vector<std::byte>;

struct Request {
  std::string path;
  std::uint64_t seed = 1;
  std::uint64_t at_least = 0;  // the last commit that was promised
  std::uint64_t at_most = 0;   // the last that was begun
  std::uint64_t large_bytes = 8U << 20U;
  bool is_read_only = false;
  bool writes = false;
};

Bytes file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Bytes bytes(std::filesystem::file_size(path));
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!in) bytes.clear();
  return bytes;
}

/// The bytes that a reader of the archive gets: through journals if the archive could not be recovered.
Result<Bytes> bytes_through(const Archive& archive, const Layout& layout) {
  Bytes bytes(layout.size_bytes);
  std::ranges::copy(std::as_bytes(std::span(layout.header)), bytes.begin());  // parsed already
  std::vector<std::byte> scratch;
  const ByteRange data{layout.header.size(), layout.size_bytes - layout.header.size()};
  auto read = archive.read(data, scratch);
  if (!read) return pass_on(std::move(read));
  std::ranges::copy(*read, bytes.begin() + static_cast<std::ptrdiff_t>(data.offset));
  return bytes;
}

std::vector<std::string> journals_of(const std::filesystem::path& path) {
  std::vector<std::string> names;
  const std::string prefix = journal_prefix(path.filename().string());
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::absolute(path).parent_path())) {
    if (entry.path().filename().string().starts_with(prefix))
      names.push_back(entry.path().filename().string());
  }
  return names;
}

/// The first difference between the content and a state, as a message.
std::string first_difference(const Layout& layout, const Bytes& found, const Bytes& expected) {
  if (found.size() != expected.size()) return "the file has " + std::to_string(found.size()) + " bytes";
  const auto at = static_cast<std::uint64_t>(std::ranges::mismatch(found, expected).in1 - found.begin());
  std::string name = "the header";
  for (const PlainTensor& tensor : layout.tensors) {
    if (at >= tensor.offset) name = tensor.name;
  }
  return "byte " + std::to_string(at) + ", in " + name;
}

class Verdict {
 public:
  Verdict(const Request& request, const Layout& layout) : request_(request), layout_(layout) {}

  /// "whole", "lost" (an older state than was promised), "early" (one that was not begun) or "torn".
  std::string judge(const Bytes& found, Json& report) const {
    // Also tries some commits after the last begun one, because such a content shows a mistake of the
    // harness.
    Expectation state(layout_, request_.seed);
    for (;;) {
      if (state.number() == request_.at_least) {
        report["against_promised"] = first_difference(layout_, found, state.bytes());
      }
      if (state.bytes() == found) break;
      if (state.number() == request_.at_most + 2) return "torn";
      state.advance();
    }
    report.erase("against_promised");
    report["state"] = state.number();
    if (state.number() < request_.at_least) return "lost";
    return state.number() > request_.at_most ? "early" : "whole";
  }

 private:
  const Request& request_;
  const Layout& layout_;
};

/// Checks that the archive takes the next commit.
std::string commit_next(Archive& archive, const Request& request, const Layout& layout,
                        std::uint64_t number) {
  Transaction transaction(archive);
  Bytes bytes;
  for (const Patch& patch : patches_of(layout, request.seed, number)) {
    bytes.resize(patch.size_bytes);
    fill_bytes(bytes, request.seed, number, layout.tensors[patch.tensor].offset + patch.begin);
    auto staging = transaction.stage(TensorId{static_cast<std::uint32_t>(patch.tensor)});
    if (!staging) return staging.error().message;
    if (auto written = (*staging)->write(bytes, patch.begin); !written) return written.error().message;
  }
  ReaderWriterLock readers;
  auto done = transaction.commit({}, [&](TensorId) -> ReaderWriterLock& { return readers; });
  if (!done) return done.error().message;
  Expectation expected(layout, request.seed);
  while (expected.number() < number) expected.advance();
  return file_bytes(request.path) == expected.bytes() ? ""
                                                      : "the next commit left something else than itself";
}

Json check(const Request& request) {
  const Layout layout(request.large_bytes);
  Json report;
  auto archive = Archive::open(request.path, request.is_read_only ? Access::ReadOnly : Access::ReadWrite);
  if (!archive) {
    report["verdict"] = "unreadable";
    report["explanation"] = archive.error().message;
    report["errno"] = archive.error().errno_value;
    return report;
  }
  const Verdict verdict(request, layout);
  report["applied"] =
      std::ranges::count((*archive)->recovered(), JournalAction::Applied, &JournalReport::action);
  auto read = bytes_through(**archive, layout);
  if (!read) {
    report["verdict"] = "unreadable";
    report["explanation"] = read.error().message;
    return report;
  }
  report["verdict"] = verdict.judge(*read, report);
  for (const JournalReport& journal : (*archive)->recovered()) {
    if (journal.action == JournalAction::None) report["explanation"] = journal.explanation;
  }
  if (request.is_read_only || report["verdict"] != "whole") {
    report["journals"] = journals_of(request.path);
    return report;
  }
  if (file_bytes(request.path) != *read) {
    report["verdict"] = "torn";
    report["explanation"] = "the file differs from what the archive shows";
  }
  report["journals"] = journals_of(request.path);
  if (!report["journals"].empty()) report["verdict"] = "left over";
  if (request.writes && report["verdict"] == "whole") {
    const std::string failure =
        commit_next(**archive, request, layout, report["state"].get<std::uint64_t>() + 1);
    if (!failure.empty()) {
      report["verdict"] = "stuck";
      report["explanation"] = failure;
    }
  }
  return report;
}

}  // namespace
}  // namespace stfs::replay

int main(int argc, char** argv) {
  stfs::replay::Request request;
  CLI::App app("Is an archive of commit_workload whole after a crash?");
  app.add_option("ARCHIVE", request.path)->required();
  app.add_option("--seed", request.seed);
  app.add_option("--at-least", request.at_least, "the last commit that was promised");
  app.add_option("--at-most", request.at_most, "the last commit that was begun");
  app.add_option("--large-bytes", request.large_bytes);
  app.add_flag("--read-only", request.is_read_only, "open it for reading, which changes nothing");
  app.add_flag("--writes", request.writes, "make the next commit as well");
  CLI11_PARSE(app, argc, argv);
  const auto report = stfs::replay::check(request);
  std::cout << report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
  return report["verdict"] == "whole" ? 0 : 1;
}
