// Each error of CUDA that means "no GPU" has a different sentence, with CUDA's number and a remedy.
#include "tools/device/cuda_error.h"

#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "tests/support/catch.h"
#include "tools/device/backend.h"

using namespace stfs;
using namespace stfs::device;

TEST_CASE("CUDA's complaints of a missing GPU are told apart, with their numbers", "[tools][upload]") {
  const std::pair<cudaError_t, std::string> known[] = {{cudaErrorStubLibrary, "stub"},
                                                       {cudaErrorInsufficientDriver, "driver"},
                                                       {cudaErrorDevicesUnavailable, "is taken"},
                                                       {cudaErrorNoDevice, "finds no GPU"},
                                                       {cudaErrorSystemNotReady, "fabric"},
                                                       {cudaErrorSystemDriverMismatch, "two versions"},
                                                       {cudaErrorCompatNotSupportedOnDevice, "compat"}};
  std::set<std::string> sentences;
  for (const auto& [error, word] : known) {
    const std::string sentence = explain_cuda(error);
    INFO(sentence);
    // Error 100 has another sentence where this user may not open the GPU's file.
    CHECK((sentence.find(word) != std::string::npos || sentence.find("no access") != std::string::npos));
    CHECK(sentence.find("(CUDA error " + std::to_string(static_cast<int>(error)) + ")") != std::string::npos);
    CHECK(fail_cuda("cuda:0", "open", error).value().errno_value == ENODEV);
    sentences.insert(sentence);
  }
  CHECK(sentences.size() == std::size(known));
}

TEST_CASE("other complaints of CUDA keep its words, and say which device and what was tried",
          "[tools][upload]") {
  const Error no_memory = fail_cuda("cuda:1", "allocate", cudaErrorMemoryAllocation).value();
  CHECK(no_memory.errno_value == ENOMEM);
  CHECK(no_memory.message.starts_with("cuda:1: allocate: "));
  CHECK(no_memory.message.find("out of memory (CUDA error 2)") != std::string::npos);
  CHECK(fail_cuda("cuda:1", "copy", cudaErrorUnknown).value().errno_value == EIO);
  CHECK(fail_cuda("cuda:9", "open", cudaErrorInvalidDevice).value().errno_value == ENODEV);
}

TEST_CASE("an error after which CUDA serves this process no more says so", "[tools][upload]") {
  for (const cudaError_t error :
       {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorECCUncorrectable}) {
    const Error lost = fail_cuda("cuda:1", "copy", error).value();
    INFO(lost.message);
    CHECK(is_device_lost(lost));
    CHECK(lost.message.ends_with("; this process can't use the GPU any more: start it again"));
  }
  CHECK_FALSE(is_device_lost(fail_cuda("cuda:1", "copy", cudaErrorInvalidValue).value()));
}
