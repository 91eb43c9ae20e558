// Maps tensor names to file names: every tensor name of the format gets a file name that a directory can
// have.
#include "fs/tree/names.h"

#include <set>

#include "core/base/utf8.h"
#include "tests/support/catch.h"

using namespace stfs;

namespace {

const std::string kEuro = "\xE2\x82\xAC";      // three bytes
const std::string kClef = "\xF0\x9D\x84\x9E";  // four bytes
constexpr std::size_t kHashBytes = 1 + 16;     // `~` and the digits
constexpr std::size_t kPrefixBytes = 255 - kHashBytes;

bool can_stand_in_a_directory(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && name != ".safetensors" &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("an ordinary name is the file's name as it is", "[fs][names]") {
  for (const std::string& name : {std::string("lm_head.weight"), std::string("a b"), std::string("~"),
                                  std::string("..."), std::string(".hidden"), std::string(".safetensors.x"),
                                  std::string("-rf"), std::string("\\"), kEuro}) {
    CAPTURE(name);
    CHECK(is_plain_file_name(name));
    CHECK(file_name_of(name) == name);
  }
}

TEST_CASE("what a directory cannot hold is percent-encoded", "[fs][names]") {
  CHECK(file_name_of("a/b") == "a%2Fb");
  CHECK(file_name_of("/") == "%2F");
  CHECK(file_name_of("100%") == "100%25");
  CHECK(file_name_of(std::string("a\0b", 3)) == "a%00b");
  CHECK(file_name_of("line\nbreak\t") == "line%0Abreak%09");
  CHECK(file_name_of("\x7f") == "%7F");
  CHECK(file_name_of("\x1f") == "%1F");
  CHECK(file_name_of("../../etc/passwd") == "..%2F..%2Fetc%2Fpasswd");
}

TEST_CASE("a whole name that means something to a directory is encoded", "[fs][names]") {
  CHECK(file_name_of("") == "%");
  CHECK(file_name_of(".") == "%2E");
  CHECK(file_name_of("..") == "%2E%2E");
  CHECK(file_name_of(".safetensors") == "%2Esafetensors");
}

TEST_CASE("every one-byte name stands in a directory, and no two alike", "[fs][names]") {
  std::set<std::string> seen;
  for (int byte = 0; byte < 0x80; ++byte) {
    const std::string name(1, static_cast<char>(byte));
    const std::string file_name = file_name_of(name);
    CAPTURE(byte, file_name);
    CHECK(can_stand_in_a_directory(file_name));
    CHECK(is_plain_file_name(name) == (file_name == name));
    CHECK(seen.insert(file_name).second);
  }
}

TEST_CASE("an encoded name and a name that is spelled like it do not meet", "[fs][names]") {
  for (const char* name : {"a/b", ".", "..", "", ".safetensors", "%", "%%", "\n"}) {
    CAPTURE(name);
    CHECK(file_name_of(file_name_of(name)) != file_name_of(name));
  }
}

TEST_CASE("a name of 255 bytes stays, one of 256 becomes a prefix, a tilde and a hash", "[fs][names]") {
  const std::string fits(255, 'x');
  CHECK(is_plain_file_name(fits));
  CHECK(file_name_of(fits) == fits);

  const std::string too_long(256, 'x');
  const std::string cut = file_name_of(too_long);
  CHECK_FALSE(is_plain_file_name(too_long));
  CHECK(cut.size() == 255);
  CHECK(cut.substr(0, kPrefixBytes) == std::string(kPrefixBytes, 'x'));
  CHECK(cut.substr(kPrefixBytes) == "~d1d05738849baec9");  // the same at every mount
}

TEST_CASE("the limit of 255 bytes is that of the encoded name", "[fs][names]") {
  CHECK(file_name_of(std::string(85, '/')).size() == 255);
  CHECK(file_name_of(std::string(85, '/')).find('~') == std::string::npos);
  const std::string cut = file_name_of(std::string(86, '/'));
  CHECK(cut.size() <= 255);
  CHECK(cut.find('~') != std::string::npos);
}

TEST_CASE("long names that differ only at their end get different file names", "[fs][names]") {
  const std::string common(300, 'x');
  CHECK(file_name_of(common + "1") != file_name_of(common + "2"));
}

TEST_CASE("cutting splits no UTF-8 character", "[fs][names]") {
  for (const std::string& character : {kEuro, kClef, std::string("\xC3\xA9")}) {
    for (std::size_t shift = 0; shift < 5; ++shift) {
      const std::string name = std::string(shift, 'a') + repeated(character, 200);
      const std::string cut = file_name_of(name);
      CAPTURE(shift, cut);
      CHECK(cut.size() <= 255);
      CHECK(cut.size() > 255 - character.size());
      CHECK(is_utf8(cut));
      CHECK(name.starts_with(cut.substr(0, cut.size() - kHashBytes)));
    }
  }
}

TEST_CASE("cutting splits no percent-encoded byte", "[fs][names]") {
  for (std::size_t shift = 0; shift < 4; ++shift) {
    const std::string cut = file_name_of(std::string(shift, 'a') + std::string(200, '/'));
    const std::string prefix = cut.substr(shift, cut.size() - kHashBytes - shift);
    CAPTURE(shift, cut);
    CHECK(prefix == repeated("%2F", prefix.size() / 3));
    CHECK(cut.size() > 255 - 3);
  }
}

TEST_CASE("told apart keeps what fits of the name and depends on the true one", "[fs][names]") {
  CHECK(told_apart("a", "a").starts_with("a~"));
  CHECK(told_apart("a", "a").size() == 1 + kHashBytes);
  CHECK(told_apart("a", "a") != told_apart("a", "b"));
  CHECK(told_apart(std::string(255, 'x'), "y").size() == 255);
  CHECK(told_apart(std::string(kPrefixBytes, 'x'), "y").starts_with(std::string(kPrefixBytes, 'x') + "~"));
  CHECK(told_apart("", "").size() == kHashBytes);
}

TEST_CASE("the parts of a name are what its dots separate", "[fs][names]") {
  using Parts = std::vector<std::string_view>;
  CHECK(dotted_parts("a") == Parts{"a"});
  CHECK(dotted_parts("a.b.c") == Parts{"a", "b", "c"});
  CHECK(dotted_parts("") == Parts{""});
  CHECK(dotted_parts(".") == Parts{"", ""});
  CHECK(dotted_parts("..a.") == Parts{"", "", "a", ""});
}

TEST_CASE("a name of a million dots has no more than 64 directories, and loses nothing", "[fs][names]") {
  const std::string name(1'000'000, '.');
  const auto parts = dotted_parts(name);
  CHECK(parts.size() == kMaxDepth + 1);
  std::string joined(parts.front());
  for (std::size_t at = 1; at < parts.size(); ++at) (joined += '.') += parts[at];
  CHECK(joined == name);
  CHECK(file_name_of(parts.back()).size() <= 255);
}

TEST_CASE("64 dots are all directories, the 65th is part of the name", "[fs][names]") {
  CHECK(dotted_parts(repeated("d.", 64) + "leaf").back() == "leaf");
  CHECK(dotted_parts(repeated("d.", 65) + "leaf").back() == "d.leaf");
}

TEST_CASE("a file's name leads back to the tensor's name, or to none", "[fs][names]") {
  for (const std::string& name : {std::string("a"), std::string("a/b"), std::string("a%b"), std::string(),
                                  std::string("."), std::string(".."), std::string(".safetensors"),
                                  std::string("n\0l", 3), std::string("\x7f"), std::string("\xc3\xbc")}) {
    INFO(name);
    CHECK(name_of_file(file_name_of(name)) == name);
  }
  for (const char* const file_name : {"%", "a%", "a%2", "a%2f", "%zz", "a%41", "\xff", "%FF", "a/b"}) {
    INFO(file_name);
    CHECK((name_of_file(file_name) == std::nullopt || std::string_view(file_name) == "%"));
  }
  CHECK(name_of_file("%") == "");
  CHECK_FALSE(name_of_file(file_name_of(std::string(300, 'x'))) == std::string(300, 'x'));
}
