// stfs: the table of verbs, and main().
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <iostream>

#include "core/storage/bus_guard.h"
#include "tools/cli/descriptor_stream.h"
#include "tools/cli/dispatch.h"
#include "tools/cli/verb.h"

int main(int argc, char** argv) {
  using namespace stfs::tools;
  static constexpr std::array kVerbs = {
      Verb{"ls", "list the tensors: name, dtype, shape, size", ls},
      Verb{"info", "what an archive holds: totals by dtype, metadata, alignment", info},
      Verb{"cat", "write the bytes of tensors to standard output", cat},
      Verb{"slice", "write some elements of a tensor, selected as in NumPy", slice},
      Verb{"verify", "read every byte: checksums, NaNs, what differs from a record", verify},
      Verb{"put", "change one tensor: from bytes, a .npy file or another archive", put},
      Verb{"apply", "change all tensors of a delta at once, or none", apply},
      Verb{"recover", "finish what an interrupted writer has committed", recover},
      Verb{"upload", "move tensors into the memory of devices", upload},
      Verb{"devices", "the devices that upload can move to, and why there is no GPU", devices},
      Verb{"serve", "keep tensors in the memory of devices, for other processes", serve},
      Verb{"sample", "write a small model to try things on", sample},
  };

  stfs::install_bus_guard();  // for slices of short runs (core/archive/slice_reader.h)
  // Tensor names are UTF-8, whatever the user's locale is. Patterns and widths count characters.
  std::setlocale(LC_CTYPE, "C.UTF-8");

  DescriptorStream out(STDOUT_FILENO);
  Streams streams{std::cin, out, std::cerr, isatty(STDOUT_FILENO) == 1, isatty(STDERR_FILENO) == 1};
  const Arguments arguments(argv + std::min(argc, 1), argv + argc);
  const int code = dispatch(kVerbs, arguments, streams);
  return close_output(out, code, arguments.empty() ? "" : arguments.front(), std::cerr);
}
