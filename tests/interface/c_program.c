/* Every function of stfs.h, as C has it. */
#include "tests/interface/c_program.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stfs.h"

#define TEXT_OF(number) #number
#define LINE_OF(number) TEXT_OF(number)
#define EXPECT(condition) \
  if (!(condition)) return __FILE__ ":" LINE_OF(__LINE__) ": " #condition

static stfs_tensor* open_tensor(const stfs_model* model, const char* name) {
  uint64_t position = 0;
  if (stfs_find(model, name, strlen(name), &position, NULL) != 0) return NULL;
  return stfs_tensor_open(model, position, NULL);
}

static stfs_tensor_info info_of(const stfs_tensor* tensor) {
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  if (stfs_tensor_describe(tensor, &info, NULL) != 0) abort();
  return info;
}

static int is_text(stfs_text text, const char* due) {
  return text.size_bytes == strlen(due) && memcmp(text.data, due, text.size_bytes) == 0;
}

const char* describes_a_model(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_open(path, NULL, &error);
  EXPECT(model != NULL);
  EXPECT(strcmp(stfs_path(model), path) == 0);
  EXPECT(stfs_tensor_count(model) == 4);
  uint64_t position = 9;
  EXPECT(stfs_find(model, "m", 1, &position, &error) == 0 && position == 0);
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  EXPECT(stfs_describe(model, position, &info, &error) == 0);
  EXPECT(is_text(info.name, "m") && info.dtype == STFS_U8 && info.rank == 2);
  EXPECT(info.shape[0] == 3 && info.shape[1] == 4 && info.strides_bytes == NULL && info.size_bytes == 12);
  EXPECT(strcmp(info.archive, path) == 0 && info.offset % 8 == 0 && info.offset > 8);
  EXPECT(info.device_kind == STFS_CPU && info.device_index == 0 && info.flags == STFS_MAPPED);
  EXPECT(stfs_metadata_count(model) == 1);
  stfs_text key, value;
  EXPECT(stfs_metadata_entry(model, 0, &key, &value, &error) == 0 && is_text(key, "a") &&
         is_text(value, "b"));
  uint64_t generation = 0;
  EXPECT(stfs_generation(model, &generation, &error) == 0 && generation > 1600000000000000000U);
  EXPECT(stfs_check_current(model, &error) == 0);
  EXPECT(strcmp(stfs_dtype_name(STFS_BF16), "BF16") == 0 && strcmp(stfs_dtype_name(STFS_U64), "U64") == 0);
  EXPECT(stfs_dtype_bits(STFS_F6_E2M3) == 6 && stfs_dtype_bits(STFS_C64) == 64);
  EXPECT(stfs_dtype_name(22) == NULL && stfs_dtype_name(-1) == NULL && stfs_dtype_bits(22) == 0);
  EXPECT(strlen(stfs_version()) >= 5);
  stfs_close(model);
  stfs_close(NULL);
  return NULL;
}

const char* points_into_the_map(const char* path) {
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* one = open_tensor(model, "big");
  stfs_tensor* other = open_tensor(model, "big");
  EXPECT(one != NULL && other != NULL);
  const float* data = stfs_tensor_data(one, NULL);
  EXPECT(data != NULL && data == stfs_tensor_data(other, NULL));
  for (int at = 0; at < 65536; ++at) EXPECT(data[at] == (float)at);
  stfs_tensor* again = stfs_tensor_retain(one, NULL);
  stfs_tensor_close(one);
  EXPECT(again != NULL && stfs_tensor_data(again, NULL) == data && data[7] == 7);
  stfs_tensor_close(again);
  stfs_tensor_close(other);
  stfs_tensor* empty = open_tensor(model, "empty");
  EXPECT(empty != NULL && stfs_tensor_data(empty, NULL) != NULL && info_of(empty).size_bytes == 0);
  EXPECT(stfs_tensor_read(empty, 0, NULL, 0, NULL) == 0);
  stfs_tensor_close(empty);
  stfs_close(model);
  return NULL;
}

const char* reads_slices(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* whole = open_tensor(model, "m");
  EXPECT(whole != NULL);
  const unsigned char* bytes = stfs_tensor_data(whole, NULL);

  stfs_tensor* rows = stfs_tensor_slice(whole, "1:", &error);
  EXPECT(rows != NULL);
  EXPECT(stfs_tensor_data(rows, NULL) == bytes + 4 && info_of(rows).strides_bytes == NULL);
  EXPECT(info_of(rows).size_bytes == 8 && info_of(rows).offset == info_of(whole).offset + 4);

  stfs_tensor* corner = stfs_tensor_slice(whole, "::-2, 1::2", &error);
  EXPECT(corner != NULL);
  stfs_tensor_info info = info_of(corner);
  EXPECT(info.rank == 2 && info.shape[0] == 2 && info.shape[1] == 2 && info.size_bytes == 4);
  EXPECT(info.strides_bytes != NULL && info.strides_bytes[0] == -8 && info.strides_bytes[1] == 2);
  EXPECT(stfs_tensor_data(corner, NULL) == bytes + 9);
  unsigned char packed[4] = {0};
  EXPECT(stfs_tensor_read(corner, 0, packed, 4, &error) == 0 && memcmp(packed, "\x15\x17\x01\x03", 4) == 0);
  EXPECT(stfs_tensor_read(corner, 1, packed, 2, &error) == 0 && memcmp(packed, "\x17\x01", 2) == 0);

  stfs_tensor* last = stfs_tensor_slice(corner, "1, 0", &error);
  EXPECT(last != NULL);
  EXPECT(info_of(last).rank == 0 && info_of(last).size_bytes == 1);
  EXPECT(*(const unsigned char*)stfs_tensor_data(last, NULL) == 1);

  stfs_tensor* copy = stfs_tensor_copy(corner, &error);
  EXPECT(copy != NULL);
  EXPECT(info_of(copy).strides_bytes == NULL && info_of(copy).flags == STFS_WRITABLE);
  EXPECT(memcmp(stfs_tensor_data(copy, NULL), "\x15\x17\x01\x03", 4) == 0);

  stfs_tensor* four = open_tensor(model, "four");
  stfs_tensor* halves = stfs_tensor_slice(four, ":, 2:", &error);
  EXPECT(halves != NULL);
  EXPECT(info_of(halves).flags == 0 && info_of(halves).size_bytes == 2 &&
         info_of(halves).strides_bytes == NULL);
  EXPECT(memcmp(stfs_tensor_data(halves, NULL), "\x32\x76", 2) == 0);
  EXPECT(stfs_tensor_data(halves, NULL) == stfs_tensor_data(halves, NULL));
  EXPECT(stfs_tensor_slice(halves, "0", &error) == NULL && error.errno_value == ENOTSUP);

  stfs_tensor* all[] = {whole, rows, corner, last, copy, four, halves};
  for (size_t at = 0; at < sizeof all / sizeof *all; ++at) stfs_tensor_close(all[at]);
  stfs_close(model);
  return NULL;
}

const char* keeps_a_tensor_when_its_model_is_closed(const char* path) {
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* tensor = open_tensor(model, "big");
  EXPECT(tensor != NULL);
  const float* data = stfs_tensor_data(tensor, NULL);
  stfs_close(model);
  EXPECT(unlink(path) == 0);
  EXPECT(data[65535] == 65535 && is_text(info_of(tensor).name, "big"));
  stfs_tensor* slice = stfs_tensor_slice(tensor, "-1", NULL);
  stfs_tensor_close(tensor);
  EXPECT(slice != NULL && *(const float*)stfs_tensor_data(slice, NULL) == 65280);
  float first = 0;
  EXPECT(stfs_tensor_read(slice, 4, &first, sizeof first, NULL) == 0 && first == 65281);
  stfs_tensor_close(slice);
  return NULL;
}

const char* keeps_what_is_written_to_itself(const char* path) {
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* tensor = open_tensor(model, "big");
  EXPECT(tensor != NULL);
  stfs_tensor* mine = stfs_tensor_private(tensor, NULL);
  EXPECT(mine != NULL);
  EXPECT(info_of(mine).flags == (STFS_WRITABLE | STFS_MAPPED));
  float* data = stfs_tensor_data(mine, NULL);
  EXPECT(data[65535] == 65535);
  data[0] = -1;
  const float* shared = stfs_tensor_data(tensor, NULL);
  EXPECT(shared[0] == 0 && shared != data);
  float first = 9;
  EXPECT(stfs_tensor_read(tensor, 0, &first, sizeof first, NULL) == 0 && first == 0);
  EXPECT(stfs_tensor_read(mine, 0, &first, sizeof first, NULL) == 0 && first == -1);
  /* A small one, and one that is not one run, are copies. */
  stfs_tensor* column = stfs_tensor_slice(tensor, ":, 3", NULL);
  stfs_tensor* my_column = stfs_tensor_private(column, NULL);
  EXPECT(my_column != NULL && info_of(my_column).flags == STFS_WRITABLE);
  EXPECT(((const float*)stfs_tensor_data(my_column, NULL))[2] == 515);
  stfs_close(model);
  stfs_tensor_close(tensor);
  EXPECT(data[1] == 1);
  stfs_tensor_close(mine);
  stfs_tensor_close(column);
  stfs_tensor_close(my_column);
  return NULL;
}

const char* forgives_writes(const char* path) {
  const stfs_open_options options = {.struct_bytes = sizeof options, .is_forgiving = 1};
  stfs_model* model = stfs_open(path, &options, NULL);
  stfs_model* other = stfs_open(path, &options, NULL);
  EXPECT(model != NULL && other != NULL);
  stfs_tensor* tensor = open_tensor(model, "big");
  stfs_tensor* again = open_tensor(model, "big");
  stfs_tensor* elsewhere = open_tensor(other, "big");
  EXPECT(info_of(tensor).flags == STFS_MAPPED);
  float* data = stfs_tensor_data(tensor, NULL);
  EXPECT(data != NULL && data == stfs_tensor_data(again, NULL) && data[65535] == 65535);
  data[0] = -1;
  EXPECT(((const float*)stfs_tensor_data(again, NULL))[0] == -1);
  EXPECT(((const float*)stfs_tensor_data(elsewhere, NULL))[0] == 0);
  float first = 9;
  EXPECT(stfs_tensor_read(tensor, 0, &first, sizeof first, NULL) == 0 && first == 0);
  stfs_close(model);
  stfs_close(other);
  EXPECT(data[1] == 1);
  stfs_tensor_close(tensor);
  stfs_tensor_close(again);
  stfs_tensor_close(elsewhere);
  return NULL;
}

const char* uploads_to_the_cpu(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  const char* patterns[] = {"big", "m", "empty"};
  stfs_plan_options options = {.struct_bytes = sizeof options,
                               .devices = "cpu",
                               .patterns = patterns,
                               .pattern_count = 3,
                               .dtype = "BF16"};
  stfs_plan* plan = stfs_plan_make(model, &options, &error);
  EXPECT(plan != NULL);
  stfs_close(model);
  EXPECT(stfs_plan_count(plan) == 3 && stfs_plan_read_bytes(plan) == 262144 + 12);
  EXPECT(stfs_plan_left_out_count(plan) == 0);
  uint64_t big = 0;
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  for (; big < 3; ++big) {
    EXPECT(stfs_plan_describe(plan, big, &info, &error) == 0);
    if (is_text(info.name, "big")) break;
  }
  EXPECT(info.dtype == STFS_BF16 && info.size_bytes == 131072 && info.device_kind == STFS_CPU);
  EXPECT(info.shape[0] == 256 && strcmp(info.archive, path) == 0 && info.offset == 4096);
  EXPECT(stfs_plan_describe(plan, 3, &info, &error) == -1);

  const stfs_upload_options how = {.struct_bytes = sizeof how, .readers = 2, .must_verify = 1};
  stfs_upload* upload = stfs_start(plan, &how, &error);
  EXPECT(upload != NULL);
  stfs_plan_close(plan);
  stfs_progress progress = {.struct_bytes = sizeof progress};
  do {
    EXPECT(stfs_poll(upload, &progress, &error) == 0 && progress.done_bytes <= progress.total_bytes);
  } while (!progress.is_done);
  stfs_resident* resident = stfs_wait(upload, NULL, NULL, &error);
  EXPECT(resident != NULL);
  EXPECT(stfs_wait(upload, NULL, NULL, &error) == NULL && error.errno_value == EINVAL);
  stfs_upload_close(upload);
  stfs_upload_report report = {.struct_bytes = sizeof report};
  EXPECT(stfs_resident_report(resident, &report, &error) == 0 && report.read_bytes == 262144 + 12);
  EXPECT(stfs_resident_count(resident) == 3);
  stfs_tensor* tensor = stfs_resident_tensor(resident, big, &error);
  EXPECT(tensor != NULL && stfs_resident_tensor(resident, 3, &error) == NULL);
  stfs_resident_close(resident);
  const uint16_t* data = stfs_tensor_data(tensor, &error);
  EXPECT((uintptr_t)data % 256 == 0 && data[0] == 0 && data[1] == 0x3f80 && data[2] == 0x4000 &&
         data[65535] == 0x4780);
  stfs_tensor* column = stfs_tensor_slice(tensor, "1, ::-255", &error);
  uint16_t ends[2] = {0};
  EXPECT(stfs_tensor_read(column, 0, ends, sizeof ends, &error) == 0 && ends[0] == data[511] &&
         ends[1] == data[256]);
  stfs_tensor_close(column);
  stfs_tensor_close(tensor);
  return NULL;
}

static int count_and_stop(void* context, uint64_t done_bytes, uint64_t total_bytes) {
  *(int*)context += 1;
  return done_bytes <= total_bytes;
}

const char* tells_what_is_wrong_with_an_upload(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  EXPECT(stfs_plan_make(model, NULL, &error) == NULL && error.errno_value == EINVAL);
  stfs_plan_options options = {.struct_bytes = sizeof options};
  EXPECT(stfs_plan_make(model, &options, &error) == NULL &&
         strstr(error.message, "devices or rules") != NULL);
  options.devices = "cuda";
  EXPECT(stfs_plan_make(model, &options, &error) == NULL && error.errno_value == EINVAL);
  options.devices = "cpu";
  options.rules = "* cpu";
  EXPECT(stfs_plan_make(model, &options, &error) == NULL);
  options.devices = NULL;
  options.rules = "m cpu\n\n# nothing\nbig somewhere\n";
  EXPECT(stfs_plan_make(model, &options, &error) == NULL && strstr(error.message, "line 4") != NULL);
  options.rules = "big cpu shard(1,2/2)";
  stfs_plan* plan = stfs_plan_make(model, &options, &error);
  EXPECT(plan != NULL && stfs_plan_count(plan) == 1 && stfs_plan_left_out_count(plan) == 3);
  stfs_text name;
  EXPECT(stfs_plan_left_out(plan, 0, &name, &error) == 0 && name.size_bytes > 0);
  EXPECT(stfs_plan_left_out(plan, 3, &name, &error) == -1);
  options.dtype = "F99";
  EXPECT(stfs_plan_make(model, &options, &error) == NULL && strstr(error.message, "F99") != NULL);

  /* Canceled by its progress, or done before that was asked; not both. */
  stfs_upload* upload = stfs_start(plan, NULL, &error);
  EXPECT(upload != NULL);
  int calls = 0;
  stfs_resident* resident = stfs_wait(upload, count_and_stop, &calls, &error);
  EXPECT(resident != NULL ? calls >= 1 : error.errno_value == ECANCELED);
  stfs_resident_close(resident);
  stfs_upload_close(upload);
  /* Closed while it is under way. */
  upload = stfs_start(plan, NULL, &error);
  EXPECT(upload != NULL);
  stfs_cancel(upload);
  stfs_upload_close(upload);
  /* Cut after the plan. */
  EXPECT(truncate(path, 5000) == 0);
  upload = stfs_start(plan, NULL, &error);
  if (upload != NULL) {
    EXPECT(stfs_wait(upload, NULL, NULL, &error) == NULL);
  }
  EXPECT(error.errno_value == ESTALE || error.errno_value == EIO);
  stfs_upload_close(upload);
  stfs_plan_close(plan);
  stfs_close(model);
  return NULL;
}

const char* lists_devices(const char* path) {
  (void)path;
  stfs_error error;
  stfs_device_list* list = stfs_list_devices(&error);
  EXPECT(list != NULL && stfs_device_count(list) >= 1);
  stfs_device_info info = {.struct_bytes = sizeof info};
  EXPECT(stfs_device(list, 0, &info, &error) == 0 && info.kind == STFS_CPU && strcmp(info.name, "cpu") == 0);
  EXPECT(info.uuid[0] == '\0' && info.total_bytes > info.free_bytes && info.free_bytes > 0);
  EXPECT((stfs_device_count(list) == 1) == (stfs_why_no_cuda(list)[0] != '\0'));
  EXPECT(stfs_device(list, stfs_device_count(list), &info, &error) == -1);
  stfs_device_list_close(list);
  return NULL;
}

const char* reads_where_no_map_is_wanted(const char* path) {
  const stfs_open_options options = {.struct_bytes = sizeof options, .io = STFS_IO_PREAD};
  stfs_model* model = stfs_open(path, &options, NULL);
  EXPECT(model != NULL);
  stfs_tensor* tensor = open_tensor(model, "big");
  EXPECT(tensor != NULL && info_of(tensor).flags == 0);
  const float* data = stfs_tensor_data(tensor, NULL);
  EXPECT(data != NULL && data[65535] == 65535 && data == stfs_tensor_data(tensor, NULL));
  stfs_tensor* column = stfs_tensor_slice(tensor, "::128, 5", NULL);
  EXPECT(column != NULL && info_of(column).strides_bytes == NULL && info_of(column).size_bytes == 8);
  data = stfs_tensor_data(column, NULL);
  EXPECT(data[0] == 5 && data[1] == 32773);
  stfs_tensor* mine = stfs_tensor_private(tensor, NULL);
  EXPECT(mine != NULL && info_of(mine).flags == STFS_WRITABLE);
  stfs_tensor_close(mine);
  stfs_tensor_close(column);
  stfs_tensor_close(tensor);
  stfs_close(model);
  return NULL;
}

struct Work {
  const stfs_model* model;
  const stfs_tensor* shared;
};

static void* work(void* context) {
  const struct Work* todo = context;
  for (int round = 0; round < 200; ++round) {
    stfs_tensor* tensor = open_tensor(todo->model, "big");
    stfs_tensor* slice = stfs_tensor_slice(tensor, "::2, 1", NULL);
    float values[2] = {0};
    if (stfs_tensor_read(slice, 4, values, sizeof values, NULL) != 0 || values[0] != 513)
      return "a wrong value";
    const float* gathered = stfs_tensor_data(todo->shared, NULL);
    if (gathered == NULL || gathered[1] != 512) return "a wrong value of the shared one";
    if (info_of(todo->shared).size_bytes != 512) return "a wrong size";
    stfs_tensor_close(slice);
    stfs_tensor_close(tensor);
  }
  return NULL;
}

const char* works_on_many_threads(const char* path) {
  const stfs_open_options options = {.struct_bytes = sizeof options, .io = STFS_IO_PREAD};
  stfs_model* model = stfs_open(path, NULL, NULL);
  stfs_model* unmapped = stfs_open(path, &options, NULL);
  EXPECT(model != NULL && unmapped != NULL);
  stfs_tensor* whole = open_tensor(unmapped, "big");
  stfs_tensor* shared = stfs_tensor_slice(whole, "::2, 0", NULL);
  EXPECT(shared != NULL);
  struct Work todo = {model, shared};
  pthread_t threads[4];
  for (int at = 0; at < 4; ++at) EXPECT(pthread_create(&threads[at], NULL, work, &todo) == 0);
  const char* wrong = NULL;
  for (int at = 0; at < 4; ++at) {
    void* its = NULL;
    pthread_join(threads[at], &its);
    if (its != NULL) wrong = its;
  }
  stfs_tensor_close(shared);
  stfs_tensor_close(whole);
  stfs_close(unmapped);
  stfs_close(model);
  return wrong;
}

const char* tells_errors(const char* path) {
  stfs_error error;
  EXPECT(stfs_open("/nowhere/at.all", NULL, &error) == NULL);
  EXPECT(error.errno_value == ENOENT && strncmp(error.message, "/nowhere/at.all: ", 17) == 0);
  EXPECT(stfs_open("/nowhere/at.all", NULL, NULL) == NULL);
  EXPECT(stfs_open(NULL, NULL, &error) == NULL && error.code == STFS_INVALID_ARGUMENT);
  EXPECT(stfs_open("/dev/null", NULL, &error) == NULL && error.errno_value == EINVAL);
  char directory[5000];
  memset(directory, 'a', sizeof directory);
  for (size_t at = 0; at < sizeof directory - 1; at += 2) memcpy(directory + at, "\xc3\xa4", 2);
  directory[sizeof directory - 1] = '\0';
  EXPECT(stfs_open(directory, NULL, &error) == NULL && error.errno_value == ENAMETOOLONG);
  /* Cut, and not within a character. */
  EXPECT(strlen(error.message) >= sizeof error.message - 2);
  EXPECT((unsigned char)error.message[strlen(error.message) - 1] == 0xa4);

  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  uint64_t position = 0;
  EXPECT(stfs_find(model, "bug", 3, &position, &error) == -1);
  EXPECT(error.code == STFS_NOT_FOUND && error.errno_value == ENOENT && strstr(error.message, "big") != NULL);
  EXPECT(strcmp(stfs_code_name(error.code), "NotFound") == 0 && strcmp(stfs_code_name(99), "Unknown") == 0);
  EXPECT(strcmp(stfs_code_name(STFS_OUT_OF_MEMORY), "OutOfMemory") == 0);
  EXPECT(stfs_find(model, "m\0m", 3, &position, &error) == -1);
  EXPECT(stfs_tensor_open(model, 4, &error) == NULL && error.errno_value == EINVAL);
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  EXPECT(stfs_describe(model, 4, &info, &error) == -1);
  stfs_text text;
  EXPECT(stfs_metadata_entry(model, 1, &text, &text, &error) == -1);
  stfs_tensor* tensor = open_tensor(model, "m");
  EXPECT(stfs_tensor_slice(tensor, "3", &error) == NULL && error.code == STFS_INVALID_ARGUMENT);
  EXPECT(strncmp(error.message, "m[3]: ", 6) == 0);
  char bytes[13];
  EXPECT(stfs_tensor_read(tensor, 0, bytes, 13, &error) == -1 && error.errno_value == EINVAL);
  EXPECT(stfs_tensor_read(tensor, UINT64_MAX, bytes, 2, &error) == -1);
  stfs_tensor_close(tensor);
  stfs_close(model);
  return NULL;
}

const char* knows_older_and_newer_structures(const char* path) {
  stfs_error error;
  stfs_open_options unset = {.struct_bytes = 0};
  EXPECT(stfs_open(path, &unset, &error) == NULL && strstr(error.message, "struct_bytes") != NULL);
  stfs_open_options unknown = {.struct_bytes = sizeof unknown, .io = 7};
  EXPECT(stfs_open(path, &unknown, &error) == NULL && error.errno_value == EINVAL);
  struct {
    stfs_open_options known;
    int32_t added[2];
  } newer = {.known = {.struct_bytes = sizeof newer}};
  stfs_model* model = stfs_open(path, &newer.known, &error);
  EXPECT(model != NULL);
  newer.added[1] = 1;
  EXPECT(stfs_open(path, &newer.known, &error) == NULL && error.errno_value == EINVAL);

  stfs_tensor_info info;
  memset(&info, 'x', sizeof info);
  info.struct_bytes = offsetof(stfs_tensor_info, shape);
  EXPECT(stfs_describe(model, 0, &info, &error) == 0 && info.rank == 2);
  EXPECT(memcmp(&info.shape, "xxxxxxxx", 8) == 0 && info.struct_bytes == offsetof(stfs_tensor_info, shape));
  info.struct_bytes = 0;
  EXPECT(stfs_describe(model, 0, &info, &error) == -1);
  stfs_close(model);
  return NULL;
}

const char* survives_a_cut(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* small = open_tensor(model, "m");
  stfs_tensor* big = open_tensor(model, "big");
  stfs_tensor* column = stfs_tensor_slice(big, ":, 1", NULL);
  EXPECT(truncate(path, (off_t)info_of(big).offset + 5000) == 0);
  static char bytes[262144];
  EXPECT(stfs_tensor_data(big, &error) == NULL && error.errno_value == EIO && error.code == STFS_ARCHIVE_CUT);
  EXPECT(stfs_tensor_read(big, 0, bytes, sizeof bytes, &error) == -1 && error.errno_value == EIO);
  EXPECT(stfs_tensor_read(column, 0, bytes, 1024, &error) == -1 && error.errno_value == EIO);
  EXPECT(stfs_tensor_copy(big, &error) == NULL && error.errno_value == EIO);
  EXPECT(stfs_tensor_private(big, &error) == NULL && error.errno_value == EIO);
  EXPECT(stfs_tensor_read(big, 0, bytes, 4096, &error) == 0 && ((const float*)bytes)[1023] == 1023);
  EXPECT(stfs_check_current(model, &error) == -1 && error.code == STFS_ARCHIVE_CUT);
  EXPECT(stfs_tensor_data(small, &error) != NULL);
  stfs_tensor_close(small);
  stfs_tensor_close(column);
  stfs_tensor_close(big);
  stfs_close(model);
  return NULL;
}

const char* reads_out_of_a_journal(const char* path) {
  stfs_model* model = stfs_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* big = open_tensor(model, "big");
  EXPECT(big != NULL && info_of(big).flags == 0);
  const char* data = stfs_tensor_data(big, NULL);
  EXPECT(data != NULL && data[0] == 'J' && data[4095] == 'J' && ((const float*)data)[1024] == 1024);
  char byte = 0;
  EXPECT(stfs_tensor_read(big, 4095, &byte, 1, NULL) == 0 && byte == 'J');
  stfs_tensor* column = stfs_tensor_slice(big, "::4, 0", NULL);
  const float* values = stfs_tensor_data(column, NULL);
  EXPECT(values != NULL && memcmp(values, "JJJJ", 4) == 0 && values[1] == 1024);
  stfs_tensor_close(column);
  stfs_tensor_close(big);
  stfs_close(model);
  return NULL;
}

/* 0 where nothing comes for long. */
static int wait_for_news(const stfs_lease* lease) {
  struct pollfd polled = {.fd = stfs_lease_descriptor(lease), .events = POLLIN};
  return poll(&polled, 1, 20000) == 1;
}

const char* leases_what_a_server_keeps(const char* socket) {
  stfs_error error;
  EXPECT(stfs_attach("/nowhere/at/all", NULL, &error) == NULL && error.errno_value == ENOENT);
  EXPECT(strncmp(error.message, "/nowhere/at/all: nobody serves there", 36) == 0);
  EXPECT(stfs_attach(NULL, NULL, &error) == NULL && error.errno_value == EINVAL);
  const stfs_attach_options options = {.struct_bytes = sizeof options, .patience_ns = UINT64_MAX};
  stfs_lease* lease = stfs_attach(socket, &options, &error);
  EXPECT(lease != NULL);
  EXPECT(stfs_lease_generation(lease) == 1 && stfs_lease_count(lease) == 2);
  EXPECT(stfs_lease_source_count(lease) == 1 &&
         strcmp(stfs_lease_source(lease, 0), "/models/m.safetensors") == 0);
  EXPECT(stfs_lease_source(lease, 1) == NULL);
  stfs_tensor* tensor = stfs_lease_tensor(lease, 0, &error);
  EXPECT(tensor != NULL && stfs_lease_tensor(lease, 2, &error) == NULL);
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  EXPECT(stfs_tensor_describe(tensor, &info, &error) == 0);
  EXPECT(is_text(info.name, "a") && info.dtype == STFS_U8 && info.rank == 1 && info.shape[0] == 5);
  EXPECT(info.flags == 0 && strcmp(info.archive, "") == 0 && info.offset == 0);
  EXPECT(memcmp(stfs_tensor_data(tensor, &error), "hello", 5) == 0);
  stfs_tensor* copy = stfs_tensor_copy(tensor, &error);
  EXPECT(copy != NULL && memcmp(stfs_tensor_data(copy, &error), "hello", 5) == 0);
  stfs_tensor_close(copy);

  stfs_lease_news news = {.struct_bytes = sizeof news};
  EXPECT(wait_for_news(lease) && stfs_lease_take_news(lease, &news, &error) == 0);
  EXPECT(news.newer_generation == 2 && !news.is_server_gone && strcmp(news.why_stuck, "") == 0);
  EXPECT(stfs_lease_take_news(lease, &news, &error) == 0 && news.newer_generation == 0);
  stfs_lease* newer = stfs_attach(socket, NULL, &error);
  EXPECT(newer != NULL && stfs_lease_generation(newer) == 2);

  EXPECT(wait_for_news(lease) && stfs_lease_take_news(lease, &news, &error) == 0 && news.is_server_gone);
  EXPECT(stfs_lease_descriptor(lease) == -1);
  news.struct_bytes = offsetof(stfs_lease_news, why_stuck);
  EXPECT(stfs_lease_take_news(lease, &news, &error) == 0 && news.is_server_gone);
  EXPECT(stfs_lease_take_news(lease, NULL, &error) == -1);
  stfs_lease_close(lease);
  stfs_lease_close(newer);
  EXPECT(memcmp(stfs_tensor_data(tensor, &error), "hello", 5) == 0);
  stfs_tensor_close(tensor);
  stfs_lease_close(NULL);
  return NULL;
}
