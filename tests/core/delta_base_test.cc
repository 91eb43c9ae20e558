// Tests the check whether a base has the bytes that a delta needs: by times, by an attribute, and by reading.
// Tests also the changes that a merge of a delta makes in its base, and that one edit makes them all.
#include "core/model/delta_base.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <utime.h>

#include "core/archive/archive_writer.h"
#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

using namespace stfs;
using test::contains;

namespace {

constexpr struct timespec kTime = {1'700'000'000, 123'456'789};

void write_texts(const std::string& path, const std::vector<std::pair<std::string, std::string>>& tensors,
                 const Metadata& metadata = {}) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, bytes] : tensors) specs.push_back({name, Dtype::U8, {bytes.size()}});
  auto writer = ArchiveWriter::create(path, specs, metadata, true);
  REQUIRE(writer);
  for (const auto& [name, bytes] : tensors) REQUIRE(writer->append(std::as_bytes(std::span(bytes))));
  REQUIRE(writer->finish());
}

void set_time(const std::string& path, struct timespec mtime) {
  const struct timespec times[2] = {{0, UTIME_OMIT}, mtime};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

/// A base, and the deltas A, which changes "a" and keeps "k", and B on top of it, which changes "b".
class StackedDeltas {
 public:
  StackedDeltas() {
    write_texts(base, {{"k", "keep"}, {"a", "old"}, {"b", "old"}});
    set_time(base, kTime);
    write_delta(a, "a", {});
    write_delta(b, "b", {a});
  }

  /// Writes the delta that changes one tensor of the base with these deltas.
  void write_delta(const std::string& path, const std::string& changed,
                   std::vector<std::filesystem::path> deltas) const {
    const auto under = Model::open(base, {.deltas = std::move(deltas)});
    REQUIRE(under);
    std::vector<std::uint32_t> kept;
    for (std::uint32_t at = 0; at < (*under)->tensors().size(); ++at) {
      if ((*under)->tensors()[at].name != changed) kept.push_back(at);
    }
    Work work;
    const Delta made{"base",
                     digest_of_tensors((*under)->tensors()),
                     digest_of_bytes(**under, kept, work).value(),
                     {},
                     {},
                     base_files_of(**under)};
    write_texts(path, {{changed, "new"}}, metadata_of(made));
  }
  /// Returns check_base()'s result for each delta. `why` gets the reason why bytes were read.
  Result<std::vector<BaseCheck>> check(const std::vector<std::filesystem::path>& deltas) {
    std::vector<BaseCheck> found;
    Work work([&](std::uint64_t, std::uint64_t) { return !is_ending; });
    why.clear();
    auto model =
        Model::open(base, {.deltas = deltas, .check_base = [&](const Model& each) -> Result<void> {
                             auto checked = check_base(
                                 each, [&](std::uint64_t, std::string_view reason) { why += reason; }, work);
                             if (!checked) return tl::unexpected(checked.error());
                             found.push_back(*checked);
                             return {};
                           }});
    if (!model) return tl::unexpected(model.error());
    return found;
  }
  /// Checks the delta A alone.
  Result<BaseCheck> check() {
    auto found = check({a});
    if (!found) return tl::unexpected(found.error());
    return found->front();
  }

  test::TemporaryDirectory directory;
  std::string base = directory / "base.safetensors";
  std::string a = directory / "a.safetensors";
  std::string b = directory / "b.safetensors";
  std::string why;
  bool is_ending = false;
};

bool has_attributes(const std::string& path) {
  if (::setxattr(path.c_str(), "user.probe", "", 0, 0) == 0) return true;
  test::note_skip("the file system of the temporary directory has no user attributes");
  return false;
}

struct MergeTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
};

std::unique_ptr<Model> write_and_open(const std::string& path, const std::vector<MergeTensor>& tensors,
                                      const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : tensors) specs.push_back({name, Dtype::U8, shape});
  auto writer = ArchiveWriter::create(path, specs, metadata, true);
  REQUIRE(writer);
  for (const auto& [name, shape] : tensors) {
    const std::vector<std::byte> bytes(data_size_bytes(Dtype::U8, shape).value());
    REQUIRE(writer->append(bytes));
  }
  REQUIRE(writer->finish());
  auto model = Model::open(path, {.access = Access::ReadWrite});
  REQUIRE(model);
  return std::move(*model);
}

Delta delta_of(const Model& base, std::vector<std::string> removed, Metadata metadata) {
  return {.base = "base.safetensors",
          .base_tensors = digest_of_tensors(base.tensors()),
          .base_bytes = std::string(32, '0'),
          .removed = std::move(removed),
          .metadata = std::move(metadata)};
}

}  // namespace

TEST_CASE_METHOD(StackedDeltas, "a base with the size and time of the delta's is not read", "[core][delta]") {
  CHECK(check().value() == BaseCheck::Known);
  CHECK(why.empty());
  // Its name does not matter.
  std::filesystem::rename(base, directory / "other.safetensors");
  base = directory / "other.safetensors";
  CHECK(check().value() == BaseCheck::Known);
  const auto both = check({a, b});
  CHECK(both.value() == std::vector{BaseCheck::Known, BaseCheck::Known});
}

TEST_CASE_METHOD(StackedDeltas, "a base with another time is read once, and that is remembered",
                 "[core][delta]") {
  if (!has_attributes(a)) return;
  set_time(base, {kTime.tv_sec, kTime.tv_nsec + 1});
  CHECK(check().value() == BaseCheck::Remembered);
  CHECK(contains(why, base +
                          ": was last changed at 2023-11-14 22:13:20.123456790 UTC, and the delta's base at "
                          "2023-11-14 22:13:20.123456789"));
  CHECK(check().value() == BaseCheck::Known);
  CHECK(why.empty());
  // The remembered result is not used for another file with the same time, nor after the time was set back.
  std::filesystem::copy_file(base, directory / "copy.safetensors");
  std::filesystem::rename(directory / "copy.safetensors", base);
  set_time(base, {kTime.tv_sec, kTime.tv_nsec + 1});
  CHECK(check().value() == BaseCheck::Remembered);
  set_time(base, {kTime.tv_sec, kTime.tv_nsec + 1});
  CHECK(check().value() == BaseCheck::Remembered);
  // An attribute with the result of another delta is not believed.
  REQUIRE(::setxattr(b.c_str(), kRememberedBase, "1 0123456789abcdef0123456789abcdef", 34, 0) == 0);
  CHECK(check({a, b}).value() == std::vector{BaseCheck::Known, BaseCheck::Remembered});
  CHECK(check({a, b}).value() == std::vector{BaseCheck::Known, BaseCheck::Known});
}

TEST_CASE_METHOD(StackedDeltas, "a base with other bytes is refused by its name", "[core][delta]") {
  write_texts(base, {{"k", "KEEP"}, {"a", "old"}, {"b", "old"}});
  set_time(base, {kTime.tv_sec + 1, 5});
  for (int time = 0; time < 2; ++time) {  // nothing is remembered of it
    const auto refused = check();
    REQUIRE_FALSE(refused);
    CHECK(refused.error().errno_value == EINVAL);
    CHECK(contains(refused.error().message, base + ": is not the base of " + a));
    CHECK(contains(refused.error().message,
                   ": " + base + ": was last changed at 2023-11-14 22:13:21.000000005"));
  }
  // The base may have any bytes for a tensor that the delta replaces.
  write_texts(base, {{"k", "keep"}, {"a", "any"}, {"b", "old"}});
  CHECK(check());
  // The base has another layout.
  write_texts(base, {{"a", "old"}, {"b", "old"}, {"k", "keep"}}, {{"long", std::string(10'000, 'x')}});
  CHECK(check());
  CHECK(contains(why, " bytes, and "));
}

TEST_CASE_METHOD(StackedDeltas, "a time of whole seconds proves nothing", "[core][delta]") {
  set_time(base, {kTime.tv_sec, 0});
  write_delta(a, "a", {});
  CHECK(check().value() != BaseCheck::Known);
  CHECK(contains(why, "the time of its last change was not recorded"));
}

TEST_CASE_METHOD(StackedDeltas, "the base of a delta of version 1 is read", "[core][delta]") {
  const auto second = Model::open(a, {});
  Metadata metadata;
  for (const auto& [key, value] : (*second)->metadata()) {
    if (!key.ends_with("base_files")) metadata.emplace_back(key, key == kDeltaKey ? "1" : value);
  }
  write_texts(a, {{"a", "new"}}, metadata);
  CHECK(check().value() != BaseCheck::Known);
  CHECK(why == "the delta does not record the times of its base's files");
}

TEST_CASE_METHOD(StackedDeltas, "a check that must end does, and says so", "[core][delta]") {
  set_time(base, {kTime.tv_sec, 1});
  is_ending = true;
  const auto ended = check();
  REQUIRE_FALSE(ended);
  CHECK(ended.error().errno_value == EINTR);
  is_ending = false;
  CHECK(check());
}

TEST_CASE_METHOD(StackedDeltas, "a base that changes while it is read is refused", "[core][delta]") {
  set_time(base, {kTime.tv_sec, 1});
  const auto model = Model::open(base, {.deltas = {a}});
  Work work([&](std::uint64_t, std::uint64_t) {
    set_time(base, {kTime.tv_sec, 2});
    return true;
  });
  const auto changed = check_base(
      **model, [](std::uint64_t, std::string_view) {}, work);
  REQUIRE_FALSE(changed);
  CHECK(changed.error().errno_value == ESTALE);
}

TEST_CASE_METHOD(StackedDeltas, "a delta on top of a delta shows both", "[core][delta][model]") {
  const auto model = Model::open(base, {.deltas = {a, b}});
  REQUIRE(model);
  CHECK(test::tensor_content(**model, "k") == "keep");
  CHECK(test::tensor_content(**model, "a") == "new");
  CHECK(test::tensor_content(**model, "b") == "new");
  CHECK((*model)->delta_paths() == std::vector<std::filesystem::path>{a, b});
  CHECK((*model)->is_of_base(1));
  CHECK_FALSE((*model)->is_of_base(2));
}

TEST_CASE_METHOD(StackedDeltas, "a delta can't be the base, nor be there twice", "[core][delta][model]") {
  std::filesystem::create_symlink(base, directory / "link.safetensors");
  using Paths = std::vector<std::filesystem::path>;
  for (const Paths& deltas :
       {Paths{base}, Paths{directory / "link.safetensors"}, Paths{a, a}, Paths{a, b, a}}) {
    const auto refused = Model::open(base, {.deltas = deltas});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().errno_value == EINVAL);
    CHECK(contains(refused.error().message,
                   deltas.back().string() + ": not usable as a delta: it is the same file as "));
  }
}

TEST_CASE("a merge tells patches, remade, new and removed tensors and keys apart", "[core][delta]") {
  const test::TemporaryDirectory directory;
  const auto base = write_and_open((directory.path() / "base.safetensors").string(),
                                   {{"a", {4}}, {"b", {6}}, {"c", {2}}}, {{"k", "1"}, {"gone", "x"}});
  const auto changed = write_and_open((directory.path() / "delta.safetensors").string(),
                                      {{"a", {4}}, {"b", {2, 3}}, {"n", {5}}}, {});
  const Delta delta = delta_of(*base, {"c"}, {{"k", "2"}, {"new", "y"}});
  const auto merge = merge_of(delta, *changed, *base);
  REQUIRE(merge);
  const auto names = [&](const std::vector<std::uint32_t>& positions) {
    std::vector<std::string> found;
    for (const std::uint32_t at : positions) found.emplace_back(changed->tensors()[at].name);
    return found;
  };
  CHECK(names(merge->replaced) == std::vector<std::string>{"a"});
  CHECK(names(merge->remade) == std::vector<std::string>{"b"});
  CHECK(names(merge->added) == std::vector<std::string>{"n"});
  CHECK(merge->removed == std::vector<std::string>{"c"});
  CHECK(merge->metadata == decltype(merge->metadata){{"gone", std::nullopt}, {"k", "2"}, {"new", "y"}});
  CHECK(merge->size_bytes == 15);
  CHECK_FALSE(merge->is_patch());

  ModelChange change(*base);
  REQUIRE(add_to(change, *merge, *changed));
  CHECK_FALSE(change.is_in_place());
  REQUIRE(change.begin(true));
  for (const char* name : {"a", "b", "n"}) {
    std::vector<std::byte> bytes;
    REQUIRE(change.write(name, [&](ByteRange rest) -> Result<std::span<const std::byte>> {
      bytes.assign(static_cast<std::size_t>(rest.size_bytes), std::byte{7});
      return bytes;
    }));
    CHECK_FALSE(bytes.empty());
  }
  ReaderWriterLock lock;
  REQUIRE(change.commit([](std::uint32_t) { return CommitOptions(); },
                        [&](TensorPlace) -> ReaderWriterLock& { return lock; }));
  const auto after = Model::open(base->path(), {});
  REQUIRE(after);
  CHECK((*after)->tensors().size() == 3);
  CHECK((*after)->tensors().find("c") == std::nullopt);
  CHECK((*after)->tensors()[*(*after)->tensors().find("b")].shape.size() == 2);
  CHECK((*after)->metadata() == Metadata{{"k", "2"}, {"new", "y"}});
}

TEST_CASE("a merge of equal dtypes, shapes and metadata is a patch", "[core][delta]") {
  const test::TemporaryDirectory directory;
  const auto base = write_and_open((directory.path() / "base.safetensors").string(), {{"a", {4}}, {"b", {6}}},
                                   {{"k", "1"}});
  const auto changed = write_and_open((directory.path() / "delta.safetensors").string(), {{"b", {6}}}, {});
  CHECK(merge_of(delta_of(*base, {}, {{"k", "1"}}), *changed, *base)->is_patch());
  CHECK_FALSE(merge_of(delta_of(*base, {}, {}), *changed, *base)->is_patch());
  CHECK_FALSE(merge_of(delta_of(*base, {"a"}, {{"k", "1"}}), *changed, *base)->is_patch());

  Delta stranger = delta_of(*base, {}, {});
  stranger.base_tensors = std::string(32, '1');
  const auto refused = merge_of(stranger, *changed, *base);
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "made for another base"));
}

TEST_CASE("a merge that removes a tensor that the model lacks is refused", "[core][delta]") {
  const test::TemporaryDirectory directory;
  const auto base = write_and_open(directory / "base.safetensors", {{"a", {4}}}, {});
  const auto changed = write_and_open(directory / "delta.safetensors", {}, {});
  DeltaMerge merge;
  merge.removed = {"none"};
  ModelChange change(*base);
  CHECK(test::errno_of(add_to(change, merge, *changed)) == ENOENT);
}

TEST_CASE("no delta is made of a base that can't be opened a second time", "[core][delta]") {
  const test::TemporaryDirectory directory;
  const std::string base = directory / "base.safetensors";
  const std::string delta = directory / "delta.safetensors";
  write_texts(base, {{"a", "old"}});
  test::WatchedStorage counting;
  REQUIRE(Model::open(base, {.storage = &counting}));
  std::ptrdiff_t opens_left = counting.count(test::FileCall::Open);
  REQUIRE(opens_left > 0);
  test::WatchedStorage storage([&](const test::SeamCall& call) {
    const bool fails = call.kind == test::FileCall::Open && opens_left-- <= 0;
    return fails ? test::Verdict{.kind = test::Verdict::Kind::Fail, .errno_value = EIO} : test::Verdict{};
  });
  Work work;
  const auto made = make_delta(
      base, {.storage = &storage, .deltas = {delta}}, [](const Model&) {}, work);
  CHECK(test::errno_of(made) == EIO);
  CHECK(opens_left < 0);
  CHECK_FALSE(std::filesystem::exists(delta));
}
