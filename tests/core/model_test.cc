// Tests a model: tensors on which index and shards agree are served, and each other tensor is named in a
// problem.
#include "core/model/model.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "core/model/model_directory.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/intercepted_storage.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/text_archive.h"

using namespace stfs;
using namespace stfs::test;
using Kind = ModelProblem::Kind;

namespace {

std::string index_of(const std::vector<std::pair<std::string, std::string>>& weights) {
  std::string json = R"({"metadata":{"total_size":1},"weight_map":{)";
  for (const auto& [name, shard] : weights) json += fmt::format("\"{}\":\"{}.safetensors\",", name, shard);
  if (json.back() == ',') json.pop_back();
  return json + "}}";
}

/// Two shards and their index in a directory.
struct Files {
  Files() {
    directory.write("a.safetensors", archive_of({{"z", "zzz"}, {"b", "bb"}}, R"({"format":"pt"})"));
    directory.write("b.safetensors",
                    archive_of({{"a", "aaaa"}, {"c", ""}}, R"({"format":"pt","extra":"x"})"));
    index({{"z", "a"}, {"b", "a"}, {"a", "b"}, {"c", "b"}});
  }
  void index(const std::vector<std::pair<std::string, std::string>>& weights) const {
    directory.write("m.safetensors.index.json", index_of(weights));
  }
  [[nodiscard]] std::string index_path() const { return directory / "m.safetensors.index.json"; }
  [[nodiscard]] std::unique_ptr<Model> open(Access access = Access::ReadOnly) const {
    auto model = Model::open(index_path(), {.access = access});
    if (!model) throw std::runtime_error(model.error().message);
    return std::move(*model);
  }
  [[nodiscard]] Error refusal(bool is_strict = true) const {
    auto model = Model::open(index_path(), {.is_strict = is_strict});
    return model ? Error{} : std::move(model).error();
  }

  TemporaryDirectory directory;
};

/// Counts the reads of archives.
class ReadCountingStorage final : private Interceptor, public InterceptedStorage {
 public:
  ReadCountingStorage() : InterceptedStorage(system_storage(), static_cast<Interceptor&>(*this)) {}
  std::atomic<int> reads = 0;

 private:
  Verdict before(const SeamCall& call) override {
    if (call.kind == FileCall::Read && call.role == FileRole::Archive) ++reads;
    return {};
  }
};

std::vector<Kind> kinds_of(const Model& model) {
  std::vector<Kind> kinds;
  for (const ModelProblem& problem : model.problems()) kinds.push_back(problem.kind);
  return kinds;
}

}  // namespace

TEST_CASE("a single archive is a model of its own tensors", "[core][model]") {
  const Files files;
  const auto model = Model::open(files.directory / "a.safetensors", {});
  REQUIRE(model);
  CHECK_FALSE((*model)->is_sharded());
  CHECK(&(*model)->tensors() == &(*model)->front().tensors());
  CHECK((*model)->path() == files.directory / "a.safetensors");
  CHECK(tensor_content(**model, "b") == "bb");
  CHECK((*model)->shards().size() == 1);
  CHECK((*model)->first_tensor(1) == 2);
}

TEST_CASE("the tensors of all shards lie back to back, shard after shard", "[core][model]") {
  const Files files;
  const auto model = files.open();
  CHECK(model->is_sharded());
  CHECK(names_of(*model) == std::vector<std::string>{"z", "b", "a", "c"});
  CHECK(model->tensors()[2].data == ByteRange{5, 4});
  CHECK(model->data_size_bytes() == 9);
  CHECK(tensor_content(*model, "z") == "zzz");
  CHECK(tensor_content(*model, "a") == "aaaa");
  CHECK(tensor_content(*model, "c").empty());
  CHECK(model->first_tensor(1) == 2);
  CHECK(model->problems().empty());
  CHECK(model->metadata() == Metadata{{"format", "pt"}, {"extra", "x"}});
  CHECK(model->path() == files.index_path());
}

TEST_CASE("a directory with one index is that model; with two it is refused by name", "[core][model]") {
  const Files files;
  const auto model = Model::open(files.directory.path(), {});
  REQUIRE(model);
  CHECK((*model)->tensors().size() == 4);
  files.directory.write("other.safetensors.index.json", "{}");
  const auto refused = Model::open(files.directory.path(), {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().errno_value == EINVAL);
  CHECK(contains(refused.error().message, files.index_path()));
  CHECK(contains(refused.error().message, files.directory / "other.safetensors.index.json"));
}

TEST_CASE("an index that was replaced or removed is another one, one of another mode is not",
          "[core][model]") {
  const Files files;
  const auto model = files.open();
  CHECK_FALSE(model->is_index_changed());
  std::filesystem::permissions(files.index_path(), std::filesystem::perms::owner_read);
  CHECK_FALSE(model->is_index_changed());
  SECTION("replaced") {
    std::filesystem::copy(files.index_path(), files.directory / "new");
    std::filesystem::rename(files.directory / "new", files.index_path());
  }
  SECTION("removed") {
    std::filesystem::remove(files.index_path());
  }
  CHECK(model->is_index_changed());
}

TEST_CASE("a directory without an index is no model", "[core][model]") {
  const TemporaryDirectory directory;
  CHECK(Model::open(directory.path(), {}).error().errno_value == ENOENT);
}

TEST_CASE("shards are found beside the link that the index is", "[core][model]") {
  const Files files;
  std::filesystem::create_directory(files.directory / "snapshot");
  for (const char* name : {"a.safetensors", "b.safetensors", "m.safetensors.index.json"}) {
    std::filesystem::rename(files.directory / name, files.directory / (std::string("blob-") + name));
    std::filesystem::create_symlink(std::string("../blob-") + name,
                                    files.directory.path() / "snapshot" / name);
  }
  const auto model = Model::open(files.directory / "snapshot", {});
  REQUIRE(model);
  CHECK(tensor_content(**model, "b") == "bb");
  CHECK((*model)->archive_of(0).path() == files.directory / "snapshot/a.safetensors");
}

TEST_CASE("a tensor that its shard lacks is told and not served", "[core][model]") {
  const Files files;
  files.index({{"z", "a"}, {"b", "a"}, {"a", "b"}, {"c", "b"}, {"gone", "b"}});
  const auto model = files.open();
  CHECK(model->tensors().size() == 4);
  CHECK(kinds_of(*model) == std::vector{Kind::TensorMissing});
  CHECK(contains(model->problems()[0].message, "\"gone\": not in b.safetensors"));
  REQUIRE(model->unserved().size() == 1);
  CHECK(contains(model->why_unserved(model->unserved()[0]), "\"gone\""));
  const Error refused = files.refusal();
  CHECK(refused.errno_value == EINVAL);
  CHECK(contains(refused.message, "\"gone\""));
  CHECK(contains(refused.message, files.index_path()));
}

TEST_CASE("a tensor in another shard than the index says is served from there and told", "[core][model]") {
  const Files files;
  files.index({{"z", "a"}, {"b", "b"}, {"a", "b"}, {"c", "b"}});
  const auto model = files.open();
  CHECK(kinds_of(*model) == std::vector{Kind::TensorElsewhere});
  CHECK(contains(model->problems()[0].message, "\"b\": in a.safetensors, but the index names b.safetensors"));
  CHECK(tensor_content(*model, "b") == "bb");
  CHECK(contains(files.refusal().message, "\"b\""));
}

TEST_CASE("a tensor that the index does not name is served and told", "[core][model]") {
  const Files files;
  files.index({{"z", "a"}, {"a", "b"}, {"c", "b"}});
  const auto model = files.open();
  CHECK(kinds_of(*model) == std::vector{Kind::TensorUnlisted});
  CHECK(tensor_content(*model, "b") == "bb");
}

TEST_CASE("of a tensor in two shards the one that the index names is served", "[core][model]") {
  const Files files;
  files.directory.write("b.safetensors", archive_of({{"before", "1"}, {"b", "other"}, {"a", "aaaa"}}));
  files.index({{"z", "a"}, {"b", "a"}, {"before", "b"}, {"a", "b"}});
  const auto model = files.open();
  CHECK(kinds_of(*model) == std::vector{Kind::TensorTwice});
  CHECK(names_of(*model) == std::vector<std::string>{"z", "b", "before", "a"});
  CHECK(tensor_content(*model, "b") == "bb");
  CHECK(tensor_content(*model, "a") == "aaaa");
  CHECK(model->tensors()[3].data == ByteRange{6, 4});
}

TEST_CASE("a tensor in two shards of which the index names neither is not served", "[core][model]") {
  const Files files;
  files.directory.write("b.safetensors", archive_of({{"b", "other"}, {"a", "aaaa"}}));
  files.index({{"z", "a"}, {"a", "b"}});
  const auto model = files.open();
  CHECK(kinds_of(*model) == std::vector{Kind::TensorTwice});
  CHECK_FALSE(model->tensors().find("b"));
}

TEST_CASE("the header of a file with many names is read once", "[core][model]") {
  const Files files;
  const auto reads_of = [&](const std::vector<std::pair<std::string, std::string>>& weights) {
    files.index(weights);
    ReadCountingStorage storage;
    const auto model = Model::open(files.index_path(), {.storage = &storage, .io = Io::Pread});
    REQUIRE(model);
    CHECK((*model)->tensors().size() == 2);
    CHECK((*model)->unserved().size() == weights.size() - 2);
    return storage.reads.load();
  };
  for (int at = 0; at < 3; ++at) {
    const std::string link = files.directory / fmt::format("c{}.safetensors", at);
    std::filesystem::create_hard_link(files.directory / "a.safetensors", link);
  }
  const int of_one = reads_of({{"z", "a"}, {"b", "a"}});
  CHECK(of_one > 0);
  CHECK(reads_of({{"z", "a"}, {"b", "a"}, {"1", "c0"}, {"2", "c1"}, {"3", "c2"}}) == of_one);
}

TEST_CASE("a file is opened by another name if its first one can't be used", "[core][model]") {
  const Files files;
  if (::geteuid() != 0) return note_skip("needs root, to make a link of another user's");
  constexpr uid_t kOther = 4242;
  const std::string planted = files.directory / "a0.safetensors";
  std::filesystem::create_symlink("b.safetensors", planted);
  REQUIRE(::lchown(planted.c_str(), kOther, kOther) == 0);
  files.index({{"z", "a0"}, {"a", "b"}, {"c", "b"}});
  const auto model = Model::open(files.index_path(), {.links = Links::Trusted});
  REQUIRE(model);
  CHECK(tensor_content(**model, "a") == "aaaa");
}

TEST_CASE("a shard that can't be used is told with the reason, and the others are served", "[core][model]") {
  const Files files;
  const std::string bad = files.directory / "b.safetensors";
  std::string reason;
  SECTION("missing") {
    std::filesystem::remove(bad);
    reason = "No such file";
  }
  SECTION("short") {
    std::filesystem::resize_file(bad, std::filesystem::file_size(bad) - 1);
    reason = "data";
  }
  SECTION("a loop of links") {
    std::filesystem::remove(bad);
    std::filesystem::create_symlink("b.safetensors", bad);
    reason = "Too many levels of symbolic links";
  }
  SECTION("a directory") {
    std::filesystem::remove(bad);
    std::filesystem::create_directory(bad);
    reason = "directory";
  }
  SECTION("the same file as another") {
    std::filesystem::remove(bad);
    if (GENERATE(false, true)) {
      std::filesystem::create_symlink("a.safetensors", bad);
    } else {
      std::filesystem::create_hard_link(files.directory / "a.safetensors", bad);
    }
    reason = "is the same file as";
  }
  const auto model = files.open();
  CHECK(names_of(*model) == std::vector<std::string>{"z", "b"});
  CHECK(kinds_of(*model) == std::vector{Kind::ShardUnusable});
  CAPTURE(model->problems()[0].message);
  CHECK(contains(model->problems()[0].message, bad));
  CHECK(contains(model->problems()[0].message, reason));
  CHECK(contains(model->problems()[0].message, "2 tensors"));
  REQUIRE(model->unserved().size() == 2);
  CHECK(contains(model->why_unserved(model->unserved()[0]), reason));
  CHECK(contains(files.refusal().message, reason));
}

TEST_CASE("a model of which no shard can be used is refused", "[core][model]") {
  const Files files;
  std::filesystem::remove(files.directory / "a.safetensors");
  std::filesystem::remove(files.directory / "b.safetensors");
  const Error refused = files.refusal(false);
  CHECK(refused.errno_value == ENOENT);
  CHECK(contains(refused.message, "none of its 2 shards"));
  files.index({});
  CHECK(files.refusal(false).errno_value == EINVAL);
}

TEST_CASE("an index that leads out of its directory is refused with its path", "[core][model]") {
  const Files files;
  files.index({{"z", "../a"}});
  CHECK(files.refusal(false).errno_value == EINVAL);
  CHECK(contains(files.refusal(false).message, files.index_path()));
  files.index({{"z", "/etc/a"}});
  CHECK(files.refusal(false).errno_value == EINVAL);
}

TEST_CASE("shards that differ in their metadata are told, not refused", "[core][model]") {
  const Files files;
  files.directory.write("b.safetensors", archive_of({{"a", "aaaa"}, {"c", ""}}, R"({"format":"np"})"));
  const auto model = files.open();
  CHECK(kinds_of(*model) == std::vector{Kind::MetadataConflict});
  CHECK(model->metadata() == Metadata{{"format", "pt"}});
  CHECK(Model::open(files.index_path(), {.is_strict = true}));
}

TEST_CASE("many disagreements are counted and the first of them named", "[core][model]") {
  const Files files;
  std::vector<std::pair<std::string, std::string>> weights = {{"z", "a"}, {"b", "a"}, {"a", "b"}, {"c", "b"}};
  for (int at = 0; at < 50; ++at) weights.emplace_back(fmt::format("gone{:02}", at), "a");
  files.index(weights);
  const std::string message = files.refusal().message;
  CHECK(contains(message, "in 50 places"));
  CHECK(contains(message, "gone19"));
  CHECK_FALSE(contains(message, "gone20"));
  CHECK(contains(message, "... and 30 more"));
}

TEST_CASE("hidden files and names that only end like an index or an archive are none", "[core][model]") {
  const TemporaryDirectory directory;
  for (const char* name : {".safetensors", ".safetensors.index.json", "a.safetensors", "b.txt",
                           "m.safetensors.index.json", ".hidden.safetensors", ".h.safetensors.index.json"})
    static_cast<void>(directory.write(name, ""));
  const auto found = list_model_directory(directory.path());
  REQUIRE(found);
  CHECK(found->archives == std::vector<std::string>{"a.safetensors"});
  CHECK(found->indexes == std::vector<std::string>{"m.safetensors.index.json"});
}

TEST_CASE("an index that another user may have planted is not the directory's", "[core][model]") {
  if (::geteuid() != 0) return;  // only root may give files away
  const TemporaryDirectory directory;
  const std::string name = "m.safetensors.index.json";
  directory.write("a.safetensors", archive_of({{"t", "1"}}));
  const std::string index = directory.write(name, index_of({{"t", "a"}}));
  const auto is_ignored = [&](uid_t owner, mode_t directory_mode) {
    REQUIRE(::lchown(index.c_str(), owner, owner) == 0);
    REQUIRE(::chmod(directory.path().c_str(), directory_mode) == 0);
    const auto found = list_model_directory(directory.path()).value();
    CHECK(found.indexes.size() + found.ignored_indexes.size() == 1);
    CHECK(Model::open(directory.path(), {}).has_value() == found.ignored_indexes.empty());
    return found.indexes.empty();
  };
  for (const mode_t open_to : {0777U, 01777U, 0775U}) {
    CHECK(is_ignored(4321, open_to));
    CHECK_FALSE(is_ignored(0, open_to));
    REQUIRE(::chown(directory.path().c_str(), 4321, 0) == 0);
    CHECK_FALSE(is_ignored(4321, open_to));
    REQUIRE(::chown(directory.path().c_str(), 0, 0) == 0);
  }
  CHECK_FALSE(is_ignored(4321, 0755));
  std::filesystem::create_hard_link(index, directory / "other");
  CHECK(is_ignored(0, 0777));
  CHECK_FALSE(is_ignored(0, 0755));
  CHECK(is_ignored(4321, 0777));
  const auto refused = Model::open(directory.path(), {});
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "; the index \"" + name +
                                              "\" is ignored: other users may write the directory, and it "
                                              "belongs to user 4321 and has 2 names: name the index"));
  CHECK(Model::open(index, {}));
}

TEST_CASE("a model is refused where this process may open no more files, at any shard", "[core][model]") {
  const TemporaryDirectory directory;
  for (const char* name : {"a", "b", "c"})
    directory.write(fmt::format("{}.safetensors", name), archive_of({{name, name}}));
  const auto index =
      directory.write("m.safetensors.index.json", index_of({{"a", "a"}, {"b", "b"}, {"c", "c"}}));
  unsigned refused = 0;
  for (unsigned nth = 1;; ++nth) {
    FaultyStorage storage;
    storage.plan().fail_call(FileCall::Open, nth, EMFILE);
    const auto model = Model::open(index, {.storage = &storage, .uses_threads = false});
    if (!storage.plan().failed()) break;
    CAPTURE(nth);
    // Some of the opened files are only looked for, such as journals.
    CHECK((model ? (*model)->unserved().empty() : errno_of(model) == EMFILE));
    refused += !model;
  }
  CHECK(refused >= 4);  // the index and each shard
}

TEST_CASE("a hundred shards are opened for writing, each for its own tensors", "[core][model]") {
  const TemporaryDirectory directory;
  std::vector<std::pair<std::string, std::string>> weights;
  for (int at = 0; at < 100; ++at) {
    directory.write(fmt::format("{}.safetensors", at),
                    archive_of({{fmt::format("t{}", at), fmt::format("{}", at)}}));
    weights.emplace_back(fmt::format("t{}", at), fmt::format("{}", at));
  }
  directory.write("m.safetensors.index.json", index_of(weights));
  const auto model = Model::open(directory.path(), {.access = Access::ReadWrite});
  REQUIRE(model);
  CHECK((*model)->access() == Access::ReadWrite);
  CHECK((*model)->tensors().size() == 100);
  for (int at = 0; at < 100; ++at)
    CHECK(tensor_content(**model, fmt::format("t{}", at)) == fmt::format("{}", at));
}
