// The threads that fetch bytes from servers for the whole process. They start with the first job. A child
// process starts its own: threads and connections do not survive fork(2).
#pragma once

#include <cstdint>
#include <functional>

#include "core/remote/http_connection.h"

namespace stfs {

using RemoteJob = std::function<void(HttpConnection& connection)>;

/// Jobs that somebody waits for go before guesses.
enum class Urgency : std::uint8_t { Needed, Guessed };

/// Runs a job on one of the threads, at most 16 at a time. Any thread may call, also with locks that the job
/// takes. The job must not throw.
/// @return false if no thread can be started. The job is then dropped.
bool post_remote_job(RemoteJob job, Urgency urgency);
/// Waits until all jobs have ended, at most for five seconds. Call before fork(2). The end of the process
/// calls it: libcurl's own libraries end then, and no job may use them any more.
void settle_remote_jobs();

}  // namespace stfs
