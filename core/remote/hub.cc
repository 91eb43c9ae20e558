#include "core/remote/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "core/base/cancellation.h"
#include "core/base/printable.h"
#include "core/format/json_cursor.h"
#include "core/format/json_string.h"
#include "core/format/json_syntax.h"
#include "core/remote/escapes.h"
#include "core/remote/http_answer.h"
#include "core/remote/hub_cache.h"
#include "core/remote/kept_hub_list.h"
#include "core/remote/model_choice.h"
#include "core/remote/remote_notes.h"
#include "core/remote/retries.h"
#include "core/remote/settings.h"

namespace stfs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScheme = "hf://";
constexpr std::size_t kMostListBytes = 16 << 20;  // 40,000 files
constexpr std::size_t kMostTokenBytes = 4096;

// --- names ------------------------------------------------------------------------------------------------

/// Returns the address of the Hub, without a slash at the end.
/// @return EINVAL: HF_ENDPOINT is no address, or has a password, which would be in the table of mounts.
Result<std::string> hub_endpoint() {
  std::string endpoint = variable("HF_ENDPOINT");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (endpoint.empty()) return "https://huggingface.co";
  const bool is_web = endpoint.starts_with("https://") || endpoint.starts_with("http://");
  if (is_web && endpoint.find_first_of("@?# ") == endpoint.npos) return endpoint;
  return fail(ErrorCode::InvalidArgument, EINVAL,
              "HF_ENDPOINT: is no address of a Hub: write https://HOST, without a password");
}

bool is_hub_word(std::string_view text) {
  return !text.empty() && text != "." && text != ".." &&
         std::ranges::all_of(text, [](unsigned char c) { return is_unreserved(c) && c != '~'; });
}

/// A path in a model: no part of it is empty or leads elsewhere, and no character disturbs a terminal, which
/// may show the table of mounts.
bool is_path_in_model(std::string_view path) {
  if (printable(path) != path) return false;
  while (true) {
    const std::string_view part = path.substr(0, path.find('/'));
    if (part.empty() || part == "." || part == ".." || part.find('\0') != part.npos) return false;
    if (part.size() == path.size()) return true;
    path.remove_prefix(part.size() + 1);
  }
}

/// Takes the revision off the beginning of REVISION/FILE. A revision of a pull request has slashes.
std::string_view take_revision(std::string_view& rest) {
  std::size_t end = rest.find('/');
  if (rest.starts_with("refs/")) {  // refs/pr/1
    for (int slashes = 1; slashes < 3 && end != rest.npos; ++slashes) end = rest.find('/', end + 1);
  }
  const std::string_view revision = rest.substr(0, end);
  rest.remove_prefix(std::min(rest.size(), revision.size() + 1));
  return revision;
}

tl::unexpected<Error> no_hub_name(std::string_view address) {
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: names no model of the Hub: write hf://ORG/MODEL, hf://ORG/MODEL@REVISION or "
                          "hf://ORG/MODEL/FILE",
                          address));
}

/// Takes ORG/MODEL off the beginning. Empty if there is none.
std::string take_model(std::string_view& rest, std::string_view ends) {
  const std::size_t slash = rest.find('/');
  if (slash == rest.npos) return {};
  const std::size_t end = std::min(rest.find_first_of(ends, slash + 1), rest.size());
  const std::string_view org = rest.substr(0, slash);
  const std::string_view name = rest.substr(slash + 1, end - slash - 1);
  if (!is_hub_word(org) || !is_hub_word(name)) return {};
  std::string model(rest.substr(0, end));
  rest.remove_prefix(end);
  return model;
}

// --- the token --------------------------------------------------------------------------------------------

/// Returns a small file's text. Empty if it can't be read.
std::string small_text(const fs::path& path) {
  const auto file = small_file(path, kMostTokenBytes);
  return file ? file->text : std::string();
}

/// Returns the token that the Hub's own library would send. Empty: none.
std::string hub_token() {
  if (is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return {};
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string token = trimmed_text(variable(name)); !token.empty()) return token;
  }
  const std::string path = variable("HF_TOKEN_PATH");
  return trimmed_text(small_text(path.empty() ? hub_home() / "token" : fs::path(path)));
}

Result<std::string> authorization_for(const std::string& endpoint) {
  const std::string token = hub_token();
  if (token.empty()) return std::string();
  if (!std::ranges::all_of(token, [](unsigned char c) { return std::isgraph(c) != 0; }))
    return fail(ErrorCode::InvalidArgument, EINVAL, "the token of the Hub has characters that none has");
  if (!endpoint.starts_with("https://") && !is_loopback(endpoint)) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("HF_ENDPOINT={}: a token is sent over https only: name an address of https, or "
                            "set HF_HUB_DISABLE_IMPLICIT_TOKEN=1",
                            endpoint));
  }
  return "Bearer " + token;
}

// --- the list ---------------------------------------------------------------------------------------------

Error refusal_of(const HttpAnswer& answer, const HubName& name, const std::string& endpoint, bool has_token) {
  const std::string shown = fmt::format("hf://{}", name.model);
  const std::string login = has_token ? "the token of this user may not read it"
                                      : "a private model needs a token (HF_TOKEN, or `hf auth login`)";
  const std::string why = answer.error_message.empty() ? "" : ": " + answer.error_message.substr(0, 200);
  if (answer.error_code == "GatedRepo") {
    return {ErrorCode::System, EACCES,
            fmt::format("{}: its authors ask for consent to their terms: {}/{}{}", shown, endpoint,
                        name.model, has_token ? "" : "; then " + login)};
  }
  if (answer.status == 401 && has_token && answer.error_code.empty())
    return {ErrorCode::System, EACCES,
            fmt::format("{}: the Hub refuses the token of this user{}", shown, why)};
  if (answer.error_code == "RevisionNotFound")
    return {ErrorCode::NotFound, ENOENT, fmt::format("{}: has no revision {}", shown, name.revision)};
  if (answer.error_code == "RepoNotFound" || answer.status == 401 || answer.status == 404)
    return {ErrorCode::NotFound, ENOENT,
            fmt::format("{}: the Hub has no such model, or it is private: {}", shown, login)};
  if (answer.status == 403)
    return {ErrorCode::System, EACCES, fmt::format("{}: the Hub refuses it{}: {}", shown, why, login)};
  return {ErrorCode::System, EIO, fmt::format("{}: the server answers with status {}", shown, answer.status)};
}

/// Requests a text from the Hub.
/// @param text  gets it. Its size is the most that is taken.
/// @return the answer, with a status that is final.
Result<HttpAnswer> request_text(std::string url, const std::string& authorization,
                                std::vector<std::byte>& text, HttpConnection& connection) {
  const RetryRules rules;
  const Retries::IsEnding is_ending = [] { return Cancellation::is_end(); };
  Retries retries(rules, is_ending);
  const std::string first = url;
  for (unsigned redirects = 0;;) {
    HttpAnswer answer = connection.get(
        {.url = url,
         .headers =
             has_same_origin(url, first) ? authorization_header(authorization) : std::vector<std::string>()},
        text,
        {.wants_body = [](const HttpAnswer& head) { return head.status == 200; }, .is_ending = is_ending});
    if (is_redirect(answer.status)) {
      if (++redirects > kMostRedirects) return fail(ErrorCode::System, EIO, "the Hub redirects without end");
      auto next = redirected(url, answer.location);
      RETURN_IF_ERROR(next);
      url = std::move(*next);
      continue;
    }
    if (answer.failure && answer.failure->errno_value == EBADMSG) {
      return fail(ErrorCode::System, EFBIG,
                  fmt::format("the list of its files has more than {} bytes", kMostListBytes));
    }
    if (answer.failure && is_final(*answer.failure)) return tl::unexpected(std::move(*answer.failure));
    const bool is_answered = answer.status != 0 && !(answer.status == 200 && answer.failure);
    if (is_answered && !is_passing(answer.status)) return answer;
    const std::string status = fmt::format("the Hub answers with status {}", answer.status);
    Error why = answer.failure.value_or(Error{ErrorCode::System, EIO, status});
    RETURN_IF_ERROR(retries.wait(std::move(why), asked_pause(answer)));
  }
}

/// Takes a string; another value gives an empty text.
std::string take_text(JsonCursor& cursor) {
  if (cursor.peek() != '"') {
    cursor.take_value();
    return {};
  }
  std::string decoded;
  return std::string(cursor.take_string(decoded));
}

struct ListedFile {
  std::string path;
  HubModel::File file;
};

/// Takes an element of "siblings".
Result<ListedFile> take_sibling(JsonCursor& cursor) {
  ListedFile listed;
  std::string blob;
  const auto take_number = [&] { listed.file.size_bytes = cursor.take_whole_number().value_or(0); };
  RETURN_IF_ERROR(cursor.for_each_member([&](std::string_view key, std::size_t) -> Result<void> {
    if (key == "rfilename") {
      listed.path = take_text(cursor);
    } else if (key == "blobId") {
      blob = take_text(cursor);
    } else if (key == "size") {
      take_number();
    } else if (key == "lfs" && cursor.peek() == '{') {
      return cursor.for_each_member([&](std::string_view inner, std::size_t) -> Result<void> {
        if (inner == "sha256") {
          listed.file.digest = take_text(cursor);
        } else {
          cursor.take_value();
        }
        return {};
      });
    } else {
      cursor.take_value();
    }
    return {};
  }));
  if (listed.file.digest.empty()) listed.file.digest = std::move(blob);
  if (!is_digest(listed.file.digest)) {
    return fail(ErrorCode::System, EIO,
                fmt::format("the Hub lists {} without a digest", in_quotes(listed.path)));
  }
  return listed;
}

/// Takes the array "siblings".
Result<void> take_siblings(JsonCursor& cursor, HubModel& model) {
  return cursor.for_each_element([&]() -> Result<void> {
    if (cursor.peek() != '{') {
      cursor.take_value();
      return {};
    }
    auto listed = take_sibling(cursor);
    RETURN_IF_ERROR(listed);
    if (is_path_in_model(listed->path)) model.files[std::move(listed->path)] = std::move(listed->file);
    return {};
  });
}

/// Reads the Hub's answer: {"sha": COMMIT, "siblings": [{"rfilename": PATH, "size": N, ...}]}.
/// @param revision  of the question. If this is a commit, the answer must name the same one.
Result<void> read_list(std::string_view json, std::string_view revision, HubModel& model) {
  constexpr unsigned kMostDepth = 64;
  JsonCursor cursor(json);
  if (find_json_error(json, kMostDepth) || cursor.peek() != '{')
    return fail(ErrorCode::System, EIO, "the Hub's answer is no JSON object");
  const auto take_member = [&](std::string_view key, std::size_t) -> Result<void> {
    if (key == "siblings" && cursor.peek() == '[') return take_siblings(cursor, model);
    if (key == "sha") {
      model.commit = take_text(cursor);
    } else if (key == "id") {
      // A model that was renamed has another name now.
      if (std::string now = take_text(cursor); !now.empty()) model.model = std::move(now);
    } else {
      cursor.take_value();
    }
    return {};
  };
  RETURN_IF_ERROR(cursor.for_each_member(take_member));
  std::string_view name = model.model;
  if (is_commit(revision) && model.commit != revision)
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("asked for commit {}, the Hub answers with {}", revision, model.commit));
  if (!is_commit(model.commit) || take_model(name, "/").empty() || !name.empty())
    return fail(ErrorCode::System, EIO, "the Hub's answer names no commit of the model");
  return {};
}

/// Asks the Hub for the list of a model. If the Hub can't be reached, the list of the last time counts.
/// @param question  the address of the list.
Result<void> ask_for_list(const std::string& question, const HubName& name, const std::string& endpoint,
                          HubModel& model, HttpConnection& connection) {
  const std::string shown = "hf://" + name.model;
  std::vector<std::byte> text(kMostListBytes);
  auto answer = request_text(question, model.authorization, text, connection);
  if (!answer) {
    const bool is_unreachable = answer.error().errno_value == ENETUNREACH;
    const auto kept = is_unreachable ? find_hub_list(question) : std::nullopt;
    if (!kept || !read_list(kept->json, name.revision, model))
      return tl::unexpected(std::move(answer).error().within(shown));
    model.is_kept = true;
    add_remote_note(fmt::format("{}@{}: the Hub can't be reached: shows commit {}, as it was {}", shown,
                                name.revision, model.commit, kept->written_at));
    return {};
  }
  if (answer->status != 200)
    return tl::unexpected(refusal_of(*answer, name, endpoint, !model.authorization.empty()));
  const std::string_view json(reinterpret_cast<const char*>(text.data()),
                              static_cast<std::size_t>(answer->received_bytes));
  if (auto read = read_list(json, name.revision, model); !read)
    return tl::unexpected(std::move(read).error().within(shown));
  keep_hub_list(question, json);
  return {};
}

}  // namespace

Result<std::optional<HubName>> hub_name_of(const std::string& address) {
  HubName name;
  std::string_view rest = address;
  if (rest.starts_with(kScheme)) {
    rest.remove_prefix(kScheme.size());
    if (rest.starts_with("datasets/") || rest.starts_with("spaces/")) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("{}: only models of the Hub are read, no datasets and spaces", address));
    }
    name.model = take_model(rest, "@/");
    if (name.model.empty()) return no_hub_name(address);
    if (rest.starts_with('@')) {
      rest.remove_prefix(1);
      name.revision = unescaped_part(take_revision(rest));
    } else {
      rest.remove_prefix(rest.empty() ? 0 : 1);
    }
    name.file = rest;
  } else {
    const auto endpoint = hub_endpoint();
    if (!endpoint || !rest.starts_with(*endpoint + "/")) return std::optional<HubName>();
    rest.remove_prefix(endpoint->size() + 1);
    rest = rest.substr(0, rest.find_first_of("?#"));
    name.model = take_model(rest, "/");
    const bool is_file = rest.starts_with("/resolve/") || rest.starts_with("/blob/");
    if (name.model.empty() || !is_file) return std::optional<HubName>();
    rest.remove_prefix(rest.find('/', 1) + 1);
    name.revision = unescaped_part(take_revision(rest));
    name.file = unescaped_part(rest);
    if (name.file.empty()) return std::optional<HubName>();
  }
  while (name.file.ends_with('/')) name.file.pop_back();
  if (!is_path_in_model(name.revision) || (!name.file.empty() && !is_path_in_model(name.file)))
    return no_hub_name(address);
  return std::optional(std::move(name));
}

RemoteAddress HubModel::address_of(std::string_view file) const {
  const File& listed = files.find(file)->second;
  return {.url = root + escaped_part(file, "/"),
          .authorization = authorization,
          .listed = RemoteAddress::Listed{endpoint, listed.digest, listed.size_bytes},
          .is_kept = is_kept,
          .is_offline = is_offline};
}

Result<std::shared_ptr<const HubModel>> find_hub_model(const HubName& name, HttpConnection& connection) {
  const auto known = hub_endpoint();
  RETURN_IF_ERROR(known);
  const std::string& endpoint = *known;
  HubModel model{.model = name.model,
                 .commit = {},
                 .endpoint = endpoint,
                 .root = fmt::format("{}/{}/resolve/", endpoint, name.model),
                 .authorization = {}};
  const std::string question = fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint, name.model,
                                           escaped_part(name.revision));
  auto authorization = authorization_for(endpoint);
  RETURN_IF_ERROR(authorization);
  model.authorization = std::move(*authorization);
  if (is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE")) {
    // The kept list has all files. The Hugging Face cache has the files that its users have asked for.
    model.is_offline = true;
    const auto kept = find_hub_list(question);
    HubModel listed = model;
    if (kept && read_list(kept->json, name.revision, listed)) {
      model = std::move(listed);
      model.is_kept = true;
    } else {
      RETURN_IF_ERROR(find_in_hub_snapshots(name, model));
    }
  } else {
    RETURN_IF_ERROR(check_url(endpoint));
    RETURN_IF_ERROR(ask_for_list(question, name, endpoint, model, connection));
  }
  model.root = fmt::format("{}/{}/resolve/{}/", endpoint, model.model, model.commit);
  return std::make_shared<const HubModel>(std::move(model));
}

Result<std::string> choose_hub_file(const HubModel& model, const HubName& name) {
  if (model.files.contains(name.file)) return name.file;
  const std::string folder = name.file.empty() ? "" : name.file + "/";
  std::vector<std::string> paths;
  for (const auto& [path, file] : model.files) paths.push_back(path);
  const std::string shown = fmt::format("hf://{}@{}", model.model, model.commit.substr(0, 8));
  const auto is_there = [&](const std::string& path) { return path.starts_with(folder); };
  if (!folder.empty() && std::ranges::none_of(paths, is_there))
    return fail(ErrorCode::NotFound, ENOENT, fmt::format("{}: has no file {}", shown, name.file));
  auto [chosen, choices] = choose_model_file(folder, paths);
  if (!chosen.empty()) return chosen;
  if (choices.empty() && folder.empty())  // in its directories, as models of diffusers have them
    std::ranges::copy_if(paths, std::back_inserter(choices), is_model_file);
  if (!choices.empty())
    return tl::unexpected(several_archives(shown, fmt::format("hf://{}/FILE", model.model), choices));
  return fail(ErrorCode::NotFound, ENOENT,
              fmt::format("{}: has no .safetensors archive{}", shown, folder.empty() ? "" : " in " + folder));
}

}  // namespace stfs
