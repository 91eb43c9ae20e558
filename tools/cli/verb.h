// A verb of stfs is a function of its arguments and its streams, so its tests run in-process.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::tools {

/// The arguments after the verb on the command line.
using Arguments = std::vector<std::string>;

/// The streams of a verb. Data go to `out`, diagnostics and progress to `err`. A verb stops early if `out`
/// fails. main() reports this failure, because it knows the reason (descriptor_stream.h).
struct Streams {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  std::string_view verb = {};  // the verb that runs: diagnostics begin with it. Set by CommandLine::parse()
};

enum ExitCode : int { kDone = 0, kFailed = 1, kWrongUsage = 2 };

struct Verb {
  std::string_view name;
  std::string_view summary;
  int (*run)(const Arguments& arguments, Streams& streams);
};

int ls(const Arguments& arguments, Streams& streams);
int info(const Arguments& arguments, Streams& streams);
int cat(const Arguments& arguments, Streams& streams);
int slice(const Arguments& arguments, Streams& streams);
int verify(const Arguments& arguments, Streams& streams);
int diff(const Arguments& arguments, Streams& streams);
int put(const Arguments& arguments, Streams& streams);
int rm(const Arguments& arguments, Streams& streams);
int mv(const Arguments& arguments, Streams& streams);
int set(const Arguments& arguments, Streams& streams);
int apply(const Arguments& arguments, Streams& streams);
int pull(const Arguments& arguments, Streams& streams);
int commit(const Arguments& arguments, Streams& streams);
int compact(const Arguments& arguments, Streams& streams);
int repack(const Arguments& arguments, Streams& streams);
int recover(const Arguments& arguments, Streams& streams);
int upload(const Arguments& arguments, Streams& streams);
int devices(const Arguments& arguments, Streams& streams);
int serve(const Arguments& arguments, Streams& streams);
int fetch(const Arguments& arguments, Streams& streams);
int cache(const Arguments& arguments, Streams& streams);
int mounts(const Arguments& arguments, Streams& streams);
int top(const Arguments& arguments, Streams& streams);
int umount(const Arguments& arguments, Streams& streams);
int sample(const Arguments& arguments, Streams& streams);

}  // namespace stfs::tools
