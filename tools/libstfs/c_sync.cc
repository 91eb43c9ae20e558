// Weight sync: pulls and publishes versions (tools/sync).
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/printable.h"
#include "tools/compare/model_difference.h"
#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/c_work.h"
#include "tools/libstfs/handles.h"
#include "tools/sync/mounted_model.h"
#include "tools/sync/pull.h"
#include "tools/sync/version_writer.h"
#include "tools/target/source_readers.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

constexpr std::chrono::seconds kDefaultWait{10};

std::int32_t kind_of(sync::PullEvent::Kind kind) {
  switch (kind) {
    case sync::PullEvent::Kind::Applied: return STFS_PULL_APPLIED;
    case sync::PullEvent::Kind::Seeded: return STFS_PULL_SEEDED;
    case sync::PullEvent::Kind::Unfinished: return STFS_PULL_UNFINISHED;
    case sync::PullEvent::Kind::Withdrawn: return STFS_PULL_WITHDRAWN;
  }
  return STFS_PULL_APPLIED;
}

/// Calls on_event of the caller. ECANCELED: the caller has stopped the pull.
Result<void> tell_event(const stfs_pull_options& given, const sync::PullEvent& event) {
  if (given.on_event == nullptr) return {};
  std::vector<stfs_text> changed;
  for (const std::string& name : event.outcome.changed) changed.push_back({name.data(), name.size()});
  stfs_pull_event told{};
  told.struct_bytes = sizeof told;
  told.kind = kind_of(event.kind);
  told.version = {event.version.data(), event.version.size()};
  const std::string why = printable(event.why);
  told.why = {why.data(), why.size()};
  told.changed = changed.data();
  told.changed_count = changed.size();
  told.changed_bytes = event.outcome.changed_bytes;
  if (given.on_event(given.context, &told) == 0) return {};
  return fail(ErrorCode::System, ECANCELED, "the pull was cancelled behind version " + event.version);
}

/// Returns the failure of a pull or a publication. Each failure after the caller's stop becomes ECANCELED.
tl::unexpected<Error> failure_of(Error error, const Work& work) {
  if (work.is_stopped()) {
    error.code = ErrorCode::System;
    error.errno_value = ECANCELED;
  }
  return tl::unexpected(std::move(error));
}

sync::PullOptions pull_options(const stfs_pull_options& given, Work& work) {
  sync::PullOptions options;
  options.apply.work = &work;
  options.apply.commit.durability = given.is_process_durable != 0 ? Durability::Process : Durability::Power;
  options.apply.commit.lock_patience =
      given.wait_s == 0 ? kDefaultWait : std::chrono::seconds(std::max(given.wait_s, 0));
  options.apply.threads = given.threads;
  if (given.has_target != 0) options.target = given.target;
  options.on_event = [given](const sync::PullEvent& event) { return tell_event(given, event); };
  return options;
}

/// @param after  the path of the new model, in the form that was opened.
Result<sync::PublishOptions> publish_options(const stfs_publish_options& given,
                                             const std::filesystem::path& after) {
  sync::PublishOptions options;
  options.encoding =
      given.encoding == STFS_OVERWRITE ? sync::DiffEncoding::Overwrite : sync::DiffEncoding::Xor;
  if (given.encoding != STFS_XOR && given.encoding != STFS_OVERWRITE) {
    return refuse("stfs_sync_publish: the encoding is neither STFS_XOR nor STFS_OVERWRITE");
  }
  if (given.checksum != nullptr) {
    auto format = sync::parse_checksum_format(given.checksum);
    RETURN_IF_ERROR(format);
    options.checksum_format = *format;
  }
  if (given.has_base == 0 && given.version == 0) {
    return refuse("stfs_sync_publish: version 0 changes no other version: publish a checkpoint");
  }
  options.version = given.version;
  options.base_version = given.has_base != 0 ? given.base : given.version - 1;
  options.threads = given.threads != 0 ? given.threads : usable_processors();
  if (sync::is_mounted_model(after)) options.mount = after;
  if (given.has_since != 0 && !options.mount) {
    return refuse("stfs_sync_publish: since: " + after.string() +
                  " is no mount, and only mounts have generations");
  }
  if (given.has_since != 0) options.since = given.since;
  return options;
}

}  // namespace

int stfs_sync_pull(const char* model, const char* published, const stfs_pull_options* options,
                   std::int64_t* version, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto given = options == nullptr ? Result<stfs_pull_options>() : take_struct(options);
    RETURN_IF_ERROR(given);
    Work work(watch_of(given->progress, given->context));
    const auto reached = sync::pull(model, published, pull_options(*given, work));
    if (!reached) return failure_of(reached.error(), work);
    if (version != nullptr) *version = *reached ? static_cast<std::int64_t>((*reached)->number) : -1;
    return {};
  });
}

int stfs_sync_publish(const stfs_model* before, const stfs_model* after, const char* published,
                      const stfs_publish_options* options, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto given = take_struct(options);
    RETURN_IF_ERROR(given);
    auto chosen = publish_options(*given, after->shared->named);
    RETURN_IF_ERROR(chosen);
    const auto opened_before = before->opened();
    RETURN_IF_ERROR(opened_before);
    const auto opened_after = after->opened();
    RETURN_IF_ERROR(opened_after);
    if ((*opened_before)->only || (*opened_after)->only) {
      return refuse("stfs_sync_publish: a model is a tensor's file");
    }
    for (const auto& [named, opened] :
         {std::pair(before->shared->named, *opened_before), std::pair(after->shared->named, *opened_after)}) {
      RETURN_IF_ERROR(tools::check_trusted_links(named.native(), *opened->model));
    }
    const tools::ModelPair models = {*(*opened_before)->model, *(*opened_after)->model};
    Work work(watch_of(given->progress, given->context));
    chosen->work = &work;
    const auto written = sync::publish_version(models, published, *chosen);
    if (!written) return failure_of(written.error(), work);
    if (given->generation != nullptr) *given->generation = written->generation.value_or(0);
    return {};
  });
}
