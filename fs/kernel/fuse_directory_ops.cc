// Implements the handlers that look up, list, make, move and remove files and directories.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fs/kernel/fuse_handlers.h"

namespace stfs {
namespace {

void look_up(fuse_req_t req, fuse_ino_t parent, std::string_view name, const MountRoot::Pin& model) {
  // The request must not be used after its reply, so the mount is fetched first.
  Mount& mount = mount_of(req);
  MountRoot& mount_root = mount.mount_root;
  const std::uint64_t changes = MountedModel::changes();
  const auto found = mount_root.lookup(parent, name);
  if (!found && found.error().errno_value != ENOENT) return reply_error(req, parent, found.error());
  // Inode 0 with a timeout makes the kernel remember that the name does not exist.
  fuse_entry_param entry = entry_of(mount_root, model, found ? *found : Stat{}, parent);
  const bool is_slice = model && InodeSpace::local(parent) == Views::kSlice;
  // If tensors can be made, a name may start to exist without a request for its directory.
  const bool may_appear =
      is_slice || !mount_root.is_read_only(model) || (parent == kRootIno && mount_root.has_changing_root());
  if (!found) entry.entry_timeout = may_appear ? 0 : timeout_of(parent);
  // If the reply fails, the caller does not exist any more and the kernel has not counted the look-up.
  const Ino ino = entry.ino;
  if (found) forget_changed_source(mount, model, ino);
  const bool is_told = fuse_reply_entry(req, &entry) == 0;
  if (!is_told) mount_root.forget(ino, 1);
  if (is_told && found) note_told(mount, ino, changes);
  if (!is_slice) return;
  survive("reply", [&] {
    if (auto oldest = model->slice_to_forget()) mount.invalidator->forget_entry(parent, std::move(*oldest));
  });
}

/// True if a look-up reads the source directory or the scratch directory. The look-up may wait for a disk, as
/// each listing of pretrained/ and of the root of a directory of models may.
bool reads_directory(const MountRoot& mount_root, Ino parent, std::string_view name) {
  const Ino local = InodeSpace::local(parent);
  if (PretrainedDirectory::owns(local) || mount_root.reads_source(parent, name) ||
      (local == kHiddenIno && name == PretrainedDirectory::kEntry.name))
    return true;
  const MountRoot::Pin model = mount_root.model_of(parent);
  return model && model->reads_scratch(parent, name);
}

void on_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  if (reads_directory(mount_root_of(req), parent, name)) {
    look_slowly(req, parent, Request::Lookup, [=, kept = std::string(name)](const MountRoot::Pin& model) {
      look_up(req, parent, kept, model);
    });
  } else {
    guarded(req, parent, Request::Lookup,
            [&](const MountRoot::Pin& model) { look_up(req, parent, name, model); });
  }
}

void on_opendir(fuse_req_t req, fuse_ino_t ino, fuse_file_info* fi) {
  const Ino local = InodeSpace::local(ino);
  const MountRoot& mount_root = mount_root_of(req);
  const bool is_changing_root = ino == kRootIno && mount_root.has_changing_root();
  const auto open = [=, asked = *fi](const MountRoot::Pin& model) {
    fuse_file_info opened = asked;
    const bool lists_scratch = model && model->lists_scratch(ino);
    const bool changes =
        local >= kHiddenIno || PretrainedDirectory::owns(local) || is_changing_root || lists_scratch;
    opened.cache_readdir = changes ? 0 : 1;
    opened.keep_cache = lists_scratch ? 0 : 1;
    fuse_reply_open(req, &opened);
  };
  const MountRoot::Pin model = mount_root.model_of(ino);
  if (model && model->reads_scratch(ino)) return look_slowly(req, ino, Request::Readdir, open);
  guarded(req, ino, Request::Readdir, open);
}

template <bool kWithAttributes>
void on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info*) {
  const auto list = [=](const MountRoot::Pin& model) {
    Mount& mount = mount_of(req);
    const MountRoot& mount_root = mount.mount_root;
    const std::uint64_t changes = MountedModel::changes();
    const bool links_listed = ino != kRootIno || mount_of(req).links_listed_root;
    std::string buffer(size, '\0');
    std::size_t used = 0;
    std::vector<Ino> looked_up;
    const auto visit = [&](std::string_view name, Ino child, std::uint64_t next) {
      const std::string terminated(name);
      std::size_t needed = 0;
      bool is_looked_up = false;
      if constexpr (kWithAttributes) {
        // Inode 0 tells the kernel that it has not looked up this entry. `.` and `..` are never looked up. A
        // view is not looked up here, because its file is removed at its last look-up, and only a look-up by
        // name holds it.
        const Ino local = InodeSpace::local(child);
        const bool is_passed_over = !links_listed || name == "." || name == ".." ||
                                    Views::remade_entry(local) != 0 || Views::whole(local).has_value();
        fuse_entry_param entry =
            entry_of(mount_root, model, mount_root.attributes(child).value_or(Stat{}), ino);
        if (is_passed_over) {
          entry.ino = 0;
          entry.attr.st_ino = child;
          entry.attr.st_mode = mount_root.file_type(child);
        }
        is_looked_up = entry.ino != 0;
        needed = fuse_add_direntry_plus(req, buffer.data() + used, size - used, terminated.c_str(), &entry,
                                        static_cast<off_t>(next));
      } else {
        struct stat st {};
        st.st_ino = child;
        st.st_mode = mount_root.file_type(child);
        needed = fuse_add_direntry(req, buffer.data() + used, size - used, terminated.c_str(), &st,
                                   static_cast<off_t>(next));
      }
      if (needed > size - used) return false;
      used += needed;
      if (is_looked_up) {
        looked_up.push_back(child);
        mount_root.note_lookup(child);
      }
      return true;
    };
    const auto read = mount_root.read_directory(ino, static_cast<std::uint64_t>(offset), visit);
    if (!read) return reply_error(req, ino, read.error());
    const bool is_told = fuse_reply_buf(req, buffer.data(), used) == 0;
    for (const Ino child : looked_up) {
      if (is_told) {
        note_told(mount, child, changes);
      } else {
        mount_root.forget(child, 1);
      }
    }
  };
  const MountRoot& mount_root = mount_root_of(req);
  const bool lists_source = PretrainedDirectory::owns(InodeSpace::local(ino)) ||
                            (ino == kRootIno && mount_root.has_changing_root());
  const MountRoot::Pin model = lists_source ? MountRoot::Pin() : mount_root.model_of(ino);
  if (lists_source || (model && model->may_list_scratch(ino))) {
    look_slowly(req, ino, Request::Readdir, list);
  } else {
    guarded(req, ino, Request::Readdir, list);
  }
}

void on_mkdir(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
  change_slowly(req, parent, Request::Mkdir, name,
                [=, name = std::string(name)](const MountRoot::Pin& model) {
                  // The request must not be used after its reply, so the mount is fetched first.
                  const MountRoot& mount_root = mount_root_of(req);
                  const auto made = model->make_directory(parent, name, caller_of(req), mode);
                  if (!made) return reply_error(req, parent, made.error(), name);
                  const fuse_entry_param entry = entry_of(mount_root, model, *made, parent);
                  model.note_lookup(entry.ino);
                  if (fuse_reply_entry(req, &entry) != 0) mount_root.forget(entry.ino, 1);
                });
}

void on_create(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* fi) {
  const auto create = [=, name = std::string(name), asked = *fi](const MountRoot::Pin& model) {
    if (!model) return refuse_beside_models(req, parent, name);
    const MountRoot& mount_root = mount_root_of(req);
    const fuse_ctx& caller = *fuse_req_ctx(req);
    const auto made = model->create(parent, name, asked.flags, caller.pid, mode,
                                    {.uid = caller.uid, .gid = caller.gid, .other_groups = {}});
    if (!made) return reply_error(req, parent, made.error(), name);
    const fuse_entry_param entry = entry_of(mount_root, model, made->status, parent);
    fuse_file_info reply = asked;
    set_open_flags(entry.ino, made->file, reply);
    if (is_served(entry.ino)) reply.fh = source_handle(caller.uid);
    model.note_lookup(entry.ino);
    if (fuse_reply_create(req, &entry, &reply) == 0) return;
    if (made->file != nullptr) model->release(made->file);
    if (is_served(entry.ino)) model->served_files().release(model->node_of(entry.ino));
    mount_root.forget(entry.ino, 1);
  };
  if (is_served(parent)) return change_slowly(req, parent, Request::Open, name, create);
  guarded(req, parent, Request::Open, create);
}

/// Leaves out the names of a request that removes or moves a file, because the kernel forgets them when it
/// gets the reply. A notification would wait for a directory's lock, which the next request may hold.
Outdated without_names(Outdated outdated, const std::vector<Invalidator::Entry>& names) {
  std::erase_if(outdated.entries, [&](const Invalidator::Entry& entry) {
    return std::ranges::find(names, entry) != names.end();
  });
  return outdated;
}

/// mknod(2) of a regular file is a create: tar restores files with it.
void on_mknod(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, dev_t) {
  change_slowly(req, parent, Request::Open, name, [=, name = std::string(name)](const MountRoot::Pin& model) {
    if (!S_ISREG(mode)) return refuse(req, parent, "devices, pipes and sockets can't be tensors", name);
    if (InodeSpace::local(parent) == Views::kNpy)
      return refuse(req, parent, "a NumPy file is made by open(2): it has to be written", name);
    const MountRoot& mount_root = mount_root_of(req);
    const fuse_ctx& caller = *fuse_req_ctx(req);
    const auto made = model->create(parent, name, O_WRONLY | O_EXCL, caller.pid, mode & ~S_IFMT,
                                    {.uid = caller.uid, .gid = caller.gid, .other_groups = {}});
    if (!made) return reply_error(req, parent, made.error(), name);
    const fuse_entry_param entry = entry_of(mount_root, model, made->status, parent);
    model.note_lookup(entry.ino);
    if (made->file != nullptr) model->release(made->file);
    if (is_served(entry.ino)) model->served_files().release(model->node_of(entry.ino));
    if (fuse_reply_entry(req, &entry) != 0) mount_root.forget(entry.ino, 1);
  });
}

void on_unlink(fuse_req_t req, fuse_ino_t parent, const char* name) {
  change_slowly(req, parent, Request::Unlink, name,
                [=, name = std::string(name)](const MountRoot::Pin& model) {
                  const auto removed = model->remove_file(parent, name);
                  if (!removed) return reply_error(req, parent, removed.error(), name);
                  Mount& mount = mount_of(req);
                  const Outdated outdated = without_names(*removed, {{parent, name}});
                  fuse_reply_err(req, 0);
                  forget_outdated(mount, outdated);
                });
}

void on_rmdir(fuse_req_t req, fuse_ino_t parent, const char* name) {
  change_slowly(req, parent, Request::Rmdir, name,
                [=, name = std::string(name)](const MountRoot::Pin& model) {
                  const auto removed = model->remove_directory(parent, name);
                  if (!removed) return reply_error(req, parent, removed.error(), name);
                  fuse_reply_err(req, 0);
                });
}

/// Forgets the names that a transaction's commit has changed, because the caller may use them next. The
/// kernel holds locks of the transactions' directories during the request. A program that removes one of
/// these directories holds the lock of `.safetensors`, or of the root, and waits for the transactions' locks.
/// The wait here is limited for this reason. Names below `.safetensors` come last, because the kernel asks
/// for them each time.
void forget_names(Mount& mount, std::vector<Invalidator::Entry> entries) {
  if (entries.empty()) return;
  const auto of_views = std::partition(entries.begin(), entries.end(), [](const Invalidator::Entry& entry) {
    const Ino directory = InodeSpace::local(entry.first);
    return directory != kHiddenIno && !Views::owns(directory);
  });
  std::vector<Invalidator::Entry> last(std::make_move_iterator(of_views),
                                       std::make_move_iterator(entries.end()));
  entries.erase(of_views, entries.end());
  mount.invalidator->forget_entries(std::move(entries));
  mount.invalidator->wait_for_names();
  mount.invalidator->forget_entries(std::move(last));
}

void on_rename(fuse_req_t req, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
               const char* new_name, unsigned flags) {
  change_slowly(req, parent, Request::Rename, name,
                [=, from = std::string(name), to = std::string(new_name)](const MountRoot::Pin& model) {
                  const Ino local = InodeSpace::local(parent);
                  const bool is_transaction = TransactionDirectory::owns(local);
                  const auto renamed = mount_root_of(req).rename(parent, from, new_parent, to, flags);
                  if (!renamed) {
                    mount_root_of(req).activity(model).note_refused_commit();
                    return reply_error(req, parent, renamed.error(), fmt::format("{} -> {}", from, to));
                  }
                  Mount& mount = mount_of(req);
                  if (is_transaction || local == kHiddenIno || PretrainedDirectory::owns(local)) {
                    // A commit: the caller may read stale data next, so they are forgotten first. No page is
                    // locked, and forgetting a page needs no directory's lock.
                    survive("commit", [&] {
                      for (const Stale& stale : renamed->stale) {
                        for (const Stale& view : model->stale_views(stale))
                          mount.invalidator->forget_here(view);
                        mount.invalidator->forget_here(stale);
                      }
                      forget_names(mount, renamed->entries);
                    });
                    fuse_reply_err(req, 0);
                  } else {
                    const Outdated outdated = without_names(*renamed, {{parent, from}, {new_parent, to}});
                    fuse_reply_err(req, 0);
                    forget_outdated(mount, outdated);
                  }
                });
}

void on_forget(fuse_req_t req, fuse_ino_t ino, std::uint64_t lookups) {
  mount_root_of(req).forget(ino, lookups);
  fuse_reply_none(req);
}

void on_forget_multi(fuse_req_t req, size_t count, fuse_forget_data* forgets) {
  for (const fuse_forget_data& forgotten : std::span(forgets, count)) {
    mount_root_of(req).forget(forgotten.ino, forgotten.nlookup);
  }
  fuse_reply_none(req);
}

}  // namespace

fuse_entry_param entry_of(const MountRoot& mount_root, const MountRoot::Pin& model, const struct stat& st,
                          Ino parent) {
  fuse_entry_param entry{};
  entry.ino = st.st_ino;
  entry.attr = st;
  entry.attr.st_ino = shown_ino(st.st_ino);
  entry.attr_timeout = timeout_of(st.st_ino);
  entry.entry_timeout = std::min(timeout_of(st.st_ino), timeout_of(parent));
  // An edit may give the name of a view to another file. A file that is no tensor yet changes its size, and
  // may be removed.
  if (Views::owns(InodeSpace::local(st.st_ino)) && model && !model->is_read_only()) entry.entry_timeout = 0;
  if (model && model->is_draft(st.st_ino)) entry.entry_timeout = entry.attr_timeout = 0;
  // Names in the root of a directory of models appear and disappear. In a read-only mount the follower
  // reports changed models to the kernel.
  const bool is_model = S_ISDIR(st.st_mode) && mount_root.is_read_only();
  if (parent == kRootIno && mount_root.has_changing_root() && !is_model) entry.entry_timeout = 0;
  return entry;
}

void add_directory_operations(fuse_lowlevel_ops& ops) {
  ops.lookup = on_lookup;
  ops.forget = on_forget;
  ops.forget_multi = on_forget_multi;
  ops.opendir = on_opendir;
  ops.readdir = on_readdir<false>;
  ops.readdirplus = on_readdir<true>;
  ops.mkdir = on_mkdir;
  ops.create = on_create;
  ops.mknod = on_mknod;
  ops.unlink = on_unlink;
  ops.rmdir = on_rmdir;
  ops.rename = on_rename;
}

}  // namespace stfs
