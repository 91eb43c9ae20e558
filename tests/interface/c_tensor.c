/* Tensors in C: mapped, sliced, private, forgiving, read, gathered, cut, and on many threads. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

const char* points_into_the_map(const char* path) {
  stfs_model* model = stfs_model_open(path, NULL, NULL);
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
  stfs_model_close(model);
  return NULL;
}

const char* reads_slices(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_model_open(path, NULL, NULL);
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
  stfs_model_close(model);
  return NULL;
}

const char* keeps_a_tensor_when_its_model_is_closed(const char* path) {
  stfs_model* model = stfs_model_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* tensor = open_tensor(model, "big");
  EXPECT(tensor != NULL);
  const float* data = stfs_tensor_data(tensor, NULL);
  stfs_model_close(model);
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
  stfs_model* model = stfs_model_open(path, NULL, NULL);
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
  /* The private tensor of a slice that is small or has several runs is a copy. */
  stfs_tensor* column = stfs_tensor_slice(tensor, ":, 3", NULL);
  stfs_tensor* my_column = stfs_tensor_private(column, NULL);
  EXPECT(my_column != NULL && info_of(my_column).flags == STFS_WRITABLE);
  EXPECT(((const float*)stfs_tensor_data(my_column, NULL))[2] == 515);
  stfs_model_close(model);
  stfs_tensor_close(tensor);
  EXPECT(data[1] == 1);
  stfs_tensor_close(mine);
  stfs_tensor_close(column);
  stfs_tensor_close(my_column);
  return NULL;
}

const char* forgives_writes(const char* path) {
  const stfs_model_options options = {.struct_bytes = sizeof options, .is_forgiving = 1};
  stfs_model* model = stfs_model_open(path, &options, NULL);
  stfs_model* other = stfs_model_open(path, &options, NULL);
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
  stfs_model_close(model);
  stfs_model_close(other);
  EXPECT(data[1] == 1);
  stfs_tensor_close(tensor);
  stfs_tensor_close(again);
  stfs_tensor_close(elsewhere);
  return NULL;
}

const char* reads_where_no_map_is_wanted(const char* path) {
  const stfs_model_options options = {.struct_bytes = sizeof options, .io = STFS_IO_PREAD};
  stfs_model* model = stfs_model_open(path, &options, NULL);
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
  stfs_model_close(model);
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
  const stfs_model_options options = {.struct_bytes = sizeof options, .io = STFS_IO_PREAD};
  stfs_model* model = stfs_model_open(path, NULL, NULL);
  stfs_model* unmapped = stfs_model_open(path, &options, NULL);
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
  stfs_model_close(unmapped);
  stfs_model_close(model);
  return wrong;
}

const char* survives_a_cut(const char* path) {
  static char bytes[262144];
  stfs_error error;
  stfs_model* model = stfs_model_open(path, NULL, NULL);
  EXPECT(model != NULL);
  stfs_tensor* small = open_tensor(model, "m");
  stfs_tensor* big = open_tensor(model, "big");
  stfs_tensor* column = stfs_tensor_slice(big, ":, 1", NULL);
  stfs_tensor* mine = stfs_tensor_private(big, &error);
  EXPECT(mine != NULL && stfs_tensor_read(mine, 0, bytes, sizeof bytes, &error) == 0);
  EXPECT(truncate(path, (off_t)info_of(big).offset + 5000) == 0);
  EXPECT(stfs_tensor_read(mine, 0, bytes, sizeof bytes, &error) == -1 && error.errno_value == EIO);
  EXPECT(error.code == STFS_ARCHIVE_CUT);
  stfs_tensor_close(mine);
  EXPECT(stfs_tensor_data(big, &error) == NULL && error.errno_value == EIO && error.code == STFS_ARCHIVE_CUT);
  EXPECT(stfs_tensor_read(big, 0, bytes, sizeof bytes, &error) == -1 && error.errno_value == EIO);
  EXPECT(stfs_tensor_read(column, 0, bytes, 1024, &error) == -1 && error.errno_value == EIO);
  EXPECT(stfs_tensor_copy(big, &error) == NULL && error.errno_value == EIO);
  EXPECT(stfs_tensor_private(big, &error) == NULL && error.errno_value == EIO);
  EXPECT(stfs_tensor_read(big, 0, bytes, 4096, &error) == 0 && ((const float*)bytes)[1023] == 1023);
  EXPECT(stfs_model_check_current(model, &error) == -1 && error.code == STFS_ARCHIVE_CUT);
  EXPECT(stfs_tensor_data(small, &error) != NULL);
  stfs_tensor_close(small);
  stfs_tensor_close(column);
  stfs_tensor_close(big);
  stfs_model_close(model);
  return NULL;
}

const char* reads_out_of_a_journal(const char* path) {
  stfs_model* model = stfs_model_open(path, NULL, NULL);
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
  stfs_model_close(model);
  return NULL;
}
