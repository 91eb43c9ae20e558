// Edits of a model with a delta: they change only the delta, and have the result of the same edits in memory.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/archive/archive_writer.h"
#include "core/model/delta_base.h"
#include "core/model/model_edit.h"
#include "tests/support/catch.h"
#include "tests/support/model_content.h"
#include "tests/support/plain.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using test::contains;

namespace {

struct PlainTensor {
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::string bytes;
  friend bool operator==(const PlainTensor&, const PlainTensor&) = default;
};
/// The content that a model must have.
struct PlainModel {
  std::map<std::string, PlainTensor> tensors;
  std::map<std::string, std::string> metadata;
  friend bool operator==(const PlainModel&, const PlainModel&) = default;
};

PlainModel plain_of(const Model& model) {
  PlainModel plain;
  for (std::uint32_t at = 0; at < model.tensors().size(); ++at) {
    const Tensor tensor = model.tensors()[at];
    plain.tensors[std::string(tensor.name)] = {
        tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, test::tensor_content(model, tensor.name)};
  }
  for (const auto& [key, value] : model.metadata()) plain.metadata[std::string(key)] = value;
  return plain;
}

void write_plain(const std::string& path, const PlainModel& plain) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : plain.tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  Metadata metadata;
  for (const auto& [key, value] : plain.metadata) metadata.emplace_back(key, value);
  auto writer = ArchiveWriter::create(path, specs, metadata, true);
  REQUIRE(writer);
  for (const auto& [name, tensor] : plain.tensors) REQUIRE(writer->append(test::bytes_of(tensor.bytes)));
  REQUIRE(writer->finish());
}

PlainModel base_of_five() {
  PlainModel plain{.tensors = {}, .metadata = {{"format", "pt"}, {"step", "1"}}};
  for (const std::string name : {"a", "b", "c", "d"})
    plain.tensors[name] = {Dtype::U8, {16}, std::string(16, name.front())};
  plain.tensors["empty"] = {Dtype::F32, {0, 2}, ""};
  return plain;
}

/// A base with a delta that was made without changes, and is edited.
class EditedDelta {
 public:
  explicit EditedDelta(const PlainModel& base) : plain_(base) {
    write_plain(base_path, base);
    was_ = read(base_path);
    REQUIRE(create_delta(delta_path, *Model::open(base_path, {}).value(), ""));
    reopen();
  }
  void reopen() {
    auto opened = Model::open(base_path, {.access = Access::ReadWrite, .deltas = {delta_path}});
    if (!opened) FAIL(opened.error().message);
    model = std::move(*opened);
    end_of_ids_ = model->ids().end();
  }
  static std::string read(const std::string& path) {
    auto model = Model::open(path, {}).value();
    std::string text(static_cast<std::size_t>(model->front().identity().size_bytes), '\0');
    REQUIRE(model->front().read_through(std::as_writable_bytes(std::span(text)), 0));
    return text;
  }

  /// Commits the edit with the bytes of new tensors, and compares all forms of the model with `due`.
  void commit(ModelEdit& edit, const PlainModel& due) {
    REQUIRE(edit.begin(true));
    for (const auto& [name, tensor] : due.tensors) {
      Staging* const stage = edit.stage(name);
      if (stage != nullptr) REQUIRE(stage->write(test::bytes_of(tensor.bytes), 0));
    }
    if (!edit.is_empty()) REQUIRE(edit.commit({}));
    auto next = model->next({.id_of_new = [this](std::string_view) { return TensorId{end_of_ids_++}; },
                             .end_of_ids = [this] { return end_of_ids_; }});
    if (!next) FAIL(next.error().message);
    model = std::move(*next);
    plain_ = due;
    check();
  }
  void check() {
    CHECK(plain_of(*model) == plain_);
    auto opened = Model::open(base_path, {.deltas = {delta_path}});
    if (!opened) FAIL(opened.error().message);
    CHECK(plain_of(**opened) == plain_);
    CHECK(differences_of_base(**opened).empty());
    CHECK(read(base_path) == was_);
  }
  [[nodiscard]] const PlainModel& plain() const { return plain_; }

  test::TemporaryDirectory directory;
  std::string base_path = directory / "base.safetensors";
  std::string delta_path = directory / "delta.safetensors";
  std::unique_ptr<Model> model;

 private:
  PlainModel plain_;
  std::string was_;
  std::uint32_t end_of_ids_ = 0;
};

/// Makes one random change, the same in the edit and in the plain model.
void change(std::mt19937& random, ModelEdit& edit, PlainModel& plain) {
  const std::string names = "abcdefgh";
  const auto name = [&] { return std::string(1, names[random() % names.size()]); };
  const std::string one = name();
  const std::string other = name();
  const bool is_there = plain.tensors.contains(one);
  switch (random() % 6) {
    case 0: {
      CHECK(edit.remove(one).has_value() == is_there);
      plain.tensors.erase(one);
      break;
    }
    case 1: {
      const bool can = is_there && (one == other || !plain.tensors.contains(other));
      CHECK(edit.rename(std::vector<ModelEdit::Renaming>{{one, other}}).has_value() == can);
      if (can) {
        auto node = plain.tensors.extract(one);
        node.key() = other;
        plain.tensors.insert(std::move(node));
      }
      break;
    }
    case 2: {
      const bool can = is_there && plain.tensors.contains(other) && one != other;
      if (!can) break;
      REQUIRE(edit.rename(std::vector<ModelEdit::Renaming>{{one, other}, {other, one}}));
      std::swap(plain.tensors[one], plain.tensors[other]);
      break;
    }
    case 3: {
      if (!is_there || plain.tensors[one].bytes.size() != 16) break;
      const bool is_wide = random() % 2 == 0;
      plain.tensors[one].dtype = is_wide ? Dtype::F32 : Dtype::U8;
      plain.tensors[one].shape = is_wide ? std::vector<std::uint64_t>{2, 2} : std::vector<std::uint64_t>{16};
      REQUIRE(edit.reinterpret(one, plain.tensors[one].dtype, plain.tensors[one].shape));
      break;
    }
    case 4: {
      const std::size_t size = random() % 2 == 0 ? 16 : random() % 40;
      plain.tensors[one] = {Dtype::U8, {size}, std::string(size, static_cast<char>('0' + random() % 10))};
      REQUIRE(edit.put(one, Dtype::U8, {size}));
      break;
    }
    default: {
      const std::string key = random() % 2 == 0 ? "step" : "note";
      if (random() % 3 == 0) {
        edit.set_metadata(key, std::nullopt);
        plain.metadata.erase(key);
      } else {
        plain.metadata[key] = std::to_string(random() % 100);
        edit.set_metadata(key, plain.metadata[key]);
      }
    }
  }
}

}  // namespace

TEST_CASE("a renamed tensor of the base keeps its bytes there", "[core][delta]") {
  EditedDelta delta(base_of_five());
  auto edit = ModelEdit::of(*delta.model);
  REQUIRE(edit);
  REQUIRE(edit->rename(std::vector<ModelEdit::Renaming>{{"a", "b"}, {"b", "a"}}));
  REQUIRE(edit->reinterpret("c", Dtype::U16, {2, 4}));
  REQUIRE(edit->remove("d"));
  PlainModel due = delta.plain();
  std::swap(due.tensors["a"], due.tensors["b"]);
  due.tensors["c"].dtype = Dtype::U16;
  due.tensors["c"].shape = {2, 4};
  due.tensors.erase("d");
  delta.commit(*edit, due);
  const auto top = Model::open(delta.delta_path, {});
  CHECK((*top)->tensors().size() == 0);
  CHECK(delta.model->delta()->renamed.size() == 3);
  CHECK(delta.model->delta()->removed == std::vector<std::string>{"d"});
}

TEST_CASE("random edits of a delta end as in memory, and merge into the base", "[core][delta]") {
  std::mt19937 random(20);
  for (int round = 0; round < 12; ++round) {
    INFO(round);
    EditedDelta delta(base_of_five());
    for (int step = 0; step < 12; ++step) {
      auto edit = ModelEdit::of(*delta.model);
      REQUIRE(edit);
      PlainModel due = delta.plain();
      for (unsigned count = random() % 4 + 1; count > 0; --count) change(random, *edit, due);
      delta.commit(*edit, due);
      if (random() % 4 == 0) delta.reopen();
    }
    const PlainModel due = delta.plain();
    const Delta keys = *delta.model->delta();
    delta.model.reset();  // it reads the base
    const auto changed = Model::open(delta.delta_path, {}).value();
    auto base = Model::open(delta.base_path, {.access = Access::ReadWrite}).value();
    const auto merge = merge_of(keys, *changed, *base);
    REQUIRE(merge);
    ModelChange change(*base);
    REQUIRE(add_to(change, *merge, *changed));
    CHECK(change.is_in_place() == merge->is_patch());
    REQUIRE(change.begin(true));
    for (const auto& [name, tensor] : due.tensors) {
      REQUIRE(change.write(name, [&](ByteRange rest) -> Result<std::span<const std::byte>> {
        return test::bytes_of(tensor.bytes).subspan(static_cast<std::size_t>(rest.offset));
      }));
    }
    ReaderWriterLock lock;
    REQUIRE(change.commit([](std::uint32_t) { return CommitOptions(); },
                          [&](TensorPlace) -> ReaderWriterLock& { return lock; }));
    CHECK(plain_of(*Model::open(delta.base_path, {}).value()) == due);
  }
}

TEST_CASE("an edited delta tells a changed base by its times, or by its bytes", "[core][delta]") {
  Work work;
  const auto remove_a = [](Model& model) {
    auto edit = ModelEdit::of(model);
    if (!edit) return Result<void>(tl::unexpected(edit.error()));
    REQUIRE(edit->remove("a"));
    REQUIRE(edit->begin(true));
    return edit->commit({});
  };
  const auto set_time = [](const std::string& path, long ns) {
    const struct timespec times[2] = {{0, UTIME_OMIT}, {1'700'000'000, ns}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  };
  EditedDelta delta(base_of_five());
  REQUIRE(remove_a(*delta.model));
  set_time(delta.base_path, 5);
  auto opened = Model::open(delta.base_path, {.deltas = {delta.delta_path}});
  REQUIRE(opened);
  const auto refused = check_base_bytes(**opened, work);
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "by the sizes and times of its files only"));

  // The times of this base prove nothing.
  set_time(delta.base_path, 0);
  std::filesystem::remove(delta.delta_path);
  auto base = Model::open(delta.base_path, {}).value();
  CHECK_FALSE(has_proving_times(*base));
  REQUIRE(create_delta(delta.delta_path, *base, ""));
  delta.reopen();
  const auto edited = remove_a(*delta.model);
  REQUIRE_FALSE(edited);
  CHECK(edited.error().errno_value == EROFS);
  delta.model->keep_all_base_bytes(*digest_of_all_bytes(*base, work));
  REQUIRE(remove_a(*delta.model));
  opened = Model::open(delta.base_path, {.deltas = {delta.delta_path}});
  REQUIRE(opened);
  CHECK(check_base_bytes(**opened, work));
  PlainModel other = base_of_five();
  other.tensors["a"].bytes.back() = 'x';
  write_plain(delta.base_path, other);
  opened = Model::open(delta.base_path, {.deltas = {delta.delta_path}});
  REQUIRE(opened);
  const auto changed = check_base_bytes(**opened, work);
  REQUIRE_FALSE(changed);
  CHECK(contains(changed.error().message, "the bytes of some tensors have changed since"));
}

TEST_CASE("a delta with names that don't fit its base is refused", "[core][delta]") {
  const test::TemporaryDirectory directory;
  write_plain(directory / "base.safetensors", base_of_five());
  const auto base = Model::open(directory / "base.safetensors", {}).value();
  const auto why = [&](std::vector<Delta::Renamed> renamed, std::vector<std::string> removed = {}) {
    Delta delta{"base", digest_of_tensors(base->tensors()), "", std::move(removed), {}};
    delta.renamed = std::move(renamed);
    auto writer =
        ArchiveWriter::create(directory / "delta.safetensors",
                              std::vector<TensorSpec>{{"new", Dtype::U8, {0}}}, metadata_of(delta), true);
    REQUIRE(writer);
    REQUIRE(writer->finish());
    const auto opened =
        Model::open(directory / "base.safetensors", {.deltas = {directory / "delta.safetensors"}});
    return opened ? std::string() : opened.error().message;
  };
  CHECK(why({{"x", "a", Dtype::U8, {16}}}).empty());
  CHECK(contains(why({{"x", "y", Dtype::U8, {16}}}), "it renames \"y\", which its base lacks"));
  CHECK(contains(why({{"new", "a", Dtype::U8, {16}}}), "it renames \"a\" to \"new\", and has it too"));
  CHECK(contains(why({{"x", "a", Dtype::U8, {16}}, {"y", "a", Dtype::U8, {16}}}),
                 "it removes or renames \"a\" twice"));
  CHECK(contains(why({{"x", "a", Dtype::U8, {16}}}, {"a"}), "it removes or renames \"a\" twice"));
  CHECK(contains(why({{"x", "a", Dtype::U8, {15}}}), "which is not the size of its bytes"));
  CHECK(contains(why({{"x", "a", Dtype::U8, {~0ULL, ~0ULL}}}), "which is not the size of its bytes"));
  CHECK(contains(why({{"b", "a", Dtype::U8, {16}}}), "tensor \"b\" is in the model twice"));
  CHECK(contains(why({{"x", "a", Dtype::U8, {16}}, {"x", "b", Dtype::U8, {16}}}),
                 "tensor \"x\" is in the model twice"));
}

TEST_CASE("a hostile delta is refused, or shows tensors that can be read", "[core][delta]") {
  EditedDelta delta(base_of_five());
  auto edit = ModelEdit::of(*delta.model);
  REQUIRE(edit);
  REQUIRE(edit->rename(std::vector<ModelEdit::Renaming>{{"a", "b"}, {"b", "a"}}));
  REQUIRE(edit->remove("d"));
  PlainModel due = delta.plain();
  std::swap(due.tensors["a"], due.tensors["b"]);
  due.tensors.erase("d");
  delta.commit(*edit, due);
  const Metadata sound = metadata_of(*delta.model->delta());
  std::mt19937 random(7);
  const std::string alphabet = "[]\",:{}abcd019eFU8\\";
  const std::string path = delta.directory / "hostile.safetensors";
  int opened_count = 0;
  for (int round = 0; round < 2000; ++round) {
    Metadata hostile;
    for (const auto& [key, value] : sound) {
      std::string text(value);
      const bool is_list = key.ends_with(".renamed") || key.ends_with(".removed");
      for (std::size_t count = is_list ? random() % 3 : 0; count > 0 && !text.empty(); --count)
        text[random() % text.size()] = alphabet[random() % alphabet.size()];
      hostile.emplace_back(key, text);
    }
    auto writer = ArchiveWriter::create(path, {}, hostile, true, {.slack_bytes = 0});
    REQUIRE(writer);
    REQUIRE(writer->finish());
    const auto opened = Model::open(delta.base_path, {.deltas = {path}});
    if (!opened) {
      CHECK(opened.error().errno_value == EINVAL);
      continue;
    }
    ++opened_count;
    for (const auto& [name, tensor] : plain_of(**opened).tensors)
      CHECK(tensor.bytes.size() == data_size_bytes(tensor.dtype, tensor.shape).value());
  }
  CHECK(opened_count > 100);
}
