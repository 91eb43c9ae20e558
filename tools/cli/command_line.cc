// Parses command lines and explains mistakes in them.
#include "tools/cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/base/absolute_path.h"
#include "tools/cli/diagnostic.h"
#include "tools/text/json_document.h"
#include "tools/text/near_names.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

// CLI11 2 splits a positional "[a,b]" into the list a, b. For stfs this text is a pattern or a tensor's name.
// A character before the bracket prevents the split; it is removed after parsing.
constexpr char kGuard = '\1';

std::string guarded(const std::string& argument) {
  return argument.starts_with('[') || argument.starts_with(kGuard) ? kGuard + argument : argument;
}

std::string unguarded(const std::string& argument) {
  return argument.starts_with(kGuard) ? argument.substr(1) : argument;
}

/// CLI11 2.4 and newer refuse a space in a name. Use underscores instead; the help shows the underscores of
/// positional arguments as spaces.
std::string without_spaces(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

/// Returns the usage of a verb whose arguments need no other explanation: "TARGET [GLOB...]".
std::string plain_usage(const CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    std::string name = option->get_name(true, false);
    std::replace(name.begin(), name.end(), '_', ' ');
    words += (words.empty() ? "" : " ") + (option->get_required() ? name : fmt::format("[{}...]", name));
  }
  return words;
}

/// Returns the words of a usage with the values of its options, and with [OPTIONS] before the arguments.
std::string full_usage(const CLI::App& app, const std::string& usage) {
  std::istringstream words(usage);
  std::string text;
  bool has_options = usage.find("[--") != std::string::npos;
  for (std::string word; words >> word;) {
    const bool is_option = word.starts_with("-") || word.starts_with("[-");
    if (!is_option && !has_options) text += " [OPTIONS]";
    has_options = has_options || !is_option;
    text += " " + word;
    const CLI::Option* option = is_option ? app.get_option_no_throw(word) : nullptr;
    if (option != nullptr && option->get_option_text() != " ") text += " " + option->get_option_text();
  }
  return text + (has_options ? "" : " [OPTIONS]");
}

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(const std::vector<std::string>& usages) : usages_(usages) {}

  std::string make_usage(const CLI::App* app, std::string name) const override {
    if (usages_.empty()) return "Usage: " + name + full_usage(*app, plain_usage(*app)) + "\n";
    std::string text;
    for (const std::string& usage : usages_)
      text += (text.empty() ? "Usage: " : "       ") + name + full_usage(*app, usage) + "\n";
    return text;
  }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    if (is_positional) std::replace(name.begin(), name.end(), '_', ' ');
    return name;
  }

 private:
  const std::vector<std::string>& usages_;
};

/// Explains the first argument that is neither an option nor a positional.
std::string mistake_in_extra(const CLI::App& app) {
  const std::string extra = unguarded(app.remaining().front());
  if (!extra.starts_with('-')) return extra + ": one argument too many";
  NearNames near(extra);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) near.offer("--" + name);
  }
  return extra + ": no such option" + near.question();
}

/// Explains an option that has too many or too few values.
std::string mistake_in_values(const CLI::App& app, const std::string& message) {
  const std::string name = message.substr(0, message.find_first_of(": "));
  const CLI::Option* option = app.get_option_no_throw(name);
  // If a flag has a value, CLI11's message gives the flag's name without dashes.
  if (option == nullptr) return (name.size() == 1 ? "-" : "--") + name + ": takes no value";
  if (option->count() > 1) return name + ": is given twice";
  return fmt::format("{}: its {} is missing", name, option->get_option_text());
}

/// Returns the definition of a verb on one line, for packaging/generate.
std::string definition(std::string_view verb, const CLI::App& app, const std::vector<std::string>& usages) {
  Json options = Json::array();
  for (const CLI::Option* option : app.get_options()) {
    std::vector<std::string> excludes;
    for (const CLI::Option* other : option->get_excludes()) excludes.push_back(other->get_name(true, true));
    std::sort(excludes.begin(), excludes.end());
    const std::string words = option->get_type_name();
    std::string name = option->get_name(true, true);
    if (option->get_positional()) std::replace(name.begin(), name.end(), '_', ' ');
    options.push_back({{"name", name},
                       {"value", option->get_option_text() == " " ? "" : option->get_option_text()},
                       {"words", words.find('|') == std::string::npos ? "" : words},
                       {"description", option->get_description()},
                       {"excludes", excludes},
                       {"repeats", option->get_expected_max() > 1 || option->get_multi_option_policy() ==
                                                                         CLI::MultiOptionPolicy::TakeAll}});
  }
  std::string summary = app.get_description();
  summary.erase(summary.find_last_not_of('\n') + 1);
  return json_line({{"verb", verb},
                    {"summary", summary},
                    {"usages", usages.empty() ? std::vector{plain_usage(app)} : usages},
                    {"options", options}}) +
         "\n";
}

}  // namespace

struct CommandLine::Parser {
  Parser(std::string_view its, const std::string& summary)
      : verb(its), app(summary + "\n", fmt::format("stfs {}", its)) {}
  std::string_view verb;
  CLI::App app;
  std::vector<std::string*> ones;
  std::vector<std::vector<std::string>*> lists;
  std::vector<const std::string*> files;  // among `ones`
  std::vector<std::string> usages;
};

CommandLine::CommandLine(std::string_view verb, const std::string& summary, const std::string& examples)
    : parser_(std::make_unique<Parser>(verb, summary)) {
  CLI::App& app = parser_->app;
  app.set_help_flag("-h,--help", "Print this help.");
  app.footer(fmt::format("{}{}The manual page: man stfs-{}", examples, examples.empty() ? "" : "\n\n", verb));
  app.formatter(std::make_shared<HelpFormatter>(parser_->usages));
  app.get_formatter()->column_width(22);
  app.get_formatter()->label("Positionals", "Arguments");
  app.get_formatter()->label("REQUIRED", "");
}

CommandLine::~CommandLine() = default;

const CommandLine::Option& CommandLine::Option::excludes(const std::string& other) const {
  option_->excludes(other);
  return *this;
}

const CommandLine::Option& CommandLine::Option::suggests(const std::vector<std::string>& words) const {
  option_->type_name(fmt::format("{}", fmt::join(words, "|")));
  return *this;
}

CommandLine::Option CommandLine::flag(bool& to, const std::string& name, const std::string& description) {
  // This text keeps CLI11's additions ("Excludes: --json") out of the help.
  return Option(parser_->app.add_flag(name, to, description)->option_text(" ")->disable_flag_override());
}

CommandLine::Option CommandLine::text(std::string& to, const std::string& name, const std::string& value,
                                      const std::string& description) {
  parser_->ones.push_back(&to);
  return Option(parser_->app.add_option(name, to, description)->option_text(value));
}

CommandLine::Option CommandLine::file(std::string& to, const std::string& name, const std::string& value,
                                      const std::string& description) {
  parser_->files.push_back(&to);
  return text(to, name, value, description);
}

CommandLine::Option CommandLine::choice(std::string& to, const std::string& name, const std::string& value,
                                        const std::string& description, std::vector<std::string> words) {
  const Option option = text(to, name, value, description).suggests(words);
  const auto mistake_in = [words = std::move(words)](const std::string& word) -> std::string {
    if (std::find(words.begin(), words.end(), word) != words.end()) return {};
    return fmt::format("{}: must be {}", word, joined(words, " or "));
  };
  option.option_->check(CLI::Validator(mistake_in, ""));
  return option;
}

CommandLine::Option CommandLine::number(std::uint64_t& to, const std::string& name, const std::string& value,
                                        const std::string& description, std::uint64_t least,
                                        std::uint64_t most) {
  // CLI11 2 parses -1 as the largest number, and larger numbers likewise, so parse the text here.
  const auto mistake_in = [least, most](const std::string& word) -> std::string {
    std::uint64_t number = 0;
    const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool is_number = failed == std::errc() && end == word.data() + word.size();
    if (is_number && number >= least && number <= most) return {};
    return fmt::format("{}: must be a whole number from {} to {}", word, least, most);
  };
  CLI::Option* option = parser_->app.add_option(name, to, description);
  return Option(option->option_text(value)->check(CLI::Validator(mistake_in, "")));
}

CommandLine::Option CommandLine::texts(std::vector<std::string>& to, const std::string& name,
                                       const std::string& value, const std::string& description) {
  parser_->lists.push_back(&to);
  return Option(parser_->app.add_option(name, to, description)
                    ->option_text(value)
                    ->expected(1)
                    ->take_all()
                    ->allow_extra_args(false));
}

void CommandLine::positional(std::string& to, const std::string& name, const std::string& description) {
  parser_->ones.push_back(&to);
  parser_->app.add_option(name, to, description)->required()->option_text(" ");
}

void CommandLine::positional_file(std::string& to, const std::string& name, const std::string& description) {
  parser_->files.push_back(&to);
  positional(to, name, description);
}

void CommandLine::positionals(std::vector<std::string>& to, const std::string& name,
                              const std::string& description) {
  parser_->lists.push_back(&to);
  parser_->app.add_option(without_spaces(name), to, description)->option_text(" ");
}

void CommandLine::usage(const std::string& words) {
  parser_->usages.push_back(words);
}

std::optional<int> CommandLine::parse(const Arguments& arguments, Streams& streams) {
  streams.verb = parser_->verb;
  if (arguments == Arguments{"--definitions"}) {
    streams.out << definition(parser_->verb, parser_->app, parser_->usages);
    return kDone;
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  std::transform(reversed.begin(), reversed.end(), reversed.begin(), guarded);
  try {
    parser_->app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    streams.out << parser_->app.help();
    return kDone;
  } catch (const CLI::ExtrasError&) {
    return report_wrong_usage(streams, mistake_in_extra(parser_->app));
  } catch (const CLI::ArgumentMismatch& error) {
    return report_wrong_usage(streams, mistake_in_values(parser_->app, error.what()));
  } catch (const CLI::ParseError& error) {
    return report_wrong_usage(streams, unguarded(error.what()));
  }
  for (std::string* one : parser_->ones) *one = unguarded(*one);
  for (auto* list : parser_->lists) std::transform(list->begin(), list->end(), list->begin(), unguarded);
  for (const std::string* path : parser_->files) {
    if (const auto local = check_local(*path); !local) return report_failure(streams, local.error().message);
  }
  return std::nullopt;
}

bool CommandLine::has(const std::string& name) const {
  return parser_->app.count(name) > 0;
}

}  // namespace stfs::tools
