// The command line of one verb: CLI11 with the house's manners, and behind a wall, since every file that
// reads it takes seconds to compile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/verb.h"

namespace CLI {
class Option;
}  // namespace CLI

namespace stfs::tools {

/// What is filled in must outlive parse().
class CommandLine {
 public:
  /// Of a declared option.
  class Option {
   public:
    /// Both at once are wrong usage.
    /// @param other  the long name of one that is declared already.
    const Option& excludes(const std::string& other) const;

   private:
    friend class CommandLine;
    explicit Option(CLI::Option* option) : option_(option) {}
    CLI::Option* option_;
  };

  /// @param examples  "COMMAND   what it does" lines and whatever else the help should end with.
  CommandLine(std::string verb, const std::string& summary, const std::string& examples);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// An option without a value.
  Option flag(bool& to, const std::string& name, const std::string& description);
  /// An option with any text as its value; `value` stands for it in the help.
  Option text(std::string& to, const std::string& name, const std::string& value,
              const std::string& description);
  /// An option whose value is one of some words.
  Option choice(std::string& to, const std::string& name, const std::string& value,
                const std::string& description, std::vector<std::string> words);
  /// An option with a whole number from `least` to `most`.
  Option number(std::uint32_t& to, const std::string& name, const std::string& value,
                const std::string& description, std::uint32_t least, std::uint32_t most);
  Option number(std::uint64_t& to, const std::string& name, const std::string& value,
                const std::string& description, std::uint64_t least, std::uint64_t most);
  /// An option that may be given several times, each with a value of its own.
  void texts(std::vector<std::string>& to, const std::string& name, const std::string& value,
             const std::string& description);

  /// The first positional argument, required.
  void positional(std::string& to, const std::string& name, const std::string& description);
  /// All positional arguments after it.
  void positionals(std::vector<std::string>& to, const std::string& name, const std::string& description);

  /// Fills in the arguments, or prints help or what is wrong.
  /// @return the exit code to end with, or nothing: the verb goes on.
  std::optional<int> parse(const Arguments& arguments, Streams& streams);
  /// Whether the option was given; after parse().
  [[nodiscard]] bool has(const std::string& name) const;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace stfs::tools
