/* Models in C: their content, their errors, and structures of other versions. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

const char* describes_a_model(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_model_open(path, NULL, &error);
  EXPECT(model != NULL);
  EXPECT(strcmp(stfs_model_path(model), path) == 0);
  EXPECT(stfs_model_tensor_count(model) == 4);
  uint64_t position = 9;
  EXPECT(stfs_model_find(model, "m", 1, &position, &error) == 0 && position == 0);
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  EXPECT(stfs_model_describe(model, position, &info, &error) == 0);
  EXPECT(is_text(info.name, "m") && info.dtype == STFS_U8 && info.rank == 2);
  EXPECT(info.shape[0] == 3 && info.shape[1] == 4 && info.strides_bytes == NULL && info.size_bytes == 12);
  EXPECT(strcmp(info.archive, path) == 0 && info.offset % 8 == 0 && info.offset > 8);
  EXPECT(info.device_kind == STFS_CPU && info.device_index == 0 && info.flags == STFS_MAPPED);
  EXPECT(stfs_model_metadata_count(model) == 1);
  stfs_text key, value;
  EXPECT(stfs_model_metadata(model, 0, &key, &value, &error) == 0 && is_text(key, "a") &&
         is_text(value, "b"));
  EXPECT(stfs_model_not_shown_count(model) == 0 && stfs_model_not_shown(model, 0, &value, &error) == -1);
  uint64_t generation = 0;
  EXPECT(stfs_model_generation(model, &generation, &error) == 0 && generation > 1600000000000000000U);
  EXPECT(stfs_model_check_current(model, &error) == 0);
  EXPECT(strcmp(stfs_dtype_name(STFS_BF16), "BF16") == 0 && strcmp(stfs_dtype_name(STFS_U64), "U64") == 0);
  EXPECT(stfs_dtype_bits(STFS_F6_E2M3) == 6 && stfs_dtype_bits(STFS_C64) == 64);
  EXPECT(stfs_dtype_named("bfloat16") == STFS_BF16 && stfs_dtype_named("torch.float32") == STFS_F32);
  EXPECT(stfs_dtype_named("float") == -1 && stfs_dtype_named(NULL) == -1);
  EXPECT(stfs_dtype_name(22) == NULL && stfs_dtype_name(-1) == NULL && stfs_dtype_bits(22) == 0);
  EXPECT(strlen(stfs_version()) >= 5);
  stfs_model_close(model);
  stfs_model_close(NULL);
  return NULL;
}

const char* tells_errors(const char* path) {
  stfs_error error;
  EXPECT(stfs_model_open("/nowhere/at.all", NULL, &error) == NULL);
  EXPECT(error.errno_value == ENOENT && strncmp(error.message, "/nowhere/at.all: ", 17) == 0);
  EXPECT(stfs_model_open("/nowhere/at.all", NULL, NULL) == NULL);
  EXPECT(stfs_model_open(NULL, NULL, &error) == NULL && error.code == STFS_INVALID_ARGUMENT);
  EXPECT(stfs_model_open("/dev/null", NULL, &error) == NULL && error.errno_value == EINVAL);
  char directory[5000];
  memset(directory, 'a', sizeof directory);
  for (size_t at = 0; at < sizeof directory - 1; at += 2) memcpy(directory + at, "\xc3\xa4", 2);
  directory[sizeof directory - 1] = '\0';
  EXPECT(stfs_model_open(directory, NULL, &error) == NULL && error.errno_value == ENAMETOOLONG);
  /* The message is cut, and not within a character. */
  EXPECT(strlen(error.message) >= sizeof error.message - 2);
  EXPECT((unsigned char)error.message[strlen(error.message) - 1] == 0xa4);

  stfs_model* model = stfs_model_open(path, NULL, NULL);
  EXPECT(model != NULL);
  uint64_t position = 0;
  EXPECT(stfs_model_find(model, "bug", 3, &position, &error) == -1);
  EXPECT(error.code == STFS_NOT_FOUND && error.errno_value == ENOENT && strstr(error.message, "big") != NULL);
  EXPECT(strcmp(stfs_code_name(error.code), "NotFound") == 0 && strcmp(stfs_code_name(99), "Unknown") == 0);
  EXPECT(strcmp(stfs_code_name(STFS_OUT_OF_MEMORY), "OutOfMemory") == 0);
  EXPECT(stfs_model_find(model, "m\0m", 3, &position, &error) == -1);
  EXPECT(stfs_tensor_open(model, 4, &error) == NULL && error.errno_value == EINVAL);
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  EXPECT(stfs_model_describe(model, 4, &info, &error) == -1);
  stfs_text text;
  EXPECT(stfs_model_metadata(model, 1, &text, &text, &error) == -1);
  stfs_tensor* tensor = open_tensor(model, "m");
  EXPECT(stfs_tensor_slice(tensor, "3", &error) == NULL && error.code == STFS_INVALID_ARGUMENT);
  EXPECT(strncmp(error.message, "m[3]: ", 6) == 0);
  char bytes[13];
  EXPECT(stfs_tensor_read(tensor, 0, bytes, 13, &error) == -1 && error.errno_value == EINVAL);
  EXPECT(stfs_tensor_read(tensor, UINT64_MAX, bytes, 2, &error) == -1);
  stfs_tensor_close(tensor);
  stfs_model_close(model);
  return NULL;
}

const char* notices_a_changed_index(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_model_open(path, NULL, &error);
  EXPECT(model != NULL);
  EXPECT(stfs_model_check_current(model, &error) == 0);
  FILE* index = fopen(path, "a");
  EXPECT(index != NULL && fputs(" ", index) >= 0 && fclose(index) == 0);
  EXPECT(stfs_model_check_current(model, &error) == -1 && error.code == STFS_ARCHIVE_CHANGED);
  EXPECT(error.errno_value == ESTALE && strstr(error.message, "the index has changed") != NULL);
  stfs_model_close(model);
  return NULL;
}

const char* knows_older_and_newer_structures(const char* path) {
  stfs_error error;
  stfs_model_options unset = {.struct_bytes = 0};
  EXPECT(stfs_model_open(path, &unset, &error) == NULL && strstr(error.message, "struct_bytes") != NULL);
  stfs_model_options unknown = {.struct_bytes = sizeof unknown, .io = 7};
  EXPECT(stfs_model_open(path, &unknown, &error) == NULL && error.errno_value == EINVAL);
  struct {
    stfs_model_options known;
    int32_t added[2];
  } newer = {.known = {.struct_bytes = sizeof newer}};
  stfs_model* model = stfs_model_open(path, &newer.known, &error);
  EXPECT(model != NULL);
  newer.added[1] = 1;
  EXPECT(stfs_model_open(path, &newer.known, &error) == NULL && error.errno_value == EINVAL);

  stfs_tensor_info info;
  memset(&info, 'x', sizeof info);
  info.struct_bytes = offsetof(stfs_tensor_info, shape);
  EXPECT(stfs_model_describe(model, 0, &info, &error) == 0 && info.rank == 2);
  EXPECT(memcmp(&info.shape, "xxxxxxxx", 8) == 0 && info.struct_bytes == offsetof(stfs_tensor_info, shape));
  info.struct_bytes = 0;
  EXPECT(stfs_model_describe(model, 0, &info, &error) == -1);
  stfs_model_close(model);
  return NULL;
}
