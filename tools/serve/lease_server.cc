// The loop over all peers, and the report.
#include "tools/serve/lease_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "tools/text/json_document.h"

namespace stfs::serve {
namespace {

using tools::Json;
using Clock = ServeConnection::Clock;

// A refused peer gets a Refusal and uses a descriptor until then.
constexpr std::size_t kMaxRefused = 16;
constexpr std::chrono::milliseconds kAcceptPause{100};

std::int64_t seconds_since(Clock::time_point then) {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - then).count();
}

}  // namespace

LeaseServer::LeaseServer(ServeSocket socket, LeaseServerOptions options)
    : socket_(std::move(socket)), options_(std::move(options)) {
  state_.report = [this] { return report(); };
}

Result<void> LeaseServer::serve_once(std::chrono::milliseconds patience, int wake) {
  const bool has_room = connections_.size() < options_.max_connections + kMaxRefused;
  const bool accepts = has_room && Clock::now() >= accept_again_;
  std::vector<pollfd> polled = {{accepts ? socket_.descriptor() : -1, POLLIN, 0}, {wake, POLLIN, 0}};
  for (const auto& connection : connections_)
    polled.push_back({connection->descriptor(), connection->events(), 0});
  if (::poll(polled.data(), polled.size(), static_cast<int>(patience.count())) < 0 && errno != EINTR) {
    return fail_system(errno, path().native(), "poll");
  }
  if ((polled.front().revents & POLLIN) != 0) welcome();
  attend_all();
  return {};
}

/// Accepts all waiting peers in one round, so that many peers are served as fast as one. Peers that have
/// already disconnected take no place from others: peers with a place are attended first, in this round or in
/// the round that accepted them.
void LeaseServer::welcome() {
  if (is_full()) attend_all();
  const bool was_full = is_full();
  while (connections_.size() < options_.max_connections + kMaxRefused) {
    if (is_full() && !was_full) return;
    auto accepted = socket_.accept();
    if (!accepted) {
      accept_again_ = Clock::now() + kAcceptPause;
      return;
    }
    if (!*accepted) return;
    std::optional<Error> refusal;
    if (!is_welcome((*accepted)->peer)) {
      refusal = Error{ErrorCode::System, EPERM, path().native() + ": serves another user"};
    } else if (is_full()) {
      refusal = Error{ErrorCode::Busy, EBUSY,
                      fmt::format("{}: {} connections are already open, the maximum", path().native(),
                                  options_.max_connections)};
    }
    connections_.push_back(std::make_unique<ServeConnection>(std::move(**accepted), std::move(refusal),
                                                             Clock::now() + options_.greeting_patience));
  }
}

void LeaseServer::attend_all() {
  const auto now = Clock::now();
  for (const auto& connection : connections_) connection->attend(state_, now);
  // Erase only after all have been attended, because a report describes all connections. A generation may be
  // freed with its last lease.
  std::erase_if(connections_, [](const auto& connection) { return connection->is_over(); });
}

void LeaseServer::publish(std::shared_ptr<const ServedModel> model) {
  std::erase_if(generations_, [](const auto& generation) { return generation.expired(); });
  generations_.push_back(model);
  state_.newest = std::move(model);
  state_.why_stuck = {};
  attend_all();
}

bool LeaseServer::tell_stuck(const Error& why) {
  if (state_.why_stuck.message == why.message) return false;
  state_.why_stuck = why;
  ++state_.stuck_number;
  attend_all();
  return true;
}

void LeaseServer::give_up(const Error& why) {
  for (const auto& connection : connections_) connection->give_up(why);
  attend_all();
}

std::size_t LeaseServer::lease_count() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      connections_, [](const auto& connection) { return connection->leased() != nullptr; }));
}

std::vector<std::shared_ptr<const ServedModel>> LeaseServer::living_generations() const {
  std::vector<std::shared_ptr<const ServedModel>> living;
  for (const auto& generation : generations_) {
    if (auto model = generation.lock()) living.push_back(std::move(model));
  }
  return living;
}

std::string LeaseServer::report() const {
  Json document = tools::json_document();
  document["socket"] = tools::json_path(path());
  document["pid"] = ::getpid();
  document["seconds"] = seconds_since(started_);
  document["sources"] = options_.sources;
  document["generation"] = state_.newest ? state_.newest->generation() : 0;
  document["stuck"] = state_.why_stuck.message.empty() ? Json() : Json(state_.why_stuck.message);
  std::map<std::uint64_t, std::uint64_t> sizes;  // of all arenas, by their numbers: generations share arenas
  Json generations = Json::array();
  for (const auto& model : living_generations()) {
    const auto holds_it = [&](const auto& connection) { return connection->leased() == model; };
    Json arenas = Json::array();
    for (const ServedArena& it : model->arenas()) {
      const bool is_own = it.made_in == model->generation();
      arenas.push_back({{"device", it.arena->device().name()},
                        {"size_bytes", it.arena->size_bytes()},
                        {"generation", it.made_in},
                        {"shared", !is_own}});
      sizes[it.number] = it.arena->size_bytes();
    }
    generations.push_back({{"generation", model->generation()},
                           {"version", model->version().empty() ? Json() : Json(model->version())},
                           {"tensors", model->tensor_count()},
                           {"size_bytes", model->size_bytes()},
                           {"own_bytes", model->own_bytes()},
                           {"shared_bytes", model->size_bytes() - model->own_bytes()},
                           {"arenas", std::move(arenas)},
                           {"leases", std::ranges::count_if(connections_, holds_it)}});
  }
  std::uint64_t size_bytes = 0;
  for (const auto& entry : sizes) size_bytes += entry.second;
  document["size_bytes"] = size_bytes;
  document["generations"] = std::move(generations);
  document["leases"] = Json::array();
  for (const auto& connection : connections_) {
    if (connection->leased() == nullptr) continue;
    document["leases"].push_back({{"pid", connection->peer().pid},
                                  {"uid", connection->peer().uid},
                                  {"program", connection->program()},
                                  {"generation", connection->leased()->generation()},
                                  {"seconds", seconds_since(connection->since())}});
  }
  return tools::json_line(document);
}

}  // namespace stfs::serve
