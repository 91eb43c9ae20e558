// Parsing and its errors.
#include "tools/command_line.h"

#include <algorithm>

#include "tools/diagnostic.h"

namespace stfs::tools {
namespace {

// CLI11 2 takes a positional "[a,b]" apart into the list a, b; here it is a pattern or a tensor's name.
// A character before the bracket keeps it whole, and is taken away again after parsing.
constexpr char kGuard = '\1';

std::string guarded(const std::string& argument) {
  return argument.starts_with('[') || argument.starts_with(kGuard) ? kGuard + argument : argument;
}

std::string unguarded(const std::string& argument) {
  return argument.starts_with(kGuard) ? argument.substr(1) : argument;
}

}  // namespace

CommandLine::CommandLine(std::string verb, const std::string& summary, const std::string& examples)
    : verb_(std::move(verb)), app_(summary + "\n", "stfs " + verb_) {
  app_.set_help_flag("-h,--help", "this help");
  app_.footer(examples);
  app_.get_formatter()->column_width(22);
  app_.get_formatter()->label("Positionals", "Arguments");
  app_.get_formatter()->label("REQUIRED", "");
}

CLI::Option* CommandLine::flag(bool& to, const std::string& name, const std::string& description) {
  // The text keeps "Excludes: --json" and the like out of the help.
  return app_.add_flag(name, to, description)->option_text(" ");
}

CLI::Option* CommandLine::text(std::string& to, const std::string& name, const std::string& value,
                               const std::string& description) {
  ones_.push_back(&to);
  return app_.add_option(name, to, description)->option_text(value);
}

void CommandLine::texts(std::vector<std::string>& to, const std::string& name, const std::string& value,
                        const std::string& description) {
  lists_.push_back(&to);
  app_.add_option(name, to, description)
      ->option_text(value)
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

void CommandLine::positional(std::string& to, const std::string& name, const std::string& description) {
  ones_.push_back(&to);
  app_.add_option(name, to, description)->required()->option_text(" ");
}

void CommandLine::positionals(std::vector<std::string>& to, const std::string& name,
                              const std::string& description) {
  lists_.push_back(&to);
  app_.add_option(name, to, description)->option_text(" ");
}

std::optional<int> CommandLine::parse(const Arguments& arguments, Streams& streams) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  std::transform(reversed.begin(), reversed.end(), reversed.begin(), guarded);
  try {
    app_.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    streams.out << app_.help();
    return kDone;
  } catch (const CLI::ParseError& error) {
    return report_wrong_usage(streams, verb_, unguarded(error.what()));
  }
  for (std::string* one : ones_) *one = unguarded(*one);
  for (auto* list : lists_) std::transform(list->begin(), list->end(), list->begin(), unguarded);
  return std::nullopt;
}

}  // namespace stfs::tools
