// Marks functions that run on the CPU and in kernels. nvcc compiles only the .cu files.
#pragma once

#if defined(__CUDACC__)
#define STFS_ON_DEVICES __host__ __device__
#else
#define STFS_ON_DEVICES
#endif
