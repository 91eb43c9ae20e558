/* New archives in C: in a file, in memory, refused and cancelled. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

typedef struct seen {
  int looks;
  int stops; /* 1: `look` stops the call */
  uint64_t total_bytes;
} seen;

static int look(void* context, uint64_t done_bytes, uint64_t total_bytes) {
  seen* to = context;
  ++to->looks;
  to->total_bytes = done_bytes <= total_bytes ? total_bytes : 0;
  return to->stops;
}

static stfs_text text_of(const char* text) {
  return (stfs_text){text, strlen(text)};
}

static const uint64_t kShape[] = {2, 2};
static const float kNumbers[] = {1, 2, 3, 4};

/* "b" F32 [2,2] and "a" U8 [] */
static stfs_new_archive* make(const stfs_new_archive_options* options, stfs_error* error) {
  const stfs_new_tensor tensors[] = {{.name = text_of("a"), .dtype = STFS_U8, .data = "x", .data_bytes = 1},
                                     {.name = text_of("b"),
                                      .dtype = STFS_F32,
                                      .rank = 2,
                                      .shape = kShape,
                                      .data = kNumbers,
                                      .data_bytes = 16}};
  const stfs_metadata_pair pair = {text_of("k"), text_of("v")};
  return stfs_new_archive_make(tensors, 2, &pair, 1, options, error);
}

const char* writes_new_archives(const char* path) {
  static const char header[] =
      "{\"__metadata__\":{\"k\":\"v\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
      "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[16,17]}}";
  stfs_error error;
  char bytes[8192];
  char target[4096];
  snprintf(target, sizeof target, "%s.new", path);
  stfs_new_archive* archive = make(NULL, &error);
  EXPECT(archive != NULL);
  const size_t data_offset = (8 + strlen(header) + 7) / 8 * 8;
  EXPECT(stfs_new_archive_size(archive) == data_offset + 17);
  stfs_new_archive_copy(archive, bytes);
  EXPECT((unsigned char)bytes[0] == data_offset - 8 && memcmp(bytes + 8, header, strlen(header)) == 0);
  EXPECT(memcmp(bytes + data_offset, kNumbers, 16) == 0 && bytes[data_offset + 16] == 'x');

  seen to = {0};
  stfs_save_options options = {
      .struct_bytes = sizeof options, .is_new = 1, .mode = 0600, .progress = look, .context = &to};
  EXPECT(stfs_new_archive_save(archive, target, &options, &error) == 0);
  EXPECT(to.looks >= 2 && to.total_bytes == data_offset + 17);
  struct stat status;
  EXPECT(stat(target, &status) == 0 && (status.st_mode & 0777) == 0600);
  EXPECT((uint64_t)status.st_size == data_offset + 17);
  EXPECT(stfs_new_archive_save(archive, target, &options, &error) == -1 && error.errno_value == EEXIST);
  stfs_new_archive_close(archive);
  stfs_model* model = stfs_model_open(target, NULL, &error);
  EXPECT(model != NULL && stfs_model_tensor_count(model) == 2 && stfs_model_metadata_count(model) == 1);
  stfs_tensor* tensor = open_tensor(model, "b");
  EXPECT(tensor != NULL && memcmp(stfs_tensor_data(tensor, &error), kNumbers, 16) == 0);
  stfs_tensor_close(tensor);
  stfs_model_close(model);

  const stfs_new_archive_options roomy = {.struct_bytes = sizeof roomy, .alignment = 4096, .slack_bytes = 10};
  archive = make(&roomy, &error);
  EXPECT(archive != NULL && stfs_new_archive_size(archive) == 4096 + 17);
  to = (seen){.stops = 1};
  options.is_new = 0;
  EXPECT(stfs_new_archive_save(archive, target, &options, &error) == -1 && error.errno_value == ECANCELED);
  EXPECT(to.looks == 1 && stat(target, &status) == 0 && (uint64_t)status.st_size == data_offset + 17);
  char directory[4096];
  snprintf(directory, sizeof directory, "%s.directory", path);
  EXPECT(mkdir(directory, 0700) == 0);
  EXPECT(stfs_new_archive_save(archive, directory, NULL, &error) == -1 && error.errno_value == EISDIR);
  EXPECT(rmdir(directory) == 0);
  EXPECT(stfs_new_archive_save(archive, target, NULL, &error) == 0);
  EXPECT(stat(target, &status) == 0 && status.st_size == 4096 + 17);
  stfs_new_archive_close(archive);
  stfs_new_archive_close(NULL);
  return NULL;
}

static int is_refused(stfs_new_tensor tensor, int32_t code) {
  stfs_error error;
  const stfs_new_tensor twice[] = {tensor, tensor};
  return stfs_new_archive_make(&tensor, 1, NULL, 0, NULL, &error) == NULL && error.code == code &&
         stfs_new_archive_make(twice, 2, NULL, 0, NULL, &error) == NULL;
}

const char* tells_what_is_wrong_with_a_new_archive(const char* path) {
  (void)path;
  stfs_error error;
  const stfs_new_tensor good = {.name = text_of("a"), .dtype = STFS_U8, .data = "x", .data_bytes = 1};
  const stfs_new_tensor twice[] = {good, good};
  EXPECT(stfs_new_archive_make(twice, 2, NULL, 0, NULL, &error) == NULL && error.code == STFS_DUPLICATE_KEY);
  stfs_new_tensor bad = good;
  bad.dtype = 99;
  EXPECT(is_refused(bad, STFS_INVALID_ARGUMENT));
  bad = good;
  bad.data_bytes = 2;
  EXPECT(is_refused(bad, STFS_WRONG_SIZE));
  bad = good;
  bad.name = text_of("\xff");
  EXPECT(is_refused(bad, STFS_INVALID_ARGUMENT));
  bad.name = text_of("__metadata__");
  EXPECT(is_refused(bad, STFS_INVALID_ARGUMENT));
  bad.name = text_of("__safetensorsfs.free.1");
  EXPECT(is_refused(bad, STFS_INVALID_ARGUMENT));
  const stfs_new_archive_options odd = {.struct_bytes = sizeof odd, .alignment = 24};
  EXPECT(stfs_new_archive_make(NULL, 0, NULL, 0, &odd, &error) == NULL && error.errno_value == EINVAL);
  stfs_new_archive_options empty = {.struct_bytes = sizeof empty, .has_metadata = 1};
  stfs_new_archive* archive = stfs_new_archive_make(NULL, 0, NULL, 0, &empty, &error);
  EXPECT(archive != NULL && stfs_new_archive_size(archive) == 8 + 24);
  char bytes[32];
  stfs_new_archive_copy(archive, bytes);
  EXPECT(memcmp(bytes + 8, "{\"__metadata__\":{}}     ", 24) == 0);
  stfs_new_archive_close(archive);
  return NULL;
}
