/* Plans, uploads and devices in C. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "stfs.h"
#include "tests/interface/c_expect.h"
#include "tests/interface/c_program.h"

const char* uploads_to_the_cpu(const char* path) {
  stfs_error error;
  stfs_model* model = stfs_model_open(path, NULL, NULL);
  EXPECT(model != NULL);
  const char* patterns[] = {"big", "m", "empty"};
  stfs_plan_options options = {.struct_bytes = sizeof options,
                               .devices = "cpu",
                               .patterns = patterns,
                               .pattern_count = 3,
                               .dtype = "BF16"};
  stfs_plan* plan = stfs_plan_make(model, &options, &error);
  EXPECT(plan != NULL);
  stfs_model_close(model);
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

  const stfs_upload_options how = {.struct_bytes = sizeof how, .readers = UINT32_MAX, .must_verify = 1};
  stfs_upload* upload = stfs_upload_start(plan, &how, &error);
  EXPECT(upload != NULL);
  stfs_plan_close(plan);
  stfs_upload_progress progress = {.struct_bytes = sizeof progress};
  do {
    EXPECT(stfs_upload_poll(upload, &progress, &error) == 0 && progress.done_bytes <= progress.total_bytes);
  } while (!progress.is_done);
  stfs_resident* resident = stfs_upload_wait(upload, NULL, NULL, &error);
  EXPECT(resident != NULL);
  EXPECT(stfs_upload_wait(upload, NULL, NULL, &error) == NULL && error.errno_value == EINVAL);
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
  stfs_model* model = stfs_model_open(path, NULL, NULL);
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

  /* The progress function cancels the upload, or the upload is done before that. */
  stfs_upload* upload = stfs_upload_start(plan, NULL, &error);
  EXPECT(upload != NULL);
  int calls = 0;
  stfs_resident* resident = stfs_upload_wait(upload, count_and_stop, &calls, &error);
  EXPECT(resident != NULL ? calls >= 1 : error.errno_value == ECANCELED);
  stfs_resident_close(resident);
  stfs_upload_close(upload);
  /* The upload is closed while it runs. */
  upload = stfs_upload_start(plan, NULL, &error);
  EXPECT(upload != NULL);
  stfs_upload_cancel(upload);
  stfs_upload_close(upload);
  /* The archive is cut after the plan was made. */
  EXPECT(truncate(path, 5000) == 0);
  upload = stfs_upload_start(plan, NULL, &error);
  if (upload != NULL) {
    EXPECT(stfs_upload_wait(upload, NULL, NULL, &error) == NULL);
  }
  EXPECT(error.errno_value == ESTALE || error.errno_value == EIO);
  stfs_upload_close(upload);
  stfs_plan_close(plan);
  stfs_model_close(model);
  return NULL;
}

const char* lists_devices(const char* path) {
  (void)path;
  stfs_error error;
  stfs_device_list* list = stfs_device_list_make(&error);
  EXPECT(list != NULL && stfs_device_list_count(list) >= 1);
  stfs_device_info info = {.struct_bytes = sizeof info};
  EXPECT(stfs_device_list_describe(list, 0, &info, &error) == 0 && info.kind == STFS_CPU &&
         strcmp(info.name, "cpu") == 0);
  EXPECT(info.uuid[0] == '\0' && info.total_bytes > info.free_bytes && info.free_bytes > 0);
  EXPECT((stfs_device_list_count(list) == 1) == (stfs_device_list_why_no_cuda(list)[0] != '\0'));
  EXPECT(stfs_device_list_describe(list, stfs_device_list_count(list), &info, &error) == -1);
  stfs_device_list_close(list);
  return NULL;
}
