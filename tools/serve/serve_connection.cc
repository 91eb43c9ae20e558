// Handles a peer's requests and sends it news.
#include "tools/serve/serve_connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <fstream>

namespace stfs::serve {
namespace {

std::string program_of(pid_t pid) {
  std::string name;
  if (pid > 0) std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  return name;
}

}  // namespace

ServeConnection::ServeConnection(ServeSocket::Connection connection, std::optional<Error> refusal,
                                 Clock::time_point greet_until)
    : socket_(std::move(connection.socket)),
      peer_(connection.peer),
      program_(program_of(connection.peer.pid)),
      refusal_(std::move(refusal)),
      greet_until_(greet_until) {}

short ServeConnection::events() const {
  return stage_ == Stage::Reporting ? POLLIN | POLLOUT : POLLIN;
}

void ServeConnection::attend(const ServeState& state, Clock::time_point now) {
  take_request(state);
  const bool is_brief = stage_ == Stage::Greeting || stage_ == Stage::Reporting;
  if (is_brief && now >= greet_until_) stage_ = Stage::Over;
  if (stage_ == Stage::Reporting) send_report();
  if ((stage_ == Stage::Waiting || stage_ == Stage::Renewing) && state.newest) grant(state.newest);
  if (stage_ == Stage::Leased) tell_news(state);
}

void ServeConnection::take_request(const ServeState& state) {
  auto received = receive_message(socket_.get(), Incoming::NoDescriptors);
  if (!received) {
    if (received.error().errno_value == EAGAIN) return;
    refuse(received.error());
  } else if (!*received) {
    stage_ = Stage::Over;
  } else if (refusal_) {
    refuse(*refusal_);
  } else {
    answer((*received)->message.kind, state);
  }
}

void ServeConnection::answer(ServeKind kind, const ServeState& state) {
  if (stage_ == Stage::Greeting && kind == ServeKind::Attach) {
    stage_ = Stage::Waiting;
    // A reason from before the connection is no news for the peer.
    told_stuck_number_ = state.stuck_number;
  } else if (stage_ == Stage::Greeting && kind == ServeKind::Query) {
    begin_report(state);
  } else if (stage_ == Stage::Leased && kind == ServeKind::Renew) {
    stage_ = Stage::Renewing;
  } else {
    refuse(
        {ErrorCode::InvalidArgument, EPROTO,
         "a connection must begin with Attach or Query; after its Grant it may send Renew, and wait for the "
         "answer"});
  }
}

void ServeConnection::begin_report(const ServeState& state) {
  report_ = state.report();
  if (report_.size() > kMaxServeReportBytes) {
    refuse({ErrorCode::InvalidArgument, EMSGSIZE, "the report is too long"});
  } else {
    stage_ = Stage::Reporting;
  }
}

void ServeConnection::send_report() {
  while (reported_bytes_ < report_.size()) {
    ServeMessage message{ServeKind::Report};
    message.document_bytes = report_.size();
    message.text = report_.substr(reported_bytes_, kMaxServeTextBytes);
    if (!send(message)) return;
    reported_bytes_ += message.text.size();
  }
  stage_ = Stage::Over;
}

void ServeConnection::refuse(const Error& why) {
  send(message_of(ServeKind::Refusal, why));
  stage_ = Stage::Over;
}

void ServeConnection::give_up(const Error& why) {
  if (stage_ == Stage::Waiting) refuse(why);
}

void ServeConnection::grant(const std::shared_ptr<const ServedModel>& model) {
  ServeMessage message{ServeKind::Grant};
  message.generation = model->generation();
  message.document_bytes = model->manifest_bytes();
  const bool is_sent =
      leased_ ? send(message, model->descriptors_beyond(*leased_)) : send(message, model->descriptors());
  if (!is_sent) return;
  stage_ = Stage::Leased;
  leased_ = model;
  told_generation_ = model->generation();
}

void ServeConnection::tell_news(const ServeState& state) {
  if (state.newest->generation() > told_generation_) {
    ServeMessage message{ServeKind::Newer};
    message.generation = state.newest->generation();
    if (send(message)) told_generation_ = message.generation;
  }
  if (state.stuck_number > told_stuck_number_ && send(message_of(ServeKind::Stuck, state.why_stuck))) {
    told_stuck_number_ = state.stuck_number;
  }
}

bool ServeConnection::send(const ServeMessage& message, std::span<const int> descriptors) {
  const auto sent = send_message(socket_.get(), message, descriptors);
  if (!sent && sent.error().errno_value != EAGAIN) stage_ = Stage::Over;
  return sent.has_value();
}

}  // namespace stfs::serve
