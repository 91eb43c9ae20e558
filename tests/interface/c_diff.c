/* Differences in C: between the archive and a copy, and after edits. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

static int stop(void* context, uint64_t done_bytes, uint64_t total_bytes) {
  *(uint64_t*)context = total_bytes;
  return done_bytes <= total_bytes;
}

const char* compares_models(const char* path) {
  stfs_error error;
  char copy[4096];
  snprintf(copy, sizeof copy, "%s.copy.safetensors", path);
  EXPECT(copy_file(path, copy));
  const stfs_model_options options = {.struct_bytes = sizeof options, .is_writable = 1};
  stfs_model* a = stfs_model_open(path, NULL, &error);
  stfs_model* b = stfs_model_open(copy, &options, &error);
  EXPECT(a != NULL && b != NULL);
  stfs_diff* diff = stfs_diff_make(a, b, NULL, &error);
  EXPECT(diff != NULL && stfs_diff_count(diff) == 0 && stfs_diff_metadata_count(diff) == 0);
  EXPECT(stfs_diff_compared_count(diff) == 4);
  stfs_diff_close(diff);

  stfs_edit* edit = stfs_edit_begin(b, NULL, &error);
  EXPECT(edit != NULL && stfs_edit_remove(edit, "empty", 5, &error) == 0);
  EXPECT(stfs_edit_reinterpret(edit, "four", 4, STFS_U8, 1, (uint64_t[]){4}, &error) == 0);
  EXPECT(stfs_edit_put(edit, "new", 3, STFS_U8, 0, NULL, "x", 1, &error) == 0);
  /* One element of "m" differs by 100. */
  EXPECT(stfs_edit_put(edit, "m", 1, STFS_U8, 2, (uint64_t[]){3, 4}, "\0\1\2\3\12\13\14\15\24\25\26\173", 12,
                       &error) == 0);
  EXPECT(stfs_edit_set_metadata(edit, "a", 1, NULL, 0, &error) == 0 && stfs_edit_commit(edit, &error) == 0);
  stfs_edit_close(edit);
  diff = stfs_diff_make(a, b, NULL, &error);
  EXPECT(diff != NULL && stfs_diff_count(diff) == 4 && stfs_diff_compared_count(diff) == 5);
  uint32_t kinds = 0;
  for (uint64_t at = 0; at < 4; ++at) {
    stfs_difference its = {.struct_bytes = sizeof its};
    EXPECT(stfs_diff_tensor(diff, at, &its, &error) == 0);
    kinds |= its.kinds;
    if (its.kinds == STFS_ONLY_IN_A)
      EXPECT(is_text(its.name, "empty") && its.dtype_b == -1 && its.rank_a == 2);
    if (its.kinds == STFS_ONLY_IN_B) EXPECT(is_text(its.name, "new") && its.dtype_a == -1 && its.rank_b == 0);
    if (its.kinds == (STFS_OTHER_DTYPE | STFS_OTHER_SHAPE)) {
      EXPECT(is_text(its.name, "four") && its.dtype_a == STFS_F4 && its.dtype_b == STFS_U8 &&
             its.shape_b[0] == 4);
    }
    if (its.kinds != STFS_OTHER_BYTES) {
      EXPECT(!its.has_statistics);
      continue;
    }
    EXPECT(is_text(its.name, "m") && its.has_statistics && its.different == 1 && its.not_finite == 0);
    EXPECT(its.largest_difference == 100 && its.norm_difference == 100 && its.cosine < 1 && its.cosine > 0);
    EXPECT(fabs(its.largest_relative_difference - 100.0 / 123) < 1e-12);
  }
  EXPECT(kinds == 31);
  stfs_difference its = {.struct_bytes = sizeof its};
  EXPECT(stfs_diff_tensor(diff, 4, &its, &error) == -1 && error.errno_value == EINVAL);
  stfs_text key, value_a, value_b;
  EXPECT(stfs_diff_metadata_count(diff) == 1 &&
         stfs_diff_metadata(diff, 0, &key, &value_a, &value_b, &error) == 0);
  EXPECT(is_text(key, "a") && is_text(value_a, "b") && value_b.data == NULL);
  EXPECT(stfs_diff_metadata(diff, 1, &key, &value_a, &value_b, &error) == -1);
  stfs_diff_close(diff);

  const char* patterns[] = {"b*", "nothing"};
  stfs_diff_options chosen = {
      .struct_bytes = sizeof chosen, .patterns = patterns, .pattern_count = 1, .threads = UINT32_MAX};
  diff = stfs_diff_make(a, b, &chosen, &error);
  EXPECT(diff != NULL && stfs_diff_count(diff) == 0 && stfs_diff_compared_count(diff) == 1);
  stfs_diff_close(diff);
  uint64_t total_bytes = 0;
  chosen.progress = stop;
  chosen.context = &total_bytes;
  EXPECT(stfs_diff_make(a, b, &chosen, &error) == NULL && error.errno_value == ECANCELED &&
         total_bytes == 262144);
  chosen.pattern_count = 2;
  EXPECT(stfs_diff_make(a, b, &chosen, &error) == NULL && error.code == STFS_NOT_FOUND);
  stfs_diff_close(NULL);
  stfs_model_close(a);
  stfs_model_close(b);
  return NULL;
}
