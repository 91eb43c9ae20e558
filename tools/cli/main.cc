// stfs: the table of verbs, and main().
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <iostream>

#include "core/base/hidden_arguments.h"
#include "core/base/program_descriptors.h"
#include "core/storage/bus_guard.h"
#include "tools/cli/descriptor_stream.h"
#include "tools/cli/dispatch.h"
#include "tools/cli/verb.h"
#include "tools/text/table.h"

int main(int argc, char** argv) {
  using namespace stfs::tools;
  static constexpr std::array kVerbs = {
      Verb{"ls", "list name, dtype, shape and size of tensors", ls},
      Verb{"info", "show totals by dtype, metadata and alignment of a model", info},
      Verb{"cat", "write the bytes of tensors to standard output", cat},
      Verb{"slice", "write some elements of a tensor, selected as in NumPy", slice},
      Verb{"verify", "read every byte: checksums, NaNs, differences from a record", verify},
      Verb{"diff", "compare two models tensor by tensor", diff},
      Verb{"put", "change or add one tensor: from bytes, a .npy file or another archive", put},
      Verb{"apply", "change all tensors of a delta at once, or none", apply},
      Verb{"pull", "apply the versions that training has published", pull},
      Verb{"rm", "delete tensors, in place", rm},
      Verb{"mv", "rename tensors, in place", mv},
      Verb{"set", "change metadata, or the dtype and shape of a tensor, in place", set},
      Verb{"commit", "merge a delta into its base", commit},
      Verb{"compact", "give the space of deleted tensors back, in place", compact},
      Verb{"repack", "write a new archive: other order, alignment, shards or dtypes", repack},
      Verb{"recover", "finish the commits of interrupted writers", recover},
      Verb{"upload", "move tensors into the memory of devices", upload},
      Verb{"devices", "list the devices for uploads", devices},
      Verb{"serve", "keep tensors in the memory of devices and share them", serve},
      Verb{"fetch", "bring tensors of a remote model to this machine before they are read", fetch},
      Verb{"cache", "list, prove and drop what has been fetched from remote models", cache},
      Verb{"mounts", "list the mounts of safetensorsfs, and their states", mounts},
      Verb{"top", "show reads, writes and commits of a mount while they happen", top},
      Verb{"umount", "unmount, and wait until all changes are on stable storage", umount},
      Verb{"sample", "write a small model for experiments", sample},
  };

  if (!stfs::hold_standard_streams()) return kFailed;
  stfs::raise_descriptor_limit();
  stfs::install_bus_guard();  // for slices of short runs (core/archive/slice_reader.h)
  // Tensor names are UTF-8, whatever the user's locale is. Patterns and widths count characters.
  std::setlocale(LC_CTYPE, "C.UTF-8");

  DescriptorStream out(STDOUT_FILENO);
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0) set_terminal_columns(out, window.ws_col);
  Streams streams{std::cin, out, std::cerr, isatty(STDOUT_FILENO) == 1, isatty(STDERR_FILENO) == 1};
  const Arguments arguments(argv + std::min(argc, 1), argv + argc);
  stfs::hide_queries(argc, argv);
  const int code = dispatch(kVerbs, arguments, streams);
  return close_output(out, code, arguments.empty() ? "" : arguments.front(), std::cerr);
}
