// The command line of one verb: CLI11 with the house's manners.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/verb.h"

namespace stfs::tools {

class CommandLine {
 public:
  /// @param examples  "COMMAND   what it does" lines and whatever else the help should end with.
  CommandLine(std::string verb, const std::string& summary, const std::string& examples);

  /// Where the verb declares its options, those with a value.
  CLI::App& options() { return app_; }

  /// An option without a value.
  CLI::Option* flag(bool& to, const std::string& name, const std::string& description);

  /// An option with any text as its value; `value` stands for it in the help.
  CLI::Option* text(std::string& to, const std::string& name, const std::string& value,
                    const std::string& description);

  /// An option that may be given several times, each with a value of its own.
  void texts(std::vector<std::string>& to, const std::string& name, const std::string& value,
             const std::string& description);

  /// The first positional argument, required. What is filled in must outlive parse(), here and below.
  void positional(std::string& to, const std::string& name, const std::string& description);
  /// All positional arguments after it.
  void positionals(std::vector<std::string>& to, const std::string& name, const std::string& description);

  /// Fills in the arguments, or prints help or what is wrong.
  /// @return the exit code to end with, or nothing: the verb goes on.
  std::optional<int> parse(const Arguments& arguments, Streams& streams);

 private:
  std::string verb_;
  CLI::App app_;
  std::vector<std::string*> ones_;
  std::vector<std::vector<std::string>*> lists_;
};

}  // namespace stfs::tools
