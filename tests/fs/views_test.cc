// `.safetensors/` without a kernel: its entries are found, listed, read, counted and reported to caches.
#include "fs/read/views.h"

#include <cstring>

#include "core/tensor/npy.h"
#include "tests/fs/descriptor.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct Place {
  Ino views, npy, slice, float32;
};

Place place_of(const DrivenFilesystem& mount) {
  const Ino views = mount.ino(".safetensors");
  return {views, mount.ino("npy", views), mount.ino("slice", views), mount.ino("float32", views)};
}

/// A mount of kTwoTensors, and the inode numbers of its views.
struct ViewedMount {
  DrivenFilesystem mount;
  Place at = place_of(mount);
};

Result<std::string> content(const DrivenFilesystem& mount, Ino ino) {
  const auto bytes = mount->read(ino, 0, 1 << 20);
  if (!bytes) return tl::unexpected(bytes.error());
  return text_of(bytes->copy().value());
}

std::vector<std::string> listed(const DrivenFilesystem& mount, Ino directory) {
  std::vector<std::string> names;
  const auto visit = [&](std::string_view name, Ino, std::uint64_t) {
    names.emplace_back(name);
    return true;
  };
  REQUIRE(mount->read_directory(directory, 0, visit));
  return names;
}

std::span<const std::byte> as_bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("stats.json is as large as its text, which each look-up makes anew", "[fs][views]") {
  const DrivenFilesystem mount;
  const Ino views = mount.ino(".safetensors");
  const auto look_up = [&] { return mount->lookup(views, "stats.json").value(); };
  const struct stat first = look_up();
  const std::string text = content(mount, first.st_ino).value();
  CHECK(static_cast<std::size_t>(first.st_size) == text.size());
  CHECK(text.starts_with("{\n"));
  CHECK(text.ends_with("}\n"));
  CHECK(text.find("  \n") == std::string::npos);

  // The text is longer now. A file that was opened before does not change.
  mount->activity()->note_error();
  const struct stat second = look_up();
  CHECK(second.st_ino != first.st_ino);
  CHECK(static_cast<std::size_t>(second.st_size) == content(mount, second.st_ino).value().size());
  CHECK(content(mount, first.st_ino).value() == text);
  CHECK(mount->attributes(first.st_ino)->st_size == first.st_size);
}

TEST_CASE("rates in stats.json count from the report that was read last", "[fs][views]") {
  Activity activity;
  const auto rates = [](const Activity::Report& report) {
    return report.text.substr(report.text.find("since_last_read"));
  };
  activity.note_written(1);
  const auto unread = activity.report({});
  const auto read = activity.report({});
  CHECK(rates(read).find("\"bytes_written_per_second\": 0.0") == std::string::npos);
  activity.note_report_read(read);
  activity.note_report_read(unread);  // an older one
  CHECK(rates(activity.report({})).find("\"bytes_written_per_second\": 0.0") != std::string::npos);
}

TEST_CASE("each kind of request has a name in stats.json", "[fs][views]") {
  const Activity activity;
  CHECK(activity.report({}).text.find("\"\":") == std::string::npos);
}

TEST_CASE("a reason of any length is told whole", "[fs][views]") {
  Activity activity;
  activity.set_problem(std::string(10'000, 'p') + "\xff");
  // The byte that is not UTF-8 is replaced, because JSON can't contain it.
  CHECK(activity.report({}).text.find('"' + std::string(10'000, 'p') + "\xef\xbf\xbd\"") !=
        std::string::npos);
}

TEST_CASE("the name of a slice is split at its last bracket", "[fs][views]") {
  const auto name = split_slice_name("w[0][1:2,3].npy");
  REQUIRE(name);
  CHECK(name->tensor == "w[0]");
  CHECK(name->text == "1:2,3");
  CHECK(name->is_npy);
  CHECK(name->is_closed);
  CHECK_FALSE(split_slice_name("w[1:2")->is_closed);
  CHECK_FALSE(split_slice_name("w[1:2].np")->is_closed);
  CHECK_FALSE(split_slice_name("w"));
}

TEST_CASE("npy lists every tensor under its flat name, from any position on", "[fs][views]") {
  const MountedModelOptions& layout = GENERATE(MountedModelOptions{}, kTreeLayout);
  const DrivenFilesystem mount({{"a.b", "xy"}, {"c/d", "z"}, {std::string(254, 'n'), "long"}}, layout);
  const Place at = place_of(mount);
  const auto names = listed(mount, at.npy);
  REQUIRE(names.size() == 5);
  CHECK(names[2] == "a.b.npy");
  CHECK(names[3] == "c%2Fd.npy");
  CHECK(names[4].size() <= 255);
  for (std::size_t tensor = 2; tensor < 5; ++tensor) {
    CHECK(content(mount, mount.ino(names[tensor], at.npy))->substr(128) ==
          std::vector<std::string>{"xy", "z", "long"}[tensor - 2]);
  }
  std::vector<std::string> rest;
  REQUIRE(mount->read_directory(at.npy, 3, [&](std::string_view name, Ino, std::uint64_t next) {
    rest.emplace_back(name);
    return next < 4;
  }));
  CHECK(rest == std::vector<std::string>{"c%2Fd.npy"});
  CHECK(errno_of(mount->lookup(at.npy, "a.b")) == ENOENT);
  CHECK(listed(mount, at.slice) == std::vector<std::string>{".", ".."});
}

TEST_CASE("a name that .npy makes too long is cut between characters, and leads to its tensor",
          "[fs][views]") {
  struct Case {
    std::string character;  // in the tensor's name
    std::string encoded;    // in the file's name
  };
  const Case given = GENERATE(Case{"/", "%2F"}, Case{"\n", "%0A"}, Case{"\xE2\x82\xAC", "\xE2\x82\xAC"});
  // 84 characters fit the tensor's own file name. 100 do not: that name is cut before `.npy` is added.
  for (const std::size_t count : {84U, 100U}) {
    for (std::size_t shift = 0; shift < 3; ++shift) {
      std::string name(shift, 'a');
      for (std::size_t at = 0; at < count; ++at) name += given.character;
      const DrivenFilesystem mount({{name, "long"}});
      const Place at = place_of(mount);
      const std::string file_name = listed(mount, at.npy).at(2);
      CAPTURE(count, shift, file_name);
      CHECK(file_name.size() <= 255);
      CHECK(file_name.size() > 255 - 3);
      REQUIRE(file_name.size() > shift + std::string("~0123456789abcdef.npy").size());
      std::string_view kept = file_name;
      kept.remove_suffix(std::string_view("~0123456789abcdef.npy").size());
      CHECK(kept.starts_with(std::string(shift, 'a')));
      kept.remove_prefix(shift);
      while (kept.starts_with(given.encoded)) kept.remove_prefix(given.encoded.size());
      CHECK(kept == "");
      CHECK(content(mount, mount.ino(file_name, at.npy))->substr(128) == "long");
    }
  }
}

TEST_CASE("slices read what they select; others are refused", "[fs][views]") {
  const DrivenFilesystem mount({{"before", "xx"}, {"w", "abcdefgh"}});
  const Place at = place_of(mount);
  CHECK(content(mount, mount.ino("w[2:5]", at.slice)) == "cde");
  CHECK(content(mount, mount.ino("w[::-3]", at.slice)) == "heb");
  CHECK(content(mount, mount.ino("w[1::3].npy", at.slice))->substr(128) == "beh");
  const Ino strided = mount.ino("w[::-2]", at.slice);
  for (std::size_t begin = 0; begin <= 5; ++begin) {
    for (std::size_t size = 0; size <= 5; ++size) {
      const std::string piece = begin < 4 ? std::string("hfdb").substr(begin, size) : "";
      CHECK(text_of(mount->read(strided, begin, size)->copy().value()) == piece);
    }
  }
  for (const char* none : {"w[8]", "w[0", "w[0].np", "w[]", "w[x]", "w[::0]", "w[0,0]", "w[...,...]",
                           "w[99999999999999999999]"}) {
    CAPTURE(none);
    CHECK(errno_of(mount->lookup(at.slice, none)) == EINVAL);
  }
  for (const char* nobodys : {"v[0]", "v[x]", "w", "w.npy", "[0]"}) {
    CAPTURE(nobodys);
    CHECK(errno_of(mount->lookup(at.slice, nobodys)) == ENOENT);
  }
}

TEST_CASE_METHOD(ViewedMount, "a slice lives as long as it has been looked up more often than forgotten",
                 "[fs][views]") {
  const Ino ino = mount.ino("first[0:4]", at.slice);
  CHECK(mount.ino("first[0:4]", at.slice) == ino);
  mount->forget(ino, 1);
  CHECK(content(mount, ino) == "AAAA");
  mount->forget(ino, 1);
  CHECK(errno_of(mount->read(ino, 0, 4)) == ENOENT);
  CHECK(mount.ino("first[0:4]", at.slice) != ino);
  mount->forget(at.npy, 5);
  CHECK(mount->attributes(at.npy));
}

TEST_CASE_METHOD(ViewedMount, "a commit tells the views that were looked at, each once", "[fs][views]") {
  const Ino npy = mount.ino("first.npy", at.npy);
  const Ino other = mount.ino("second.npy", at.npy);
  const Ino whole = mount.ino("archive.safetensors", at.views);
  const Ino slice = mount.ino("first[0]", at.slice);
  REQUIRE(content(mount, npy));
  REQUIRE(content(mount, other));
  REQUIRE(content(mount, whole));
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(std::string(16, 'N'), 0));
  const auto committed = writer.close();
  REQUIRE(committed);
  std::vector<Ino> told;
  for (const Stale& stale : mount->stale_views(*committed)) told.push_back(stale.first);
  CHECK(told == std::vector<Ino>{npy, whole, slice});
  mount->forget(slice, 1);
  CHECK(mount->stale_views(*committed).empty());
  CHECK(content(mount, npy)->substr(128) == std::string(16, 'N'));
  CHECK(mount->stale_views(Stale{}).empty());
}

TEST_CASE("a change under a read-only mount tells all views; the header of before gives EIO then",
          "[fs][views]") {
  const DrivenFilesystem mount(kTwoTensors, kReadOnly);
  const Place at = place_of(mount);
  const Ino npy = mount.ino("second.npy", at.npy);
  const Ino header = mount.ino("header.json", at.views);
  const Ino whole = mount.ino("archive.safetensors", at.views);
  REQUIRE(content(mount, npy));
  REQUIRE(content(mount, header));
  std::vector<Ino> told;
  mount->tell_stale_to([&](Stale stale) { told.push_back(stale.first); });
  mount.overwrite(10, "irst");
  const CapturedStderr captured;
  CHECK(mount.notices_change());
  CHECK(told == std::vector<Ino>{npy, header});
  CHECK(content(mount, npy));  // the tensor has not moved
  CHECK(errno_of(content(mount, header)) == EIO);
  CHECK(errno_of(content(mount, whole)) == EIO);
  mount.overwrite(8, "[");
  CHECK(mount.notices_change());
  CHECK(errno_of(content(mount, npy)) == EIO);
}

TEST_CASE("the archive view parses, its data page-aligned and the same", "[fs][views]") {
  const DrivenFilesystem mount({{"a", "AAAA"}, {"none", ""}, {"b", "BBB"}});
  const auto bytes = content(mount, mount.ino("archive.safetensors", place_of(mount).views));
  REQUIRE(bytes);
  const auto length = header_length(as_bytes_of(*bytes), bytes->size());
  REQUIRE(length);
  CHECK((*length + 8) % 4096 == 0);
  const auto header = parse_header(std::string_view(*bytes).substr(8, *length), bytes->size() - 8 - *length);
  REQUIRE(header);
  CHECK(header->tensors.size() == 3);
  CHECK(bytes->substr(*length + 8) == "AAAABBB");
}

TEST_CASE_METHOD(ViewedMount, "nothing is made, removed or timed among the views", "[fs][views]") {
  const Ino npy = mount.ino("first.npy", at.npy);
  CHECK(errno_of(mount->make_directory(at.npy, "x")) == EPERM);
  CHECK(errno_of(mount->remove_file(at.npy, "first.npy")) == EPERM);
  CHECK(errno_of(mount->remove_file(at.views, "header.json")) == EPERM);
  REQUIRE(mount->set_extended_attribute(mount.ino("first"), "user.safetensors.dtype", "F8_E4M3"));
  const Ino header = mount.ino("header.json", at.views);
  CHECK((mount->attributes(header)->st_mode & 0222U) == 0);
  for (const int access : {O_WRONLY, O_RDWR}) {
    CHECK(errno_of(mount->open(header, access, 1)) == EROFS);
    CHECK(errno_of(mount->open(mount.ino("first.npy", at.float32), access, 1)) == EROFS);
  }
  const auto before = mount->attributes(npy)->st_mtim.tv_sec;
  mount->set_mtime(npy, {.tv_sec = 1, .tv_nsec = 0});
  CHECK(mount->attributes(npy)->st_mtim.tv_sec == before);
}

TEST_CASE("a tensor that NumPy can't have is neither in npy nor in float32", "[fs][views]") {
  const TemporaryDirectory directory;
  const auto ones = [](std::size_t rank) {
    std::string shape = "1";
    for (std::size_t at = 1; at < rank; ++at) shape += ",1";
    return shape;
  };
  const std::string path = directory.write(
      "m.safetensors",
      archive_bytes(fmt::format(R"({{"most":{{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}},)"
                                R"("more":{{"dtype":"F32","shape":[{}],"data_offsets":[4,8]}},)"
                                R"("last":{{"dtype":"U8","shape":[1],"data_offsets":[8,9]}}}})",
                                ones(64), ones(65)),
                    "123456789"));
  const MountedModel filesystem(Archive::open(path, Access::ReadWrite).value(), {});
  const Ino views = filesystem.lookup(kRootIno, ".safetensors")->st_ino;
  for (const char* const name : {"npy", "float32"}) {
    const Ino at = filesystem.lookup(views, name)->st_ino;
    CAPTURE(name);
    CHECK(filesystem.lookup(at, "most.npy"));
    CHECK(errno_of(filesystem.lookup(at, "more.npy")) == ENOENT);
    CHECK(filesystem.lookup(at, "last.npy").has_value() == (at == Views::kNpy));
    std::vector<std::string> names;
    REQUIRE(filesystem.read_directory(at, 2, [&](std::string_view entry, Ino, std::uint64_t) {
      names.emplace_back(entry);
      return true;
    }));
    CHECK(names == (at == Views::kNpy ? std::vector<std::string>{"most.npy", "last.npy"}
                                      : std::vector<std::string>{"most.npy"}));
  }
  CHECK(filesystem.lookup(kRootIno, "more"));
  CHECK_FALSE(filesystem.attributes(Views::kNpyFiles + 1));
  CHECK_FALSE(filesystem.attributes(Views::kFloat32Files + 1));
  const Ino slices = filesystem.lookup(views, "slice")->st_ino;
  CHECK(errno_of(filesystem.lookup(slices, "more[0]")) == EINVAL);
}

TEST_CASE("each part of a float32 view has the bytes of the whole", "[fs][views]") {
  const TemporaryDirectory directory;
  constexpr std::size_t kElements = 19;
  std::string data;
  std::string due;
  for (std::size_t at = 0; at < kElements; ++at) {
    const auto bits = static_cast<std::uint16_t>(0x3f80 + 7 * at);  // BF16: the upper half of a float
    const auto wide = std::uint32_t{bits} << 16U;
    data.append(reinterpret_cast<const char*>(&bits), sizeof bits);
    due.append(reinterpret_cast<const char*>(&wide), sizeof wide);
  }
  const std::string path = directory.write(
      "m.safetensors", archive_bytes(R"({"t":{"dtype":"BF16","shape":[19],"data_offsets":[0,38]}})", data));
  const MountedModel filesystem(Archive::open(path, Access::ReadOnly).value(), kReadOnly);
  const Ino views = filesystem.lookup(kRootIno, ".safetensors")->st_ino;
  const Ino ino = filesystem.lookup(filesystem.lookup(views, "float32")->st_ino, "t.npy")->st_ino;
  const auto part = [&](std::uint64_t offset, std::size_t size_bytes) {
    return text_of(filesystem.read(ino, offset, size_bytes)->copy().value());
  };
  const std::string whole = part(0, 1 << 20);
  REQUIRE(whole.ends_with(due));
  REQUIRE(whole.size() > due.size());
  bool is_same = true;
  for (std::size_t offset = 0; offset < whole.size(); ++offset) {
    for (const std::size_t size_bytes : {1U, 3U, 4U, 8U, 32U, 36U})
      is_same = is_same && part(offset, size_bytes) == whole.substr(offset, size_bytes);
  }
  CHECK(is_same);
}

TEST_CASE_METHOD(ViewedMount, "messages name a slice as it was asked for", "[fs][views]") {
  const Ino slice = mount.ino("first[2:4]", at.slice);
  CHECK(contains(mount->label_of(slice, ""), "slice/first[2:4]"));
}

TEST_CASE("header.json is the text of the archive's own header", "[fs][views]") {
  const TemporaryDirectory directory;
  const std::string json =
      R"({ "t" : {"shape":[2], "dtype":"U8","data_offsets": [0,2]} , "__metadata__":{"a":"b"}})";
  const std::string path = directory.write("m.safetensors", archive_bytes(json + "   ", "xy"));
  const MountedModel filesystem(Archive::open(path, Access::ReadOnly).value(), kReadOnly);
  const Ino views = filesystem.lookup(kRootIno, ".safetensors")->st_ino;
  const Ino header = filesystem.lookup(views, "header.json")->st_ino;
  CHECK(text_of(filesystem.read(header, 0, 1 << 20)->copy().value()) == json);
  CHECK(text_of(filesystem.read(header, 2, 3)->copy().value()) == json.substr(2, 3));
}

TEST_CASE("the log names each file of `.safetensors` by its name", "[fs][views]") {
  const DrivenFilesystem mount(kThree);
  const Ino views = mount.ino(".safetensors");
  for (const std::string& name : list(mount, views)) {
    CAPTURE(name);
    const Ino file = mount.ino(name, views);
    if (mount->file_type(file) == S_IFREG) CHECK(mount->label_of(file, "").ends_with("/" + name));
  }
}
