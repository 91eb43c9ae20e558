// The texts of diagnostic.h.
#include "tools/diagnostic.h"

#include <ostream>

#include "tools/printable.h"

namespace stfs::tools {

int report_failure(Streams& streams, std::string_view verb, std::string_view message) {
  streams.err << "stfs " << verb << ": " << printable(message) << '\n';
  return kFailed;
}

int report_wrong_usage(Streams& streams, std::string_view verb, std::string_view message) {
  streams.err << "stfs " << verb << ": " << printable(message) << "\nTry 'stfs " << verb << " --help'.\n";
  return kWrongUsage;
}

}  // namespace stfs::tools
