// The command line of one verb. Wraps CLI11 with the conventions of stfs. This header does not include CLI11,
// because each file that does takes seconds to compile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/verb.h"

namespace CLI {
class Option;
}  // namespace CLI

namespace stfs::tools {

/// The variables that the options fill in must outlive parse().
class CommandLine {
 public:
  /// A declared option.
  class Option {
   public:
    /// Makes it wrong usage to give both options.
    /// @param other  the long name of an option that is already declared.
    const Option& excludes(const std::string& other) const;
    /// Gives the completions words for the value. Other values are also accepted.
    const Option& suggests(const std::vector<std::string>& words) const;

   private:
    friend class CommandLine;
    explicit Option(CLI::Option* option) : option_(option) {}
    CLI::Option* option_;
  };

  /// @param verb      a literal.
  /// @param examples  lines "COMMAND   what it does" and other text. The help then names the manual page.
  CommandLine(std::string_view verb, const std::string& summary, const std::string& examples);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// An option without a value.
  Option flag(bool& to, const std::string& name, const std::string& description);
  /// An option with any text as its value. The help shows `value` in place of the text.
  Option text(std::string& to, const std::string& name, const std::string& value,
              const std::string& description);
  /// An option whose value names a file of this machine, or a directory. parse() refuses an address.
  Option file(std::string& to, const std::string& name, const std::string& value,
              const std::string& description);
  /// An option whose value is one of `words`.
  Option choice(std::string& to, const std::string& name, const std::string& value,
                const std::string& description, std::vector<std::string> words);
  /// An option whose value is a whole number from `least` to `most`.
  Option number(std::uint64_t& to, const std::string& name, const std::string& value,
                const std::string& description, std::uint64_t least, std::uint64_t most);
  /// An option that may be given several times, each time with its own value.
  Option texts(std::vector<std::string>& to, const std::string& name, const std::string& value,
               const std::string& description);

  /// The first positional argument, which is required.
  void positional(std::string& to, const std::string& name, const std::string& description);
  /// Does the same for a file of this machine, or a directory. parse() refuses an address.
  void positional_file(std::string& to, const std::string& name, const std::string& description);
  /// All positional arguments after the first.
  void positionals(std::vector<std::string>& to, const std::string& name, const std::string& description);

  /// A line "Usage: stfs VERB ..." of the help and of the manual page, which says what the user must give. A
  /// verb with several uses has a line for each. Without a call there is one line with the arguments.
  /// @param words  options without their values, and arguments: "--out A B". [OPTIONS] is added.
  void usage(const std::string& words);

  /// Fills in the arguments. Prints the definitions for packaging/generate if the only argument is
  /// --definitions. Prints the help if the user asked for it, or the mistake if there is one.
  /// @return the exit code if the verb must end now; nothing if the verb continues.
  std::optional<int> parse(const Arguments& arguments, Streams& streams);
  /// Returns true if the option was given. Called after parse().
  [[nodiscard]] bool has(const std::string& name) const;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace stfs::tools
