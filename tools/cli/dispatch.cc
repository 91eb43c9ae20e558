// The top level of stfs: help, version, unknown verbs.
#include "tools/cli/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <ostream>

#include "core/base/version.h"
#include "tools/cli/diagnostic.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"

namespace stfs::tools {
namespace {

const Verb* find(std::span<const Verb> verbs, std::string_view name) {
  const auto found = std::find_if(verbs.begin(), verbs.end(), [&](const Verb& v) { return v.name == name; });
  return found == verbs.end() ? nullptr : &*found;
}

struct OtherWord {
  std::string_view word;
  std::string_view verb;
};

// The names that other tools use for these verbs.
constexpr std::array kOtherWords = {
    OtherWord{"list", "ls"},        OtherWord{"dir", "ls"},       OtherWord{"show", "info"},
    OtherWord{"stat", "info"},      OtherWord{"inspect", "info"}, OtherWord{"delete", "rm"},
    OtherWord{"del", "rm"},         OtherWord{"remove", "rm"},    OtherWord{"cp", "put"},
    OtherWord{"copy", "put"},       OtherWord{"add", "put"},      OtherWord{"write", "put"},
    OtherWord{"rename", "mv"},      OtherWord{"move", "mv"},      OtherWord{"read", "cat"},
    OtherWord{"get", "cat"},        OtherWord{"merge", "commit"}, OtherWord{"convert", "repack"},
    OtherWord{"create", "put"},     OtherWord{"check", "verify"}, OtherWord{"compare", "diff"},
    OtherWord{"unmount", "umount"}, OtherWord{"monitor", "top"},
};

std::string help(std::span<const Verb> verbs) {
  std::string text =
      "stfs works on the tensors of .safetensors archives. It reads only the bytes that it needs.\n"
      "\n"
      "Usage: stfs VERB [OPTIONS] TARGET ...\n"
      "\n"
      "TARGET is an archive, a sharded model (its index, or the directory with it), a directory with one\n"
      "archive, or a path inside a mount of safetensorsfs: its root, or a tensor's file.\n"
      "\n"
      "Verbs:\n";
  for (const Verb& verb : verbs) text += fmt::format("  {:<8} {}\n", verb.name, verb.summary);
  text +=
      "\n"
      "Options:\n"
      "  -h, --help     Print this help. `stfs VERB --help` explains a verb, `man stfs-VERB` in full.\n"
      "  -V, --version  Print the version.\n"
      "\n"
      "In every verb that has them:\n"
      "  -n, --dry-run  Check all and print what would change. Change nothing.\n"
      "  -f, --force    Do what is refused without it: replace a file, write binary data to a terminal.\n"
      "  -q, --brief    Print only the summary.\n"
      "  --json         Print a JSON object.\n"
      "\n"
      "Examples:\n"
      "  stfs sample model.safetensors             write a model for experiments\n"
      "  stfs ls model.safetensors                 list its tensors\n"
      "  stfs ls model.safetensors '*.q_proj.*'    list some of them\n"
      "  stfs info model.safetensors               totals, metadata, alignment\n"
      "  stfs cat model.safetensors lm_head.weight > lm_head.bin\n"
      "  stfs slice model.safetensors 'lm_head.weight[:10]' -o first.npy\n"
      "  stfs verify model.safetensors             checksums, NaNs\n"
      "  stfs diff model.safetensors tuned.safetensors\n"
      "  stfs put model.safetensors lm_head.weight lm_head.bin\n"
      "  stfs apply model.safetensors delta.safetensors\n"
      "  stfs rm model.safetensors 'lm_head.*'\n"
      "  stfs mv model.safetensors 'model.*' 'language_model.*'\n"
      "  stfs commit model.delta.safetensors\n"
      "  stfs compact model.safetensors\n"
      "  stfs repack model.safetensors.index.json joined.safetensors\n"
      "  stfs upload model.safetensors --device cuda:0\n"
      "\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage.\n";
  return text;
}

int unknown(std::span<const Verb> verbs, std::string_view name, Streams& streams) {
  NearNames near(name);
  const bool option = !name.empty() && name.front() == '-';
  if (option) {
    for (const char* known : {"--help", "--version"}) near.offer(known);
  } else {
    const auto known = std::ranges::find(kOtherWords, name, &OtherWord::word);
    if (known != kOtherWords.end() && find(verbs, known->verb) != nullptr) near = NearNames(known->verb);
    for (const Verb& verb : verbs) near.offer(verb.name);
  }
  streams.err << fmt::format("stfs: {}: no such {}{}\nTry 'stfs --help'.\n", printable_name(name),
                             option ? "option" : "verb", near.question());
  return kWrongUsage;
}

int run(const Verb& verb, const Arguments& arguments, Streams& streams) {
  streams.verb = verb.name;
  try {
    return verb.run(arguments, streams);
  } catch (const std::bad_alloc&) {
    return report_failure(streams, "not enough memory");
  } catch (const std::exception& error) {
    return report_failure(streams, error.what());
  }
}

}  // namespace

int dispatch(std::span<const Verb> verbs, const Arguments& arguments, Streams& streams) {
  if (arguments.empty()) {
    streams.err << help(verbs);
    return kWrongUsage;
  }
  const std::string& first = arguments.front();
  Arguments rest(arguments.begin() + 1, arguments.end());
  const bool asks_help = first == "help";
  if (asks_help && rest.size() > 1) {
    streams.err << fmt::format("stfs: help: {}: one argument too many\nTry 'stfs --help'.\n",
                               printable_name(rest[1]));
    return kWrongUsage;
  }
  const auto is_help = [](const std::string& word) { return word == "-h" || word == "--help"; };
  if (is_help(first) || (asks_help && (rest.empty() || is_help(rest.front())))) {
    streams.out << help(verbs);
    return kDone;
  }
  if (first == "-V" || first == "--version") {
    streams.out << version_line("stfs");
    return kDone;
  }
  if (first == "--definitions") {  // for packaging/generate; the help does not show it
    for (const Verb& verb : verbs) {
      if (const int code = run(verb, {first}, streams); code != kDone) return code;
    }
    return kDone;
  }
  const std::string& name = asks_help ? rest.front() : first;
  const Verb* verb = find(verbs, name);
  if (verb == nullptr) return unknown(verbs, name, streams);
  return run(*verb, asks_help ? Arguments{"--help"} : rest, streams);
}

}  // namespace stfs::tools
