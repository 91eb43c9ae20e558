/* Checks for the functions of c_program.h. If a condition does not hold, the function ends and returns the
 * condition's text. */
#ifndef STFS_TESTS_C_EXPECT_H
#define STFS_TESTS_C_EXPECT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stfs.h"

#define TEXT_OF(number) #number
#define LINE_OF(number) TEXT_OF(number)
#define EXPECT(condition) \
  if (!(condition)) return __FILE__ ":" LINE_OF(__LINE__) ": " #condition

static inline int copy_file(const char* from, const char* to) {
  char bytes[65536];
  FILE* in = fopen(from, "rb");
  FILE* out = fopen(to, "wb");
  int is_copied = in != NULL && out != NULL;
  for (size_t count; is_copied && (count = fread(bytes, 1, sizeof bytes, in)) > 0;) {
    is_copied = fwrite(bytes, 1, count, out) == count;
  }
  return (in == NULL || fclose(in) == 0) & (out == NULL || fclose(out) == 0) & is_copied;
}

static inline stfs_tensor* open_tensor(const stfs_model* model, const char* name) {
  uint64_t position = 0;
  if (stfs_model_find(model, name, strlen(name), &position, NULL) != 0) return NULL;
  return stfs_tensor_open(model, position, NULL);
}

static inline stfs_tensor_info info_of(const stfs_tensor* tensor) {
  stfs_tensor_info info = {.struct_bytes = sizeof info};
  if (stfs_tensor_describe(tensor, &info, NULL) != 0) abort();
  return info;
}

static inline int is_text(stfs_text text, const char* due) {
  return text.size_bytes == strlen(due) && memcmp(text.data, due, text.size_bytes) == 0;
}

#endif
