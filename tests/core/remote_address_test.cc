// core/remote/remote_storage.h, http_connection.h: addresses, without a server.
#include <fcntl.h>

#include <string>

#include "core/base/absolute_path.h"
#include "core/base/hidden_arguments.h"
#include "core/remote/http_connection.h"
#include "core/remote/remote_storage.h"
#include "core/storage/file.h"
#include "core/storage/new_file.h"
#include "core/storage/trusted_links.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"
#include "tests/support/remote_libraries.h"
#include "tests/support/skip.h"

using namespace stfs;
using namespace stfs::test;

namespace {}  // namespace

TEST_CASE("the queries of addresses are hidden in the command line, and nothing else", "[core][remote]") {
  const auto hidden = [](std::string text) {
    char* argument = text.data();
    hide_queries(1, &argument);
    return text;
  };
  CHECK(hidden("https://h/x?sig=1") == "https://h/x?*****");
  CHECK(hidden("delta=https://h/x?a") == "delta=https://h/x?*");
  CHECK(hidden("https://h/x?") == "https://h/x?");
  CHECK(hidden("https://h/x") == "https://h/x");
  CHECK(hidden("layer?.weight") == "layer?.weight");
  CHECK(hidden("").empty());
}

TEST_CASE("an address is a path of its own kind", "[core][remote]") {
  CHECK(is_url("https://host/x"));
  CHECK(is_url("http://host"));
  CHECK(is_url("hf://org/model"));
  CHECK(is_url("s3://bucket/key"));
  for (const char* path :
       {"", "x", "/https://host/x", "./https://host/x", "https:/host/x", "ftp://host/x", "HTTPS"})
    CHECK_FALSE(is_url(path));
  CHECK(absolute_path("https://host//a/./b").value() == "https://host//a/./b");
}

TEST_CASE("an address of another scheme is refused, and no path is taken for one", "[core][remote]") {
  for (const char* address : {"gs://bucket/key", "S3://bucket/key", "HTTPS://host/x", "file:///x"})
    CHECK(errno_of(check_scheme(address)) == EINVAL);
  for (const char* path : {"", "https://host/x", "hf://org/model", "s3://bucket/key", "x", "./hf://org/model",
                           "/hf://x", "a/b://c", "://x", "hf:/x"})
    CHECK(check_scheme(path));
  CHECK(check_scheme("gs://bucket/key").error().message ==
        "gs://bucket/key: gs:// is not read: name an address that begins with https://, http://, hf:// or "
        "s3://");
}

TEST_CASE("an address names no file of this machine", "[core][remote]") {
  for (const char* address : {"https://host/x", "hf://org/model", "s3://bucket/key", "gs://x"}) {
    CHECK(errno_of(check_local(address)) == EINVAL);
    CHECK(errno_of(system_storage().open(address, Access::ReadOnly)) == EINVAL);
    CHECK(errno_of(system_storage().status(address)) == EINVAL);
    CHECK(errno_of(NewFile::create(address, true)) == EINVAL);
    CHECK(errno_of(follow_trusted_links(AT_FDCWD, address)) == EINVAL);
    CHECK(errno_of(open_what_is_named(address)) == EINVAL);
  }
  for (const char* path : {"", "x", "./https://host/x", "/https://x", "a/b://c", "https:/host/x"})
    CHECK(check_local(path));
  CHECK(errno_of(absolute_path("gs://x")) == EINVAL);
  CHECK(check_local("https://x").error().message ==
        "https://x: is an address, and this file must be on this machine: ./ before it names a local path");
}

TEST_CASE("an address is known without its query, and has no password", "[core][remote]") {
  CHECK(known_address("https://host/a/x.safetensors").value() == "https://host/a/x.safetensors");
  CHECK(known_address("https://host/x?signature=a/b?c").value() == "https://host/x");
  CHECK(known_address("https://host/x#part").value() == "https://host/x");
  CHECK(known_address("https://host/me@home?a@b").value() == "https://host/me@home");
  CHECK(known_address("https://host").value() == "https://host");
  CHECK(errno_of(known_address("https://me:secret@/x")) == EINVAL);
  for (const char* address :
       {"https://me:secret@host/x", "https://secret@host", "https://a@secret@host/x?y"}) {
    const auto refused = known_address(address);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().errno_value == EINVAL);
    CHECK(refused.error().message.find("secret") == std::string::npos);
    CHECK(refused.error().message.starts_with("https://host"));
  }
}

TEST_CASE("an address has a host, no password, and the scheme https or http", "[core][remote]") {
  if (!has_libcurl()) return;
  CHECK(check_url("https://host/x"));
  CHECK(check_url("http://127.0.0.1:8000/x?y"));
  for (const char* address :
       {"", "https://", "file:///etc/passwd", "ftp://host/x", "https://me:secret@host/x", "https://me@host/x",
        "https://host:port/x", "https://host name/x"})
    CHECK(errno_of(check_url(address)) == EINVAL);
}

TEST_CASE("a redirect leads to another address, and never from https to http", "[core][remote]") {
  if (!has_libcurl()) return;
  const std::string from = "https://host/a/b?c";
  CHECK(redirected(from, "https://other/x?y").value() == "https://other/x?y");
  CHECK(redirected(from, "/x").value() == "https://host/x");
  CHECK(redirected(from, "x").value() == "https://host/a/x");
  CHECK(redirected(from, "//other/x").value() == "https://other/x");
  CHECK(redirected("http://host/a", "https://host/a").value() == "https://host/a");
  CHECK(redirected("http://host/a", "http://other/a").value() == "http://other/a");
  for (const char* location : {"", "http://host/a/b", "file:///etc/passwd", "https://me:secret@host/x"})
    CHECK(errno_of(redirected(from, location)) == EINVAL);
}

TEST_CASE("two addresses have the same origin if scheme, host and port are the same", "[core][remote]") {
  if (!has_libcurl()) return;
  CHECK(has_same_origin("https://host/a", "https://host:443/b?c"));
  CHECK(has_same_origin("https://HOST/a", "https://host"));
  CHECK(has_same_origin("http://host:80", "http://host"));
  for (const char* other :
       {"http://host", "https://host:444", "https://host.org", "https://other", "host", ""})
    CHECK_FALSE(has_same_origin("https://host/a", other));
  CHECK_FALSE(has_same_origin("", ""));
  for (const char* local : {"http://127.0.0.1:80/x", "http://localhost", "http://[::1]:1"})
    CHECK(is_loopback(local));
  for (const char* other : {"http://127.0.0.1.host", "http://localhost.host", "http://host/127.0.0.1", ""})
    CHECK_FALSE(is_loopback(other));
}

TEST_CASE("the storage of addresses changes nothing, and knows what is open", "[core][remote]") {
  Storage& storage = remote_storage();
  const std::string address = "https://host/x";
  CHECK(errno_of(storage.open(address, Access::ReadWrite)) == EROFS);
  CHECK(errno_of(storage.create_unnamed(address)) == EROFS);
  CHECK(errno_of(storage.check_writable(address)) == EROFS);
  CHECK(errno_of(storage.check_replaceable(address)) == EROFS);
  CHECK(errno_of(storage.remove(address)) == EROFS);
  CHECK(errno_of(storage.status(address)) == ENOENT);
  CHECK(storage.list("https://host", "").value().empty());
  CHECK_FALSE(storage.is_system());
}
