// The C interface of the CUDA variant. Every function queues its kernels on `stream` and returns
// cudaSuccess or why not; arguments are those of evkernels/blocks.py, already checked.

#include <cuda_runtime.h>

#include "kv_kernels.cuh"
#include "xxh3_kernels.cuh"

// A build for the host, as the tests make one, brings its own.
#ifndef EVKERNELS_LAUNCH
#define EVKERNELS_LAUNCH(kernel, grid, stream, ...) \
  kernel<<<grid, evkernels::kThreads, 0, stream>>>(__VA_ARGS__)
#endif

namespace {

using evkernels::Geometry;
using evkernels::kThreads;
using evkernels::Wide;

constexpr int64_t kMaxGrid = (int64_t{1} << 31) - 1;

unsigned grid_of(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

bool fits(int64_t threads) { return threads > 0 && threads <= kMaxGrid * kThreads; }

template <typename Unit, bool kGather>
cudaError_t copy(char* pool, const int64_t* slots, char* staging, const Geometry& g,
                 cudaStream_t stream) {
  const int64_t tiles = evkernels::tiles_of_block(g, static_cast<int>(sizeof(Unit)));
  if (tiles < 1 || g.n_blocks < 1 || g.n_blocks > kMaxGrid / tiles) return cudaErrorInvalidValue;
  const unsigned grid = static_cast<unsigned>(g.n_blocks * tiles);
  const auto kernel = evkernels::copy_blocks<Unit, kGather>;
  EVKERNELS_LAUNCH(kernel, grid, stream, pool, slots, staging, g, tiles);
  return cudaGetLastError();
}

template <bool kGather>
cudaError_t copy_by_unit(void* pool_memory, const int64_t* slots, void* staging_memory,
                         const Geometry& g, cudaStream_t stream) {
  char* const pool = static_cast<char*>(pool_memory);
  char* const staging = static_cast<char*>(staging_memory);
  switch (evkernels::unit_bytes(g, reinterpret_cast<uintptr_t>(pool),
                                reinterpret_cast<uintptr_t>(staging))) {
    case 16: return copy<Wide, kGather>(pool, slots, staging, g, stream);
    case 8: return copy<uint64_t, kGather>(pool, slots, staging, g, stream);
    case 4: return copy<uint32_t, kGather>(pool, slots, staging, g, stream);
    case 2: return copy<uint16_t, kGather>(pool, slots, staging, g, stream);
    default: return copy<uint8_t, kGather>(pool, slots, staging, g, stream);
  }
}

}  // namespace

extern "C" {

cudaError_t evkernels_gather(const void* pool, const int64_t* slots, void* staging,
                             const Geometry* geometry, cudaStream_t stream) {
  return copy_by_unit<true>(const_cast<void*>(pool), slots, staging, *geometry, stream);
}

cudaError_t evkernels_scatter(void* pool, const int64_t* slots, const void* staging,
                              const Geometry* geometry, cudaStream_t stream) {
  return copy_by_unit<false>(pool, slots, const_cast<void*>(staging), *geometry, stream);
}

// table: n_destinations device pointers, each aligned to 16 bytes, in device memory.
cudaError_t evkernels_broadcast(const void* source, const int64_t* table, int n_destinations,
                                int64_t n_bytes, cudaStream_t stream) {
  const int64_t threads = evkernels::broadcast_threads<Wide>(n_bytes);
  if (!fits(threads)) return cudaErrorInvalidValue;
  const auto kernel = evkernels::broadcast<Wide>;
  EVKERNELS_LAUNCH(kernel, grid_of(threads), stream, static_cast<const char*>(source), table,
                   n_destinations, n_bytes);
  return cudaGetLastError();
}

// keys: xxh3_constants.words. sums: room for n_blocks * ceil(block_bytes / 1024) * 64 bytes.
cudaError_t evkernels_checksum(const uint8_t* data, const int64_t* lengths, const int64_t* keys,
                               void* sums, uint64_t* out, int64_t n_blocks, int64_t block_bytes,
                               cudaStream_t stream) {
  const int64_t kibs = (block_bytes + evkernels::kKibBytes - 1) / evkernels::kKibBytes;
  const int64_t threads = n_blocks * kibs * evkernels::kPairs;
  if (!fits(threads)) return cudaErrorInvalidValue;
  Wide* const wide_sums = static_cast<Wide*>(sums);
  const uintptr_t places = reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(block_bytes);
  const auto sum_up =
      places % sizeof(Wide) == 0 ? evkernels::kib_sums<true> : evkernels::kib_sums<false>;
  EVKERNELS_LAUNCH(sum_up, grid_of(threads), stream, data, lengths, keys, wide_sums, n_blocks,
                   block_bytes, kibs);
  const cudaError_t queued = cudaGetLastError();
  if (queued != cudaSuccess) return queued;
  EVKERNELS_LAUNCH(evkernels::digests, grid_of(n_blocks), stream, data, lengths, keys, wide_sums,
                   out, n_blocks, block_bytes, kibs);
  return cudaGetLastError();
}

}  // extern "C"
