// NumPy files in a transaction: T/.safetensors/npy/NAME.npy stages a tensor with the file's dtype and shape.
#include "tests/fs/descriptor.h"
#include "tests/fs/driven_model.h"
#include "tests/fs/edited_transaction.h"
#include "tests/support/catch.h"
#include "tests/support/child_process.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const MountedModelOptions kReshapes = [] {
  MountedModelOptions options;
  options.reshapes = true;
  return options;
}();

struct NpyTransaction : EditedTransaction {
  explicit NpyTransaction(const MountedModelOptions& options = kReshapes) : EditedTransaction(options) {}

  Ino npy = t.mount.ino("npy", t.mount.ino(".safetensors", directory));

  /// Does the same as `cp FILE T/.safetensors/npy/NAME.npy`. @return the errno of the close.
  [[nodiscard]] int put(const std::string& name, const std::string& file) const {
    WrittenFile made(t.mount, name + ".npy", npy);
    made.cut();
    const int written = made.write(file);
    return written != 0 ? written : made.close();
  }
  [[nodiscard]] bool has_npy(const std::string& name) const {
    return t.mount->lookup(npy, name + ".npy").has_value();
  }
  [[nodiscard]] std::string read_npy(const std::string& name) const {
    return read_ino(t.mount, t.mount.ino(name + ".npy", npy));
  }
  [[nodiscard]] std::string form(const std::string& name) const {
    return attribute(name, "dtype") + attribute(name, "shape");
  }
  void begin_again() {
    directory = t.begin();
    npy = t.mount.ino("npy", t.mount.ino(".safetensors", directory));
  }
};

const std::string kFloats = npy_of("<f4", "(2, 1)", "12345678");

}  // namespace

TEST_CASE_METHOD(NpyTransaction, "a NumPy file stages a tensor with its dtype and shape",
                 "[fs][transaction_npy]") {
  const std::string before = bytes();
  CHECK(t.list(directory).empty());
  CHECK(t.list(t.mount.ino(".safetensors", directory)) == Names{"npy"});
  CHECK(t.list(npy).empty());
  CHECK(put("new", kFloats) == 0);
  CHECK(listed() == Names{"new"});
  CHECK(t.list(npy) == Names{"new.npy"});
  CHECK(form("new") == "F32[2,1]");
  CHECK(t.read(directory, "new") == "12345678");
  CHECK(read_npy("new") == kFloats);
  CHECK(bytes() == before);
  CHECK(errno_of(t.mount->lookup(kRootIno, "new")) == ENOENT);
  SECTION("which the commit makes") {
    CHECK(t.commit() == 0);
    CHECK(form_of(t.mount, "new") == "F32[2,1]");
    CHECK(stored() == Stored{{"first", kOld}, {"second", kSecond}, {"third", kThird}, {"new", "12345678"}});
    CHECK(errno_of(t.mount->lookup(directory, ".safetensors")) == ENOENT);
    CHECK_FALSE(t.mount->attributes(npy));
  }
  SECTION("which rm takes back") {
    roll_back();
    CHECK(bytes() == before);
    CHECK(errno_of(t.mount->create(npy, "x.npy", O_WRONLY, ::getpid())) != 0);
  }
  SECTION("which its own file and another NumPy file change") {
    CHECK(t.stage(directory, "new", "abcdefgh") == 0);
    CHECK(read_npy("new") == npy_of("<f4", "(2, 1)", "abcdefgh"));
    CHECK(put("new", npy_of("|i1", "(3,)", "xyz")) == 0);
    CHECK(t.read(directory, "new") == "xyz");
    CHECK(t.commit() == 0);
    CHECK(form_of(t.mount, "new") == "I8[3]");
  }
  SECTION("which may get another name and form") {
    CHECK(move("new", "other") == 0);
    CHECK_FALSE(has_npy("new"));
    CHECK(set("other", "dtype", "I32") == 0);
    CHECK(read_npy("other") == npy_of("<i4", "(2, 1)", "12345678"));
    CHECK(t.commit() == 0);
    CHECK(form_of(t.mount, "other") == "I32[2,1]");
  }
}

TEST_CASE_METHOD(NpyTransaction, "a NumPy file replaces a tensor, with all that is staged beside it",
                 "[fs][transaction_npy]") {
  CHECK(read_npy("first") == npy_of("|u1", "(16,)", kOld));
  CHECK(t.mount->extended_attribute(t.mount.ino("first.npy", npy), "user.safetensors.view").value() == "npy");
  CHECK(put("first", npy_of("<i2", "(3,)", "abcdef")) == 0);
  CHECK(form("first") == "I16[3]");
  CHECK(t.mount.read("first") == kOld);
  CHECK(remove("second") == 0);
  CHECK_FALSE(has_npy("second"));
  CHECK(move("third", "renamed") == 0);
  CHECK(put("renamed", npy_of("|b1", "(2,)", std::string(2, '\1'))) == 0);
  CHECK(put("second", kFloats) == 0);
  CHECK(set_metadata("k", "v") == 0);
  SECTION("committed") {
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"first", "abcdef"}, {"second", "12345678"}, {"renamed", std::string(2, '\1')}});
    CHECK(form_of(t.mount, "first") + form_of(t.mount, "renamed") + form_of(t.mount, "second") ==
          "I16[3]BOOL[2]F32[2,1]");
    CHECK(metadata(kRootIno, "k") == "v");
  }
  SECTION("taken back") {
    CHECK(remove("first") == 0);
    CHECK(read_npy("first") == npy_of("|u1", "(16,)", kOld));
    roll_back();
    CHECK(stored() == kStoredThree);
  }
  SECTION("refused, where another program has written the tensor meanwhile") {
    Member other(t.mount, kRootIno, "first", O_WRONLY);
    CHECK(other.write(kNew, 0) == 0);
    CHECK(other.close() == 0);
    CHECK(t.commit() == ESTALE);
    CHECK(stored() == Stored{{"first", kNew}, {"second", kSecond}, {"third", kThird}});
  }
}

TEST_CASE("without -o reshape a NumPy file gives no tensor another shape", "[fs][transaction_npy]") {
  const NpyTransaction at(MountedModelOptions{});
  CHECK(at.put("first", npy_of("<i2", "(3,)", "abcdef")) == EINVAL);
  CHECK(at.t.captured.contains("mount with -o reshape"));
  CHECK(at.remove("first") == 0);
  CHECK(at.put("first", npy_of("<i2", "(16,)", std::string(32, 'n'))) == 0);
  CHECK(at.put("new", kFloats) == 0);
  CHECK(at.t.commit() == 0);
  CHECK(form_of(at.t.mount, "first") + form_of(at.t.mount, "new") == "I16[16]F32[2,1]");
}

TEST_CASE_METHOD(NpyTransaction, "what another program writes while a NumPy file is open is a conflict",
                 "[fs][transaction_npy]") {
  WrittenFile file(t.mount, "first.npy", npy, O_RDWR);
  CHECK(file.write("12", 128) == 0);
  {
    Member other(t.mount, kRootIno, "first");
    CHECK(other.write(kNew, 0) == 0);
    CHECK(other.close() == 0);
  }
  CHECK(file.close() == 0);
  CHECK(t.commit() == ESTALE);
  CHECK(stored().at("first") == kNew);
}

TEST_CASE_METHOD(NpyTransaction, "a NumPy file of a tensor can be changed in part", "[fs][transaction_npy]") {
  const auto patch = [&](const std::string& data) {
    WrittenFile file(t.mount, "second.npy", npy, O_RDWR);
    CHECK(file.write(data, 128) == 0);
    return file.close();
  };
  CHECK(patch("12") == 0);
  CHECK(t.read(directory, "second") == "12" + kSecond.substr(2));
  CHECK(t.stage(directory, "second", kNew) == 0);
  CHECK(patch("34") == 0);
  CHECK(t.commit() == 0);
  CHECK(stored().at("second") == "34" + kNew.substr(2));
  CHECK(form_of(t.mount, "second") == "U8[16]");
}

TEST_CASE_METHOD(NpyTransaction, "a NumPy file that is no tensor fails its close, and then the commit",
                 "[fs][transaction_npy]") {
  const std::string in_columns = [] {
    std::string file = npy_of("<f4", "(2, 2)", kOld);
    file.replace(file.find("False, "), 7, "True,  ");
    return file;
  }();
  const auto [file, why] = GENERATE_COPY(
      std::pair(npy_of("<f4", "(2, 1)", "1234"), "has 4 bytes of data, its header gives 8"),
      std::pair(npy_of("<f4", "(2, 1)", "123456789"), "has 9 bytes of data, its header gives 8"),
      std::pair(std::string("text"), "it does not begin like one"),
      std::pair(npy_of("|V2", "(2,)", "abcd"), "no dtype is meant by |V2 alone"),
      std::pair(npy_of(">f4", "(2,)", "12345678"), "big-endian"),
      std::pair(in_columns, "is in Fortran order"));
  CAPTURE(why);
  const std::string name = GENERATE("new", "second");
  CHECK(put("first", npy_of("|u1", "(2,)", "ok")) == 0);
  CHECK(put(name, file) == EINVAL);
  CHECK(t.captured.contains("dropped: tensor \"" + name + "\""));
  CHECK(t.captured.contains(why));
  CHECK(read_npy(name).size() <= 128);
  CHECK(t.commit() == ENODATA);
  CHECK(stored() == kStoredThree);
  SECTION("until it is written again") {
    CHECK(put(name, kFloats) == 0);
    CHECK(t.commit() == 0);
    CHECK(stored().at(name) == "12345678");
  }
  SECTION("until it is written through the tensor's own file") {
    CHECK(t.stage(directory, name, kNew) == 0);
    CHECK(set(name, "dtype", "U8") == 0);
    CHECK(set(name, "shape", "[16]") == 0);
    CHECK(t.commit() == 0);
    CHECK(form_of(t.mount, name) == "U8[16]");
  }
  SECTION("until it is removed") {
    CHECK(remove(name) == 0);
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"first", "ok"}, {"second", kSecond}, {"third", kThird}});
  }
}

TEST_CASE_METHOD(NpyTransaction, "a killed writer of a NumPy file stages nothing, and the commit is refused",
                 "[fs][transaction_npy]") {
  {
    const ChildProcess killed(ChildProcess::Fate::IsKilled);
    const auto made = t.mount->create(npy, "new.npy", O_WRONLY, killed.pid()).value();
    CHECK(t.mount->write(*made.file, bytes_of(kFloats), 0, Caller(5, killed.pid())));
    t.mount->flush(*made.file, 5, killed.pid());
    t.mount->release(made.file);
  }
  CHECK(t.captured.contains("was killed by a signal before it closed"));
  CHECK(t.read(directory, "new").empty());
  CHECK(t.commit() == EIO);
  CHECK(remove("new") == 0);
  CHECK(listed().empty());
  CHECK(t.commit() == 0);
  CHECK(stored() == kStoredThree);
}

TEST_CASE_METHOD(NpyTransaction, "while a NumPy file is open the transaction can't be committed",
                 "[fs][transaction_npy]") {
  WrittenFile file(t.mount, "new.npy", npy, O_RDWR);
  CHECK(listed().empty());
  CHECK(t.mount->attributes(file.ino())->st_size == 0);
  CHECK(file.write(kFloats) == 0);
  CHECK(t.mount->attributes(file.ino())->st_size == 136);
  CHECK(read_ino(t.mount, file.ino()) == kFloats);
  CHECK(t.mount.ino("new.npy", npy) == file.ino());
  CHECK(t.commit() == EBUSY);
  CHECK(file.close() == 0);
  CHECK(t.mount.ino("new.npy", npy) == file.ino());
  CHECK(t.commit() == 0);
  CHECK(stored().at("new") == "12345678");
}

TEST_CASE_METHOD(NpyTransaction, "a transaction with an open NumPy file can get another name",
                 "[fs][transaction_npy]") {
  WrittenFile file(t.mount, "new.npy", npy, O_RDWR);
  CHECK(errno_of(t.mount->rename(kTransactions, "T", kTransactions, "U")) == 0);
  CHECK(t.mount->label_of(file.ino(), "").find("transactions/U") != std::string::npos);
  CHECK(file.write(kFloats) == 0);
  CHECK(file.close() == 0);
  CHECK(t.commit("U") == 0);
}

TEST_CASE_METHOD(NpyTransaction, "bytes that were synced stay as they were when the file goes on",
                 "[fs][transaction_npy]") {
  const auto made = t.mount->create(npy, "new.npy", O_RDWR, ::getpid()).value();
  const auto write = [&](std::string_view bytes, std::uint64_t at) {
    REQUIRE(t.mount->write(*made.file, bytes_of(bytes), at, Caller(1, ::getpid())));
  };
  write(npy_of("<f4", "(2,)", ""), 0);
  REQUIRE(t.mount->sync(*made.file));
  CHECK(t.read(directory, "new") == std::string(8, '\0'));
  write("12345678", 128);
  CHECK(t.read(directory, "new") == std::string(8, '\0'));
  REQUIRE(t.mount->sync(*made.file));
  CHECK(t.read(directory, "new") == "12345678");
  CHECK(t.stage(directory, "new", "abcdefgh") == 0);
  write("x", 128);
  CHECK(t.read(directory, "new") == "abcdefgh");
  REQUIRE(t.mount->flush(*made.file, 1, ::getpid()));
  t.mount->release(made.file);
  CHECK(t.read(directory, "new") == "x2345678");
  CHECK(t.commit() == 0);
  CHECK(stored().at("new") == "x2345678");
}

TEST_CASE_METHOD(NpyTransaction, "beside NumPy files of tensors nothing can be made, moved or removed",
                 "[fs][transaction_npy]") {
  const Ino hidden = t.mount.ino(".safetensors", directory);
  const auto created = [&](Ino in, std::string_view name) {
    return errno_of(t.mount->create(in, name, O_WRONLY, ::getpid()));
  };
  CHECK(created(npy, "x.txt") == EINVAL);
  CHECK(created(npy, "a%.npy") == EILSEQ);
  CHECK(created(npy, "__metadata__.npy") == EILSEQ);
  CHECK(created(hidden, "x.npy") == EPERM);
  CHECK(errno_of(t.mount->lookup(hidden, "float32")) == ENOENT);
  CHECK(errno_of(t.mount->lookup(npy, "first")) == ENOENT);
  CHECK(errno_of(t.mount->make_directory(npy, "x")) == EPERM);
  CHECK(errno_of(t.mount->remove_directory(directory, ".safetensors")) == EPERM);
  CHECK(errno_of(t.mount->remove_file(npy, "first.npy")) == EPERM);
  CHECK(errno_of(t.mount->rename(npy, "first.npy", npy, "x.npy", 0)) == EPERM);
  CHECK(errno_of(t.mount->rename(directory, "first", npy, "x.npy", 0)) == EPERM);
  CHECK(errno_of(t.mount->set_extended_attribute(npy, "user.safetensors.metadata.k", "v")) == EPERM);
  CHECK(errno_of(t.mount->resize_by_name(t.mount.ino("first.npy", npy), 0, ::getpid())) == EPERM);
  CHECK(listed().empty());
  CHECK(t.commit() == 0);
  CHECK(stored() == kStoredThree);
}

TEST_CASE("with edit=off a transaction takes no NumPy file", "[fs][transaction_npy]") {
  MountedModelOptions options;
  options.allows_edits = false;
  const NpyTransaction t(options);
  CHECK(errno_of(t.t.mount->create(t.npy, "new.npy", O_WRONLY, ::getpid())) == EPERM);
  const Ino first = t.t.mount.ino("first.npy", t.npy);
  CHECK(errno_of(t.t.mount->open(first, O_WRONLY, ::getpid())) == EPERM);
  CHECK((t.t.mount->attributes(first)->st_mode & 0222) == 0);
  CHECK(t.read_npy("first") == npy_of("|u1", "(16,)", kOld));
}

TEST_CASE("names that .npy makes too long have their cut form in a transaction, too",
          "[fs][transaction_npy]") {
  const std::string name(254, 'n');
  const Transacted t(kReshapes, system_storage(), {{name, kOld}});
  const Ino directory = t.begin();
  const Ino npy = t.mount.ino("npy", t.mount.ino(".safetensors", directory));
  const std::string cut = t.list(t.mount.ino("npy", t.mount.ino(".safetensors"))).front();
  {
    WrittenFile file(t.mount, cut, npy);
    file.cut();
    CHECK(file.write(npy_of("|u1", "(3,)", "abc")) == 0);
    CHECK(file.close() == 0);
  }
  CHECK(t.read(directory, name) == "abc");
  CHECK(t.commit() == 0);
  CHECK(stored_tensors(t.mount) == Stored{{name, "abc"}});
}

TEST_CASE("a tensor that NumPy can't have has no NumPy file in a transaction, and its shape is not copied",
          "[fs][transaction_npy]") {
  const TemporaryDirectory temporary;
  const auto ones = [](std::size_t rank) {
    std::string shape = "1";
    for (std::size_t at = 1; at < rank; ++at) shape += ",1";
    return shape;
  };
  const std::string path = temporary.write(
      "m.safetensors",
      archive_bytes(fmt::format(R"({{"most":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}},)"
                                R"("more":{{"dtype":"U8","shape":[{}],"data_offsets":[1,2]}},)"
                                R"("huge":{{"dtype":"U8","shape":[{}],"data_offsets":[2,3]}}}})",
                                ones(64), ones(65), ones(40000)),
                    "123"));
  MountedModel filesystem(Archive::open(path, Access::ReadWrite).value(), {});
  const Ino directory = filesystem.make_directory(kTransactions, "T")->st_ino;
  const Ino hidden = filesystem.lookup(directory, ".safetensors")->st_ino;
  const Ino npy = filesystem.lookup(hidden, "npy")->st_ino;
  CHECK(filesystem.lookup(npy, "most.npy"));
  CHECK(errno_of(filesystem.lookup(npy, "more.npy")) == ENOENT);
  CHECK(errno_of(filesystem.lookup(npy, "huge.npy")) == ENOENT);
  const Ino huge = filesystem.lookup(directory, "huge")->st_ino;
  CHECK(filesystem.extended_attribute(huge, "user.safetensors.dtype") == "U8");
  CHECK(errno_of(filesystem.extended_attribute(huge, "user.safetensors.shape")) == E2BIG);
}
