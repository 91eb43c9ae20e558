/* Weight sync in C: a copy of the archive is changed, published as a version, and pulled. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

typedef struct seen {
  int32_t kind;
  uint64_t changed_count;
  int is_named; /* the first changed tensor is "m", of version 000001 */
  int events;
  int result; /* of `see` */
  int stops;  /* 1: `look` stops the call */
  int looks;
  uint64_t done_bytes;
  uint64_t total_bytes;
} seen;

static int see(void* context, const stfs_pull_event* event) {
  seen* to = context;
  to->kind = event->kind;
  to->changed_count = event->changed_count;
  to->is_named =
      event->changed_count > 0 && is_text(event->changed[0], "m") && is_text(event->version, "000001");
  ++to->events;
  return to->result;
}

static int look(void* context, uint64_t done_bytes, uint64_t total_bytes) {
  seen* to = context;
  ++to->looks;
  to->done_bytes = done_bytes;
  to->total_bytes = total_bytes;
  return to->stops;
}

/* Returns true if the tensor "m" of the archive has these 12 bytes. */
static int has_m(const char* path, const char* due) {
  stfs_error error;
  stfs_model* model = stfs_model_open(path, NULL, &error);
  stfs_tensor* tensor = open_tensor(model, "m");
  char bytes[12];
  const int is_due = tensor != NULL && stfs_tensor_read(tensor, 0, bytes, sizeof bytes, &error) == 0 &&
                     memcmp(bytes, due, sizeof bytes) == 0;
  stfs_tensor_close(tensor);
  stfs_model_close(model);
  return is_due;
}

const char* publishes_and_pulls(const char* path) {
  stfs_error error;
  char other[4096];
  char published[4096];
  snprintf(other, sizeof other, "%s.other.safetensors", path);
  snprintf(published, sizeof published, "%s.published", path);
  EXPECT(copy_file(path, other));
  const stfs_model_options writable = {.struct_bytes = sizeof writable, .is_writable = 1};
  stfs_model* before = stfs_model_open(path, NULL, &error);
  stfs_model* after = stfs_model_open(other, &writable, &error);
  EXPECT(before != NULL && after != NULL);
  stfs_edit* edit = stfs_edit_begin(after, NULL, &error);
  EXPECT(edit != NULL &&
         stfs_edit_put(edit, "m", 1, STFS_U8, 2, (uint64_t[]){3, 4}, "new bytes 12", 12, &error) == 0);
  EXPECT(stfs_edit_commit(edit, &error) == 0);
  stfs_edit_close(edit);

  stfs_publish_options publish = {
      .struct_bytes = sizeof publish, .version = 1, .encoding = STFS_OVERWRITE, .threads = UINT32_MAX};
  seen progress = {.stops = 1};
  publish.progress = look;
  publish.context = &progress;
  EXPECT(stfs_sync_publish(before, after, published, &publish, &error) == -1 &&
         error.errno_value == ECANCELED && progress.looks == 1);
  /* The cancelled version has left no file. */
  progress.stops = 0;
  EXPECT(stfs_sync_publish(before, after, published, &publish, &error) == 0);
  EXPECT(progress.looks >= 3 && progress.done_bytes == 12 + 4 + 256 * 256 * 4 &&
         progress.total_bytes == progress.done_bytes);
  EXPECT(stfs_sync_publish(before, after, published, &publish, &error) == -1 && error.errno_value == EEXIST);
  publish.version = 0;
  EXPECT(stfs_sync_publish(before, after, published, &publish, &error) == -1 && error.errno_value == EINVAL);
  publish.version = 2;
  publish.checksum = "md5";
  EXPECT(stfs_sync_publish(before, after, published, &publish, &error) == -1 && error.errno_value == EINVAL);
  /* Only mounts have generations. */
  uint64_t generation = 5;
  publish.checksum = NULL;
  publish.has_since = 1;
  publish.since = 3;
  EXPECT(stfs_sync_publish(before, after, published, &publish, &error) == -1 && error.errno_value == EINVAL);
  publish.has_since = 0;
  publish.version = 7;
  publish.generation = &generation;
  char elsewhere[4200];
  snprintf(elsewhere, sizeof elsewhere, "%s.elsewhere", path);
  EXPECT(stfs_sync_publish(before, after, elsewhere, &publish, &error) == 0 && generation == 0);
  stfs_model_close(after);

  seen what = {.stops = 1, .result = 1};
  stfs_pull_options pull = {.struct_bytes = sizeof pull,
                            .on_event = see,
                            .progress = look,
                            .context = &what,
                            .wait_s = -1,
                            .threads = UINT32_MAX};
  int64_t version = 0;
  EXPECT(stfs_sync_pull(path, published, &pull, &version, &error) == -1 && error.errno_value == ECANCELED);
  EXPECT(what.looks == 1 && what.events == 0 && has_m(path, "\0\1\2\3\12\13\14\15\24\25\26\27"));
  what.stops = 0;
  EXPECT(stfs_sync_pull(path, published, &pull, &version, &error) == -1 && error.errno_value == ECANCELED);
  EXPECT(what.events == 1 && what.kind == STFS_PULL_APPLIED && what.changed_count == 1 && what.is_named);
  EXPECT(what.done_bytes == 12 && what.total_bytes == 12);
  what.result = 0;
  EXPECT(stfs_sync_pull(path, published, &pull, &version, &error) == 0 && version == 1 && what.events == 1);
  EXPECT(stfs_sync_pull(path, published, NULL, NULL, &error) == 0);
  pull.has_target = 1;
  pull.target = 7;
  EXPECT(stfs_sync_pull(path, published, &pull, &version, &error) == -1 && error.errno_value == EAGAIN);
  stfs_model_close(before);
  EXPECT(has_m(path, "new bytes 12"));
  return NULL;
}
