// Another user gives an archive's name to a file of that user.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace stfs::test {

inline constexpr uid_t kExchanger = 12345;

/// Exchanges a file's name for a file with mode 0666. If this process is root, kExchanger owns that file.
class ExchangedName {
 public:
  explicit ExchangedName(std::filesystem::path name) : name_(std::move(name)), kept_(name_) {
    kept_ += ".kept";
    std::filesystem::rename(name_, kept_);
    std::filesystem::copy_file(kept_, name_);
    const bool is_root = ::geteuid() == 0;
    if (is_root && ::chown(name_.c_str(), kExchanger, kExchanger) != 0) throw std::runtime_error("chown");
    if (::chmod(name_.c_str(), 0666) != 0) throw std::runtime_error("chmod");
  }
  ExchangedName(const ExchangedName&) = delete;
  ExchangedName& operator=(const ExchangedName&) = delete;
  /// Gives the name back to the file that had it.
  ~ExchangedName() {
    std::error_code ignored;
    std::filesystem::rename(kept_, name_, ignored);
  }

 private:
  std::filesystem::path name_;
  std::filesystem::path kept_;
};

}  // namespace stfs::test
