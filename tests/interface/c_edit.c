/* Edits in C: each kind of change, tensors that were opened before an edit, and errors. */
#include <errno.h>
#include <string.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

static stfs_model* open_writable(const char* path, stfs_error* error) {
  const stfs_model_options options = {.struct_bytes = sizeof options, .is_writable = 1};
  return stfs_model_open(path, &options, error);
}

static int has(const stfs_model* model, const char* name) {
  uint64_t position = 0;
  return stfs_model_find(model, name, strlen(name), &position, NULL) == 0;
}

/* Returns true if the tensor of this name has these bytes. */
static int holds(const stfs_model* model, const char* name, const void* due, size_t size_bytes) {
  char bytes[64];
  stfs_tensor* tensor = open_tensor(model, name);
  const int is_due = tensor != NULL && info_of(tensor).size_bytes == size_bytes &&
                     stfs_tensor_read(tensor, 0, bytes, size_bytes, NULL) == 0 &&
                     memcmp(bytes, due, size_bytes) == 0;
  stfs_tensor_close(tensor);
  return is_due;
}

const char* edits_a_model(const char* path) {
  stfs_error error;
  stfs_model* model = open_writable(path, &error);
  EXPECT(model != NULL);
  /* The edit is in place: nothing moves. */
  uint64_t shape[] = {3, 4};
  stfs_edit* edit = stfs_edit_begin(model, NULL, &error);
  EXPECT(edit != NULL);
  EXPECT(stfs_edit_put(edit, "m", 1, STFS_U8, 2, shape, "abcdefghijkl", 12, &error) == 0);
  EXPECT(!holds(model, "m", "abcdefghijkl", 12));
  EXPECT(stfs_edit_commit(edit, &error) == 0 && holds(model, "m", "abcdefghijkl", 12));
  EXPECT(stfs_edit_commit(edit, &error) == -1 && error.errno_value == EINVAL);
  stfs_edit_close(edit);

  /* One edit has all kinds of changes. */
  const stfs_edit_options options = {.struct_bytes = sizeof options, .patience_ns = 1000000000};
  edit = stfs_edit_begin(model, &options, &error);
  EXPECT(edit != NULL);
  uint64_t count = 5;
  const stfs_renaming renamings[] = {{{"m", 1}, {"four", 4}}, {{"four", 4}, {"m", 1}}};
  EXPECT(stfs_edit_put(edit, "new", 3, STFS_I8, 1, &count, "hello", 5, &error) == 0);
  EXPECT(stfs_edit_put(edit, "four", 4, STFS_F4, 2, (uint64_t[]){2, 4}, "wxyz", 4, &error) == 0);
  EXPECT(stfs_edit_rename(edit, renamings, 2, &error) == 0);
  EXPECT(stfs_edit_reinterpret(edit, "new", 3, STFS_U8, 2, (uint64_t[]){5, 1}, &error) == 0);
  EXPECT(stfs_edit_remove(edit, "empty", 5, &error) == 0);
  EXPECT(stfs_edit_set_metadata(edit, "k", 1, "value", 5, &error) == 0);
  EXPECT(stfs_edit_set_metadata(edit, "a", 1, NULL, 0, &error) == 0);
  EXPECT(has(model, "empty") && !has(model, "new"));
  EXPECT(stfs_edit_commit(edit, &error) == 0);
  stfs_edit_close(edit);
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT(stfs_model_tensor_count(model) == 4 && !has(model, "empty"));
    EXPECT(holds(model, "new", "hello", 5) && holds(model, "m", "wxyz", 4));
    EXPECT(holds(model, "four", "abcdefghijkl", 12));
    stfs_tensor* tensor = open_tensor(model, "new");
    EXPECT(info_of(tensor).dtype == STFS_U8 && info_of(tensor).rank == 2);
    stfs_tensor_close(tensor);
    stfs_text key, value;
    EXPECT(stfs_model_metadata_count(model) == 1 && stfs_model_metadata(model, 0, &key, &value, &error) == 0);
    EXPECT(is_text(key, "k") && is_text(value, "value"));
    stfs_model_close(model);
    model = stfs_model_open(path, NULL, &error);
    EXPECT(model != NULL);
  }
  stfs_model_close(model);
  return NULL;
}

const char* keeps_tensors_of_before_an_edit(const char* path) {
  stfs_error error;
  stfs_model* model = open_writable(path, &error);
  EXPECT(model != NULL);
  stfs_tensor* old = open_tensor(model, "big");
  stfs_model* snapshot = stfs_model_snapshot(model, &error);
  EXPECT(old != NULL && snapshot != NULL);
  const float* data = stfs_tensor_data(old, &error);
  EXPECT(stfs_edit_begin(snapshot, NULL, &error) == NULL && error.errno_value == EROFS);
  for (int turn = 0; turn < 2; ++turn) {
    stfs_edit* edit = stfs_edit_begin(model, NULL, &error);
    EXPECT(edit != NULL);
    if (turn == 0) {
      EXPECT(stfs_edit_remove(edit, "big", 3, &error) == 0);
    } else {
      /* The space of "big" is not used again as long as the old tensor exists. */
      uint64_t count = 60;
      char bytes[60] = {1};
      EXPECT(stfs_edit_put(edit, "new", 3, STFS_U8, 1, &count, bytes, 60, &error) == 0);
    }
    EXPECT(stfs_edit_commit(edit, &error) == 0);
    stfs_edit_close(edit);
    EXPECT(!has(model, "big") && has(snapshot, "big") && stfs_model_tensor_count(snapshot) == 4);
    for (int at = 0; at < 65536; ++at) EXPECT(data[at] == (float)at);
  }
  stfs_model_close(snapshot);
  stfs_tensor_close(old);
  stfs_edit* edit = stfs_edit_begin(model, NULL, &error);
  EXPECT(edit != NULL && stfs_edit_remove(edit, "four", 4, &error) == 0);
  stfs_model_close(model); /* the edit lives on */
  EXPECT(stfs_edit_commit(edit, &error) == 0);
  stfs_edit_close(edit);
  model = stfs_model_open(path, NULL, &error);
  EXPECT(model != NULL && stfs_model_tensor_count(model) == 3 && !has(model, "four"));
  stfs_model_close(model);
  return NULL;
}

const char* opens_an_unchanged_model_once(const char* path) {
  stfs_error error;
  stfs_model* model = open_writable(path, &error);
  EXPECT(model != NULL);
  stfs_tensor* before = open_tensor(model, "big");
  EXPECT(before != NULL);
  const void* data = stfs_tensor_data(before, &error);
  stfs_edit* edit = stfs_edit_begin(model, NULL, &error);
  EXPECT(data != NULL && edit != NULL);
  /* Another opening would have another map. */
  stfs_tensor* during = open_tensor(model, "big");
  EXPECT(during != NULL && stfs_tensor_data(during, &error) == data);
  stfs_tensor_close(during);
  stfs_edit_close(edit);
  stfs_tensor_close(before);
  stfs_model_close(model);
  return NULL;
}

const char* tells_what_is_wrong_with_an_edit(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_model_open(path, NULL, &error);
  EXPECT(stfs_edit_begin(model, NULL, &error) == NULL);
  EXPECT(error.code == STFS_READ_ONLY && error.errno_value == EROFS &&
         strstr(error.message, "for reading only"));
  stfs_model_close(model);
  model = open_writable(path, &error);
  EXPECT(model != NULL);
  stfs_edit* edit = stfs_edit_begin(model, NULL, &error);
  EXPECT(edit != NULL);
  EXPECT(stfs_edit_begin(model, NULL, &error) == NULL && error.errno_value == EBUSY);
  uint64_t count = 3;
  EXPECT(stfs_edit_put(edit, "new", 3, STFS_U8, 1, &count, "ab", 2, &error) == -1);
  EXPECT(error.code == STFS_WRONG_SIZE && strstr(error.message, "needs 3 bytes, 2 came") != NULL);
  EXPECT(stfs_edit_put(edit, "\xff", 1, STFS_U8, 1, &count, "abc", 3, &error) == -1);
  EXPECT(error.errno_value == EINVAL && strstr(error.message, "is not UTF-8") != NULL);
  EXPECT(stfs_edit_put(edit, "new", 3, 22, 1, &count, "abc", 3, &error) == -1);
  EXPECT(error.errno_value == EINVAL && strstr(error.message, "there is no dtype 22") != NULL);
  EXPECT(stfs_edit_put(edit, "new", 3, -1, 1, &count, "abc", 3, &error) == -1);
  EXPECT(error.errno_value == EINVAL && strstr(error.message, "there is no dtype -1") != NULL);
  EXPECT(stfs_edit_remove(edit, "none", 4, &error) == -1 && error.code == STFS_NOT_FOUND);
  const stfs_renaming taken = {{"m", 1}, {"big", 3}};
  EXPECT(stfs_edit_rename(edit, &taken, 1, &error) == -1 && error.errno_value == EEXIST);
  const stfs_renaming missing = {{"none", 4}, {"some", 4}};
  EXPECT(stfs_edit_rename(edit, &missing, 1, &error) == -1 && error.code == STFS_NOT_FOUND);
  EXPECT(stfs_edit_reinterpret(edit, "m", 1, STFS_U16, 1, &count, &error) == -1);
  EXPECT(error.code == STFS_WRONG_SIZE);
  EXPECT(stfs_edit_set_metadata(edit, "k", 1, "\xff", 1, &error) == -1 && error.errno_value == EINVAL);
  EXPECT(stfs_edit_set_metadata(edit, "none", 4, NULL, 0, &error) == -1 && error.code == STFS_NOT_FOUND);
  EXPECT(stfs_edit_commit(edit, &error) == 0 && stfs_model_tensor_count(model) == 4);
  stfs_edit_close(edit);
  edit = stfs_edit_begin(model, NULL, &error);
  EXPECT(edit != NULL && stfs_edit_remove(edit, "m", 1, &error) == 0);
  stfs_edit_close(edit); /* not committed */
  stfs_edit_close(NULL);
  EXPECT(has(model, "m"));
  const stfs_model_options both = {
      .struct_bytes = sizeof both, .is_writable = 1, .deltas = &path, .delta_count = 1};
  EXPECT(stfs_model_open(path, &both, &error) == NULL &&
         error.errno_value == EINVAL); /* itself is no delta */
  stfs_model_close(model);
  return NULL;
}
