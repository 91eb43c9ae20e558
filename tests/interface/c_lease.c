/* Leases in C. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

/* Returns 0 if nothing comes for 20 seconds. */
static int wait_for_news(const stfs_lease* lease) {
  struct pollfd polled = {.fd = stfs_lease_descriptor(lease), .events = POLLIN};
  return poll(&polled, 1, 20000) == 1;
}

const char* leases_what_a_server_keeps(const char* socket, void (*end_server)(void*), void* server) {
  stfs_error error;
  EXPECT(stfs_lease_attach("/nowhere/at/all", NULL, &error) == NULL && error.errno_value == ENOENT);
  EXPECT(strncmp(error.message, "/nowhere/at/all: no server uses this socket", 43) == 0);
  EXPECT(stfs_lease_attach(NULL, NULL, &error) == NULL && error.errno_value == EINVAL);
  const stfs_lease_options options = {.struct_bytes = sizeof options, .patience_ns = UINT64_MAX};
  stfs_lease* lease = stfs_lease_attach(socket, &options, &error);
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
  uint64_t newest = 0;
  EXPECT(stfs_lease_wait(lease, 1, &newest, &error) == 0 && newest == 2);
  EXPECT(stfs_lease_wait(lease, 1, NULL, &error) == -1 && error.errno_value == EINVAL);
  stfs_lease* newer = stfs_lease_attach(socket, NULL, &error);
  EXPECT(newer != NULL && stfs_lease_generation(newer) == 2);
  EXPECT(stfs_lease_wait(newer, 1, &newest, &error) == 0 && newest == 0);
  EXPECT(strcmp(stfs_lease_version(newer), "000042") == 0 && stfs_lease_changed_count(newer) == 0);

  /* Both generations share the tensor "b". The tensor "a" has changed. */
  stfs_lease* renewed = stfs_lease_attach(socket, NULL, &error);
  EXPECT(renewed != NULL && stfs_lease_renew(renewed, 0, &error) == 0);
  EXPECT(stfs_lease_generation(renewed) == 2 && stfs_lease_changed_count(renewed) == 0);
  stfs_tensor* shared = stfs_lease_tensor(lease, 1, &error);
  EXPECT(shared != NULL);
  const void* address = stfs_tensor_data(shared, &error);
  EXPECT(stfs_lease_renew(lease, 0, &error) == 0 && stfs_lease_generation(lease) == 2);
  EXPECT(strcmp(stfs_lease_version(lease), "000042") == 0);
  EXPECT(stfs_lease_changed_count(lease) == 1 && stfs_lease_changed(lease, 0) == 0);
  EXPECT(stfs_lease_changed(lease, 1) == UINT64_MAX);
  stfs_tensor* changed = stfs_lease_tensor(lease, 0, &error);
  EXPECT(changed != NULL && memcmp(stfs_tensor_data(changed, &error), "again", 5) == 0);
  EXPECT(memcmp(stfs_tensor_data(tensor, &error), "hello", 5) == 0);
  stfs_tensor* same = stfs_lease_tensor(lease, 1, &error);
  EXPECT(same != NULL && stfs_tensor_data(same, &error) == address);
  stfs_tensor_close(same);
  stfs_tensor_close(changed);
  stfs_tensor_close(shared);
  stfs_lease_close(renewed);

  end_server(server);
  EXPECT(wait_for_news(lease) && stfs_lease_take_news(lease, &news, &error) == 0 && news.is_server_gone);
  EXPECT(stfs_lease_descriptor(lease) == -1);
  news.struct_bytes = offsetof(stfs_lease_news, why_stuck);
  EXPECT(stfs_lease_take_news(lease, &news, &error) == 0 && news.is_server_gone);
  EXPECT(stfs_lease_take_news(lease, NULL, &error) == -1);
  EXPECT(stfs_lease_renew(lease, 0, &error) == -1 && error.errno_value == ECONNRESET);
  EXPECT(stfs_lease_generation(lease) == 2);
  stfs_lease_close(lease);
  stfs_lease_close(newer);
  EXPECT(memcmp(stfs_tensor_data(tensor, &error), "hello", 5) == 0);
  stfs_tensor_close(tensor);
  stfs_lease_close(NULL);
  return NULL;
}
