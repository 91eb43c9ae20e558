# Finds out what the libraries and compilers of this system can do. Looks for features, not for versions.
include(CheckCXXSymbolExists)
include(CheckCXXSourceCompiles)

# libxxhash for x86 can choose its code at run time. A static libxxhash may lack this.
set(CMAKE_REQUIRED_LIBRARIES ${STFS_XXHASH})
check_cxx_symbol_exists(XXH3_64bits_dispatch xxh_x86dispatch.h STFS_HAVE_XXH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)

# libfuse 3.12 made the loop's configuration an opaque type with setters.
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::FUSE3)
set(CMAKE_REQUIRED_DEFINITIONS -DFUSE_USE_VERSION=312 -D_FILE_OFFSET_BITS=64)
check_cxx_symbol_exists(fuse_loop_cfg_set_max_threads fuse_lowlevel.h STFS_HAVE_FUSE_LOOP_CFG)
unset(CMAKE_REQUIRED_DEFINITIONS)
# libfuse 3.11 lets an open say that its close needs no FLUSH.
check_cxx_source_compiles("
  #define FUSE_USE_VERSION 310
  #define _FILE_OFFSET_BITS 64
  #include <fuse_lowlevel.h>
  int main() { fuse_file_info info{}; info.noflush = 1; return info.noflush ? 0 : 1; }" STFS_HAVE_FUSE_NOFLUSH)
# libfuse 3.17 lets the kernel read a file without asking the daemon.
check_cxx_source_compiles("
  #define FUSE_USE_VERSION 312
  #define _FILE_OFFSET_BITS 64
  #include <fuse_lowlevel.h>
  int main() {
    fuse_conn_info conn{};
    conn.want |= FUSE_CAP_PASSTHROUGH;
    conn.max_backing_stack_depth = FUSE_BACKING_STACKED_OVER;
    fuse_file_info info{};
    info.backing_id = fuse_passthrough_open(nullptr, 0);
    return fuse_passthrough_close(nullptr, info.backing_id);
  }" STFS_HAVE_FUSE_PASSTHROUGH)
unset(CMAKE_REQUIRED_LIBRARIES)

# The build supports GPUs if it finds the CUDA Toolkit and a compiler that the Toolkit works with. GPUs of data centers
# get machine code. For all other GPUs from Turing on, the driver compiles the code.
option(STFS_CUDA "Serve NVIDIA GPUs where the CUDA Toolkit is found" ON)
set(STFS_HAVE_CUDA OFF)
if(STFS_CUDA)
  find_package(CUDAToolkit 12.0 QUIET)
endif()
if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-real 90-real)
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real)
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_STANDARD 17)  # some pairs of CMake and nvcc do not know 20, which the C++ sources have
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    enable_language(CUDA)
    set(STFS_HAVE_CUDA ON)
  endif()
endif()
if(STFS_HAVE_CUDA)
  message(STATUS "CUDA Toolkit ${CUDAToolkit_VERSION} found: GPUs are served")
else()
  message(STATUS "No CUDA Toolkit that works: building without GPUs")
endif()
