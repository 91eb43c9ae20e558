// Publishing: published_version.h reads the written version back, in the layout that receivers expect. A
// failure leaves nothing that looks finished.
#include "tools/sync/version_writer.h"

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/model/model.h"
#include "tests/support/catch.h"
#include "tests/support/choices.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"
#include "tests/support/watched_storage.h"
#include "tools/sync/diff_decoder.h"
#include "tools/sync/published_version.h"
#include "tools/sync/version_directory.h"

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using sync::DiffEncoding;
using sync::PublishedVersion;
using sync::PublishOptions;

struct Models {
  explicit Models(const Tensors& before, const Tensors& after)
      : a(*Model::open(directory.write("old.safetensors", archive_of(before)), {})),
        b(*Model::open(directory.write("new.safetensors", archive_of(after)), {})) {}

  [[nodiscard]] Result<sync::WrittenVersion> publish(const PublishOptions& options) const {
    return sync::publish_version({*a, *b}, published(), options);
  }
  [[nodiscard]] fs::path published() const { return directory.path() / "published"; }
  [[nodiscard]] fs::path version(const std::string& name) const { return published() / name; }

  TemporaryDirectory directory;
  std::unique_ptr<Model> a;
  std::unique_ptr<Model> b;
};

Tensors before_tensors() {
  return {{"same", std::string(1000, 's')},
          {"changed", std::string(300000, 'c')},
          {"", "scalar"},
          {"empty", ""},
          {"\u00e9/\n\"", "quoted"},
          {"small", "x"}};
}

Tensors after_tensors() {
  Tensors tensors = before_tensors();
  tensors[1].second[200000] = 'd';
  tensors[2].second = "SCALAR";
  tensors[4].second = "Quoted";
  tensors[5].second = "y";
  return tensors;
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

/// Applies a version to a model's tensors, in memory.
std::string applied(const PublishedVersion& version, const sync::PublishedTensor& tensor, std::string bytes) {
  sync::DiffDecoder decoder;
  REQUIRE(decoder.start(version.encoding(), version.diff(tensor), bytes.size()));
  REQUIRE(decoder.apply(std::as_writable_bytes(std::span(bytes))));
  REQUIRE(decoder.finish());
  sync::ChecksumStream checksum(version.checksum_format());
  checksum.update(bytes_of(bytes));
  CHECK(sync::is_same_checksum(checksum.hex(), tensor.checksum));
  return bytes;
}

}  // namespace

TEST_CASE("published version has the changed tensors, and leads from the old to the new model",
          "[tools][sync]") {
  for (const DiffEncoding encoding : {DiffEncoding::Xor, DiffEncoding::Overwrite}) {
    for (const auto format : {sync::ChecksumFormat::Xxh3_128, sync::ChecksumFormat::Adler32}) {
      const Models models(before_tensors(), after_tensors());
      const auto written = models.publish({encoding, format, 42, 40, 2});
      REQUIRE(written);
      CHECK(written->path == models.version("weight_v000042"));
      CHECK(written->tensors == 6);
      CHECK(written->changed_tensors == 4);
      const auto version = PublishedVersion::open(written->path);
      REQUIRE(version);
      CHECK(version->version().text == "000042");
      CHECK(version->base_version()->text == "000040");
      CHECK(version->encoding() == encoding);
      CHECK(version->checksum_format() == format);
      std::uint64_t diff_bytes = 0;
      std::set<std::string> names;
      for (const sync::PublishedTensor& tensor : version->tensors()) {
        names.emplace(tensor.name);
        diff_bytes += tensor.file_range.size_bytes;
        CHECK(applied(*version, tensor, tensor_content(*models.a, tensor.name)) ==
              tensor_content(*models.b, tensor.name));
      }
      CHECK(names == std::set<std::string>{"changed", "", "\u00e9/\n\"", "small"});
      CHECK(written->diff_bytes == diff_bytes);
      CHECK(names_in(written->path) ==
            std::set<std::string>{"model-00001-of-00001.safetensors", "model.safetensors.index.json"});
    }
  }
}

TEST_CASE("published version of equal models has an index and no shard", "[tools][sync]") {
  const Models models(before_tensors(), before_tensors());
  const auto written = models.publish({});
  REQUIRE(written);
  CHECK(names_in(written->path) == std::set<std::string>{"model.safetensors.index.json"});
  const auto version = PublishedVersion::open(written->path);
  REQUIRE(version);
  CHECK(version->tensors().empty());
}

TEST_CASE("published version with many tensors has several shards, numbered without gaps", "[tools][sync]") {
  Tensors before;
  Tensors after;
  for (std::size_t at = 0; at < 40; ++at) {
    before.emplace_back("t" + std::to_string(at), std::string(2U << 20U, static_cast<char>('a' + at % 7)));
    after.push_back(before.back());
    after.back().second[at] = '!';
  }
  const Models models(before, after);
  const auto written = models.publish({.threads = 2});
  REQUIRE(written);
  const auto version = PublishedVersion::open(written->path);
  REQUIRE(version);
  REQUIRE(version->tensors().size() == 40);
  REQUIRE(version->shards().size() == 5);
  CHECK(version->shards()[4].path.filename() == "model-00005-of-00005.safetensors");
  for (const sync::PublishedTensor& tensor : version->tensors()) {
    CHECK(applied(*version, tensor, tensor_content(*models.a, tensor.name)) ==
          tensor_content(*models.b, tensor.name));
  }
}

TEST_CASE("publishing is refused for models of other names, dtypes or shapes, by name", "[tools][sync]") {
  const auto error_of = [](const Tensors& before, const Tensors& after) {
    const Models models(before, after);
    const auto written = models.publish({});
    REQUIRE_FALSE(written);
    CHECK(written.error().errno_value == EINVAL);
    CHECK_FALSE(fs::exists(models.version("weight_v000001")));
    return written.error().message;
  };
  CHECK(contains(error_of({{"a", "1"}, {"b", "2"}}, {{"a", "1"}}), "\"b\" is missing in NEW"));
  CHECK(contains(error_of({{"a", "1"}}, {{"a", "1"}, {"b", "2"}}), "\"b\" is missing in OLD"));
  CHECK(contains(error_of({{"a", "12"}}, {{"a", "1"}}), "\"a\" is U8 [2] in OLD and U8 [1] in NEW"));
  CHECK(
      contains(error_of({{"a", ""}, {"b", ""}, {"c", ""}, {"d", ""}, {"e", ""}}, {}), "and 2 tensors more"));
}

TEST_CASE("publishing wants a base before the version", "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  for (const std::uint64_t base : {5U, 6U}) {
    CHECK(errno_of(models.publish({.version = 5, .base_version = base})) == EINVAL);
  }
  CHECK_FALSE(fs::exists(models.published()));
}

TEST_CASE("a version that is published already is not replaced", "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  const auto written = models.publish({.version = 3, .base_version = 2});
  REQUIRE(written);
  const std::string index = content_of(written->path / "model.safetensors.index.json");
  CHECK(errno_of(models.publish({DiffEncoding::Overwrite, {}, 3, 2})) == EEXIST);
  CHECK(content_of(written->path / "model.safetensors.index.json") == index);
  CHECK(PublishedVersion::open(written->path));
}

TEST_CASE("what an interrupted publisher has left is replaced, foreign files stay", "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  const fs::path directory = models.version("weight_v000001");
  fs::create_directories(directory);
  for (const char* left : {"model-00001-of-00001.safetensors", "model-00002-of-00003.safetensors",
                           "model-00001-of-00001.safetensors.tmp", "model.safetensors.index.json.tmp",
                           "notes.txt", "model.safetensors", "model-1-of-2.safetensors"}) {
    std::ofstream(directory / left) << "left";
  }
  REQUIRE(models.publish({}));
  CHECK(names_in(directory) == std::set<std::string>{"model-00001-of-00001.safetensors",
                                                     "model.safetensors.index.json", "notes.txt",
                                                     "model.safetensors", "model-1-of-2.safetensors"});
  CHECK(PublishedVersion::open(directory));
}

TEST_CASE("two publishers of one version: one of them is refused", "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  {
    const auto other = sync::VersionDirectory::create(models.published(), 1, system_storage());
    REQUIRE(other);
    CHECK(errno_of(models.publish({})) == EBUSY);
  }
  CHECK(models.publish({}));
}

TEST_CASE("a publisher writes to the directory that it has opened, whatever its path names then",
          "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  const fs::path above = models.directory.path();
  const bool goes_on = GENERATE(true, false);
  CAPTURE(goes_on);
  fs::create_directories(above / "private/weight_v000001");
  const std::set<std::string> names = {"model-00001-of-00001.safetensors",
                                       "model-00001-of-00001.safetensors.tmp", "model.safetensors.index.json",
                                       "model.safetensors.index.json.tmp"};
  for (const std::string& name : names) models.directory.write("private/weight_v000001/" + name, "private");
  bool is_exchanged = false;
  Work work([&](std::uint64_t, std::uint64_t) {
    if (!std::exchange(is_exchanged, true)) {
      fs::rename(models.published(), above / "moved");
      fs::create_directory_symlink("private", models.published());
    }
    return goes_on;
  });
  const auto published = models.publish({.work = &work});
  CHECK(is_exchanged);
  CHECK(published.has_value() == goes_on);
  CHECK(names_in(above / "private/weight_v000001") == names);
  for (const std::string& name : names)
    CHECK(content_of(above / "private/weight_v000001" / name) == "private");
  CHECK(names_in(above / "moved").empty() == !goes_on);
  if (goes_on) CHECK(PublishedVersion::open(above / "moved/weight_v000001"));
  if (!goes_on) CHECK(published.error().message.find("/proc/self") == std::string::npos);
}

TEST_CASE("a stopped or failed publisher leaves nothing that it has made", "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  Work work([](std::uint64_t, std::uint64_t) { return false; });
  CHECK(errno_of(models.publish({.work = &work})) == EINTR);
  CHECK(names_in(models.published()).empty());
  // The archive ends before its tensors.
  fs::resize_file(models.b->path(), fs::file_size(models.b->path()) - 100);
  CHECK_FALSE(models.publish({}));
  CHECK(names_in(models.published()).empty());
}

TEST_CASE("whichever write or sync of a directory fails, a publisher tells why and leaves nothing",
          "[tools][sync]") {
  const FileCall kind = GENERATE(FileCall::Write, FileCall::SyncDirectory);
  for (int nth = 1;; ++nth) {
    const Models models(before_tensors(), after_tensors());
    std::atomic<int> seen = 0;
    WatchedStorage storage([&](const SeamCall& call) {
      const bool is_due = call.kind == kind && ++seen == nth;
      return is_due ? Verdict{.kind = Verdict::Kind::Fail, .errno_value = ENOSPC} : Verdict{};
    });
    const int refusal = errno_of(models.publish({.storage = &storage}));
    if (seen < nth) {
      CHECK(refusal == 0);
      break;
    }
    CAPTURE(nth);
    CHECK(refusal == ENOSPC);
    CHECK(names_in(models.published()).empty());
  }
}

TEST_CASE("a failed publisher syncs the removal of an index before it removes the shards", "[tools][sync]") {
  std::vector<FileCall> after;  // the calls after the failed one
  const auto fail_sync = [&](std::ptrdiff_t number) {
    const Models models(before_tensors(), after_tensors());
    std::ptrdiff_t synced = 0;
    after.clear();
    WatchedStorage storage([&](const SeamCall& call) {
      if (number != 0 && synced >= number) after.push_back(call.kind);
      if (call.kind != FileCall::SyncDirectory || ++synced != number) return Verdict{};
      return Verdict{.kind = Verdict::Kind::Fail, .errno_value = EIO};
    });
    CHECK(errno_of(models.publish({.threads = 1, .storage = &storage})) == (number == 0 ? 0 : EIO));
    return synced;
  };
  const std::ptrdiff_t all = fail_sync(0);
  fail_sync(all);  // the index has its name
  REQUIRE(std::ranges::count(after, FileCall::Remove) == 2);
  const auto index_removed = std::ranges::find(after, FileCall::Remove);
  CHECK(*std::next(index_removed) == FileCall::SyncDirectory);
  fail_sync(all - 2);  // only the shard has its name
  CHECK(std::ranges::count(after, FileCall::Remove) == 1);
  CHECK(std::ranges::count(after, FileCall::SyncDirectory) == 0);
}

TEST_CASE("models that change during the publishing are refused", "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  bool is_first = true;
  Work work([&](std::uint64_t, std::uint64_t) {
    if (std::exchange(is_first, false)) models.directory.write("old.safetensors", archive_of({{"a", "?"}}));
    return true;
  });
  CHECK_FALSE(models.publish({.work = &work}));
  CHECK(names_in(models.published()).empty());
}

TEST_CASE("files of a version have the permissions of the published directory", "[tools][sync]") {
  const Models models(before_tensors(), after_tensors());
  for (const auto* model : {&models.a, &models.b}) fs::permissions((*model)->path(), fs::perms(0600));
  const std::unique_ptr<Model> a = *Model::open(models.a->path(), {});
  const std::unique_ptr<Model> b = *Model::open(models.b->path(), {});
  const mode_t umask = ::umask(022);
  std::uint64_t version = 1;
  for (const auto& [directory, file] : {std::pair{0755U, 0644U}, {0700U, 0600U}, {0750U, 0640U}}) {
    CAPTURE(directory);
    fs::create_directories(models.published());
    fs::permissions(models.published(), fs::perms(directory));
    const auto written = sync::publish_version({*a, *b}, models.published(), {.version = ++version});
    REQUIRE(written);
    for (const auto& entry : fs::directory_iterator(written->path)) {
      CHECK(entry.status().permissions() == fs::perms(file));
    }
  }
  ::umask(umask);
}

TEST_CASE("shards of a plan are about equal, and their headers are limited", "[tools][sync]") {
  Tensors tensors = {{"large", std::string(40U << 20U, 'l')}};
  for (std::size_t at = 0; at < 48; ++at)
    tensors.emplace_back("t" + std::to_string(at), std::string(1U << 20U, 't'));
  const Models models(tensors, tensors);
  const auto pairs = sync::paired_tensors({*models.a, *models.b});
  REQUIRE(pairs);
  const auto shards = sync::plan_shards(*models.b, *pairs, 2);
  REQUIRE(shards.size() == 5);
  CHECK(shards[0].size_bytes == 40U << 20U);
  for (std::size_t at = 1; at < shards.size(); ++at) CHECK(shards[at].size_bytes == 12U << 20U);
  CHECK(sync::plan_shards(*models.b, *pairs, 1).size() == 4);
  Tensors long_names;
  for (std::size_t at = 0; at < 120; ++at)
    long_names.emplace_back(std::string(100000, 'n') + std::to_string(at), "");
  const Models named(long_names, long_names);
  const auto split = sync::plan_shards(*named.b, *sync::paired_tensors({*named.a, *named.b}), 1);
  CHECK(split.size() == 3);
  for (const auto& shard : split) CHECK(shard.header_bytes <= 8U << 20U);
}

}  // namespace stfs::test
