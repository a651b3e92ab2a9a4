// Enough of CUDA to run the kernels of kernels/evkernels/cuda on a host: one thread at a time,
// which computes the same, since they share nothing.
#pragma once

#include <cstdint>

#define __global__
#define __device__

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

struct Index {
  unsigned x;
};
static Index blockIdx, threadIdx;

inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

#define EVKERNELS_LAUNCH(kernel, grid, stream, ...)                             \
  do {                                                                          \
    (void)(stream);                                                             \
    for (blockIdx.x = 0; blockIdx.x < (grid); ++blockIdx.x)                     \
      for (threadIdx.x = 0; threadIdx.x < evkernels::kThreads; ++threadIdx.x)   \
        kernel(__VA_ARGS__);                                                    \
  } while (false)
