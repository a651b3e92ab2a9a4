// Gather, scatter, broadcast and checksum of KV blocks, as CUDA kernels.
//
// The same contract as evkernels/blocks.py, whose checks callers go through first. No kernel
// shares memory or shuffles between threads, so a host loop over the grid computes the same: the
// tests run this file on a CPU.
#pragma once

#include <cstdint>

namespace evkernels {

constexpr int kThreads = 256;
constexpr int kUnitsPerThread = 4;  // loads under way at a time, for each thread

// Everything in bytes, except counts of things named so. Strides are those of the pool seen as
// [rows, n_layers, planes, row]; staging is [n, block_tokens, n_layers, planes, width].
struct Geometry {
  int64_t n_blocks, block_tokens, n_layers, planes;
  int64_t row, width, row_offset;
  int64_t token_stride, layer_stride, plane_stride;
};

struct alignas(16) Wide {
  uint64_t low, high;
};

// The widest unit, 16 to 1 bytes, that divides every distance and address.
inline int unit_bytes(const Geometry& g, uintptr_t pool, uintptr_t staging) {
  const uint64_t all = pool | staging | static_cast<uint64_t>(g.row | g.width | g.row_offset) |
                       static_cast<uint64_t>(g.token_stride | g.layer_stride | g.plane_stride);
  for (int unit = 16; unit > 1; unit /= 2)
    if (all % static_cast<uint64_t>(unit) == 0) return unit;
  return 1;
}

inline int64_t tiles_of_block(const Geometry& g, int unit) {
  const int64_t units = g.block_tokens * g.n_layers * g.planes * (g.row / unit);
  return (units + kThreads * kUnitsPerThread - 1) / (kThreads * kUnitsPerThread);
}

// Byte offsets of one unit of one block in the pool and in staging.
struct Places {
  int64_t pool, staging;
};

__device__ inline Places places(const Geometry& g, int64_t block, int64_t slot, uint32_t index,
                                uint32_t row_units, int unit) {
  // 32-bit divisions: of 64 bits they cost several times as much, and a block has fewer units.
  const uint32_t row = index / row_units, column = index % row_units;
  const uint32_t planes = static_cast<uint32_t>(g.planes);
  const uint32_t layers = static_cast<uint32_t>(g.n_layers);
  const int64_t plane = row % planes, layer = row / planes % layers, token = row / planes / layers;
  const int64_t rows = g.block_tokens * g.n_layers * g.planes;
  const int64_t at = static_cast<int64_t>(column) * unit;
  return {(slot * g.block_tokens + token) * g.token_stride + layer * g.layer_stride +
              plane * g.plane_stride + at,
          (block * rows + row) * g.width + g.row_offset + at};
}

// Grid: n_blocks * tiles, the tiles of a block side by side.
template <typename Unit, bool kGather>
__global__ void copy_blocks(char* pool, const int64_t* slots, char* staging, Geometry g,
                            int64_t tiles) {
  const int64_t block = blockIdx.x / tiles;
  const int64_t slot = slots[block];
  const uint32_t row_units = static_cast<uint32_t>(g.row / static_cast<int>(sizeof(Unit)));
  const int64_t units = g.block_tokens * g.n_layers * g.planes * row_units;
  const int64_t first = blockIdx.x % tiles * (kThreads * kUnitsPerThread) + threadIdx.x;
  Unit held[kUnitsPerThread];
  Unit* targets[kUnitsPerThread];
#pragma unroll
  for (int i = 0; i < kUnitsPerThread; ++i) {
    const int64_t index = first + i * kThreads;
    targets[i] = nullptr;
    if (index >= units) continue;
    const Places at = places(g, block, slot, static_cast<uint32_t>(index), row_units, sizeof(Unit));
    char* const from = kGather ? pool + at.pool : staging + at.staging;
    char* const to = kGather ? staging + at.staging : pool + at.pool;
    held[i] = *reinterpret_cast<const Unit*>(from);
    targets[i] = reinterpret_cast<Unit*>(to);
  }
#pragma unroll
  for (int i = 0; i < kUnitsPerThread; ++i)
    if (targets[i] != nullptr) *targets[i] = held[i];
}

// Each unit is read once and written to every address of the table. One thread a unit; threads
// behind the whole units move the bytes that are left.
template <typename Unit>
__global__ void broadcast(const char* source, const int64_t* table, int n_destinations,
                          int64_t n_bytes) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t whole = n_bytes / static_cast<int64_t>(sizeof(Unit));
  const int64_t rest = whole * static_cast<int64_t>(sizeof(Unit)) + index - whole;
  if (index < whole) {
    const Unit unit = reinterpret_cast<const Unit*>(source)[index];
    for (int r = 0; r < n_destinations; ++r)
      reinterpret_cast<Unit*>(static_cast<uintptr_t>(table[r]))[index] = unit;
  } else if (rest < n_bytes) {
    for (int r = 0; r < n_destinations; ++r)
      reinterpret_cast<char*>(static_cast<uintptr_t>(table[r]))[rest] = source[rest];
  }
}

template <typename Unit>
inline int64_t broadcast_threads(int64_t n_bytes) {
  const int64_t size = static_cast<int64_t>(sizeof(Unit));
  return n_bytes / size + n_bytes % size;
}

}  // namespace evkernels
