// The program safetensorsfs SOURCE MOUNTPOINT, and the steps of its start.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/absolute_path.h"
#include "core/base/hidden_arguments.h"
#include "core/base/program_descriptors.h"
#include "core/remote/remote_storage.h"
#include "core/storage/bus_guard.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/trusted_links.h"
#include "fs/base/log.h"
#include "fs/model/mount_root.h"
#include "fs/model/mounted_model.h"
#include "fs/mount/ending_signals.h"
#include "fs/mount/guard.h"
#include "fs/mount/hidden_source.h"
#include "fs/mount/mount_point.h"
#include "fs/mount/options.h"
#include "fs/mount/session.h"
#include "fs/mount/source.h"

namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

int failed(const stfs::Error& error) {
  stfs::log::error("{}", error.message);
  return kFailed;
}

int print(const stfs::CommandLine& line) {
  const bool is_wrong = line.outcome == stfs::CommandLine::Outcome::WrongUsage;
  const bool is_put = std::fputs(line.text.c_str(), is_wrong ? stderr : stdout) >= 0;
  if (is_wrong) return kWrongUsage;
  // If the text is longer than the buffer, fputs(3) has written it, and nothing is left to flush.
  if (is_put && std::fflush(stdout) == 0) return kDone;
  return failed(stfs::fail_system(errno, "standard output", "write").value());
}

/// True if the user has named a file in another user's FUSE file system, or has a link there.
bool names_foreign_mount(const std::vector<std::filesystem::path>& named, const stfs::Source& source) {
  // Links of another user never lead there.
  const auto is_foreign = [](const std::filesystem::path& path) {
    if (stfs::is_url(path)) return false;
    const auto found = stfs::follow_all_links(path);
    return found && stfs::is_in_foreign_mount(found->fd.get());
  };
  // The log file may not exist yet. The slash makes the look-up enter the top of such a mount.
  return std::ranges::any_of(stfs::files_of(source), is_foreign) ||
         std::ranges::any_of(named, [&](const std::filesystem::path& path) {
           return is_foreign(path) || is_foreign(path / "") || is_foreign(path.parent_path() / "");
         });
}

/// Makes the mount root of the models. Each member can reopen its model after the model was replaced.
std::unique_ptr<stfs::MountRoot> mount_root_of(stfs::Source& source, const stfs::MountedModelOptions& options,
                                               stfs::SourceOptions how) {
  // If no model is writable, the kernel learns at the mount that the whole mount is read-only. Models that
  // are reopened later must then be read-only too.
  const auto may_write = [](const auto& member) {
    return member.model && member.model->access() == stfs::Access::ReadWrite;
  };
  how.is_read_only = how.is_read_only || std::ranges::none_of(source.members, may_write);
  // Each change and each second cause a retry, and other models wait for its end.
  const bool is_lone = !source.is_directory_of_models();
  const std::chrono::milliseconds patience(is_lone ? 10'000 : 100);
  const stfs::MountRoot::OpenerOf opener_of = [options, how, patience](const std::filesystem::path& path) {
    return
        [path, options, how, patience](
            const stfs::MountRoot::Heritage& heritage) -> stfs::Result<std::unique_ptr<stfs::MountedModel>> {
          stfs::SourceOptions now = how;
          now.is_ending = heritage.is_ending;
          now.wait_until = stfs::deadline_in(patience);
          auto model = stfs::open_model(path, now);
          if (!model) return stfs::pass_on(std::move(model));
          stfs::MountedModelOptions its = options;
          its.activity = heritage.activity;
          its.least_generation = heritage.least_generation;
          return std::make_unique<stfs::MountedModel>(std::move(*model), its);
        };
  };
  std::vector<stfs::MountRoot::Member> members;
  for (stfs::Source::Member& opened : source.members) {
    stfs::MountRoot::Member member{.name = std::move(opened.name), .path = opened.path};
    if (opened.model) member.mounted = std::make_unique<stfs::MountedModel>(std::move(opened.model), options);
    member.why_absent = std::move(opened.why_absent);
    member.open = opener_of(opened.path);
    members.push_back(std::move(member));
  }
  if (is_lone) return std::make_unique<stfs::MountRoot>(std::move(members.front()));
  auto mount_root = std::make_unique<stfs::MountRoot>(std::move(members));
  stfs::MountedModelOptions of_source = options;
  of_source.is_read_only = how.is_read_only;
  mount_root->show_source(std::make_unique<stfs::SourceDirectory>(source.path, of_source), opener_of);
  return mount_root;
}

int mount(stfs::Options& options) {
  stfs::raise_descriptor_limit();
  stfs::SourceOptions how{
      .is_read_only = options.model.is_read_only, .is_strict = options.is_strict, .io = options.io};
  for (const std::filesystem::path& delta : options.deltas) {
    if (auto local = stfs::check_local(delta); !local) return failed(local.error());
    // The process in the background has another working directory, and may open the model again.
    auto absolute = stfs::absolute_path(delta);
    if (!absolute) return failed(absolute.error());
    how.deltas.push_back(std::move(*absolute));
  }
  how.must_be_settled = options.model.fails_on_change;
  if (auto known = stfs::check_scheme(options.source); !known) return failed(known.error());
  if (auto local = stfs::check_local(options.mount_point); !local) return failed(local.error());
  auto mount_point = stfs::check_mount_point(options.mount_point, options.may_cover_files);
  if (!mount_point) return failed(mount_point.error());
  options.mount_point = mount_point->path;
  // This check runs once before a delta is made, and once for the files that only the source names.
  std::vector<std::filesystem::path> named = how.deltas;
  named.push_back(options.source);
  if (!options.log.empty()) {
    if (auto local = stfs::check_local(options.log); !local) return failed(local.error());
    auto absolute = stfs::absolute_path(options.log);
    if (!absolute) return failed(absolute.error());
    named.push_back(std::move(*absolute));
  }
  if (auto seen = stfs::check_not_hidden(named, *mount_point); !seen) return failed(seen.error());
  if (!options.log.empty()) {
    auto file = stfs::LogFile::open(named.back());
    if (!file) return failed(file.error());
    stfs::log::to_file(std::move(*file));
  }
  how.makes_delta = true;  // only now: a delta that is deleted later is not made again
  auto source = stfs::open_source(options.source, how);
  how.makes_delta = false;
  if (!source) return failed(source.error());
  if (auto seen = stfs::check_not_hidden(stfs::files_of(*source), *mount_point); !seen)
    return failed(seen.error());

  if (!names_foreign_mount(named, *source)) stfs::enter_no_foreign_mounts();

  // From here on, a signal ends the mount in the right order.
  stfs::EndingSignals::block();
  const auto mount_root = mount_root_of(*source, options.model, how);
  auto session = stfs::Session::mount(*mount_root, source->path, *mount_point, options);
  if (!session) return failed(session.error());
  if (!options.stays_in_foreground) {
    if (auto away = (*session)->go_to_background(); !away) return failed(away.error());
  }
  if (auto served = (*session)->serve(); !served) return failed(served.error());
  return kDone;
}

}  // namespace

int main(int argc, char** argv) {
  if (!stfs::hold_standard_streams()) return kFailed;
  if (stfs::Guard::is_guard(argc, argv)) return stfs::Guard::run(argv);
  stfs::install_bus_guard();  // for slices of short runs (core/archive/slice_reader.h)
  try {
    stfs::CommandLine line = stfs::parse_command_line(argc, argv);
    stfs::hide_queries(argc, argv);
    if (line.outcome != stfs::CommandLine::Outcome::Mount) return print(line);
    return mount(line.options);
  } catch (const std::exception& exception) {
    stfs::log::error("{}", exception.what());
    return kFailed;
  }
}
