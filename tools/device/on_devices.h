// Functions that run on the CPU and in kernels: the .cu files are compiled by nvcc, everything else is not.
#pragma once

#if defined(__CUDACC__)
#define STFS_ON_DEVICES __host__ __device__
#else
#define STFS_ON_DEVICES
#endif
