// xxh3-64 of many blocks as CUDA kernels; why in two is told in evkernels/xxh3_constants.py,
// whose table of words (`keys`) these read.
#pragma once

#include <cstdint>

#include "kv_kernels.cuh"

namespace evkernels {

constexpr int kStripeBytes = 64, kKibBytes = 1024, kKibStripes = 16, kLanes = 8;
constexpr int kPairs = kLanes / 2;
constexpr int kScrambleKeys = 16, kLastKeys = 24, kMergeKeys = 32, kStart = 40;  // in words
constexpr uint64_t kPrime32 = 0x9E3779B1ULL;
constexpr uint64_t kPrime64 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kAvalanche = 0x165667919E3779F9ULL;

// Two neighbouring little-endian words; aligned to 16 bytes or to nothing.
template <bool kAligned>
__device__ inline Wide load_pair(const uint8_t* at) {
  if (kAligned) return *reinterpret_cast<const Wide*>(at);
  Wide pair = {0, 0};
  for (int byte = 7; byte >= 0; --byte) {
    pair.low = pair.low << 8 | at[byte];
    pair.high = pair.high << 8 | at[byte + 8];
  }
  return pair;
}

__device__ inline uint64_t keyed_product(uint64_t word, int64_t key) {
  const uint64_t keyed = word ^ static_cast<uint64_t>(key);
  return (keyed & 0xFFFFFFFFULL) * (keyed >> 32);
}

// What a stripe adds to two neighbouring lanes: each word goes to the other's lane, too.
__device__ inline void add_pair(Wide& sum, Wide words, const int64_t* keys) {
  sum.low += keyed_product(words.low, keys[0]) + words.high;
  sum.high += keyed_product(words.high, keys[1]) + words.low;
}

// One thread for two lanes of one KiB of one block: n * max_kibs * kPairs threads.
// sums: [n, max_kibs, kLanes]. A block's last 64 bytes are left to `digests`.
template <bool kAligned>
__global__ void kib_sums(const uint8_t* data, const int64_t* lengths, const int64_t* keys,
                         Wide* sums, int64_t n_blocks, int64_t block_bytes, int64_t max_kibs) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= n_blocks * max_kibs * kPairs) return;
  const int pair = static_cast<int>(index % kPairs);
  const int64_t kib = index / kPairs % max_kibs, block = index / kPairs / max_kibs;
  const int64_t left = (lengths[block] - 1) / kStripeBytes - kib * kKibStripes;
  const uint8_t* at = data + block * block_bytes + kib * kKibBytes + pair * 16;
  Wide sum = {0, 0};
#pragma unroll 4
  for (int stripe = 0; stripe < kKibStripes; ++stripe)
    if (stripe < left)
      add_pair(sum, load_pair<kAligned>(at + stripe * kStripeBytes), keys + stripe + pair * 2);
  sums[index] = sum;
}

__device__ inline uint64_t scrambled(uint64_t value, int64_t key) {
  return (value ^ value >> 47 ^ static_cast<uint64_t>(key)) * kPrime32;
}

__device__ inline uint64_t merged(const Wide* lanes, int64_t length, const int64_t* keys) {
  uint64_t digest = static_cast<uint64_t>(length) * kPrime64;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const uint64_t low = lanes[pair].low ^ static_cast<uint64_t>(keys[pair * 2]);
    const uint64_t high = lanes[pair].high ^ static_cast<uint64_t>(keys[pair * 2 + 1]);
    digest += low * high ^ __umul64hi(low, high);
  }
  digest = (digest ^ digest >> 37) * kAvalanche;
  return digest ^ digest >> 32;
}

// One thread a block: its eight lanes are independent, which hides what one of them waits for.
static __global__ void digests(const uint8_t* data, const int64_t* lengths, const int64_t* keys,
                               const Wide* sums, uint64_t* out, int64_t n_blocks,
                               int64_t block_bytes, int64_t max_kibs) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (block >= n_blocks) return;
  const int64_t length = lengths[block], whole = (length - 1) / kKibBytes;
  const Wide* mine = sums + block * max_kibs * kPairs;
  Wide lanes[kPairs];
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair)
    lanes[pair] = {static_cast<uint64_t>(keys[kStart + pair * 2]),
                   static_cast<uint64_t>(keys[kStart + pair * 2 + 1])};
#pragma unroll 4
  for (int64_t kib = 0; kib <= whole; ++kib) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const Wide sum = mine[kib * kPairs + pair];
      lanes[pair].low += sum.low;
      lanes[pair].high += sum.high;
      if (kib == whole) continue;  // the last KiB, whole or not, is not scrambled in
      lanes[pair].low = scrambled(lanes[pair].low, keys[kScrambleKeys + pair * 2]);
      lanes[pair].high = scrambled(lanes[pair].high, keys[kScrambleKeys + pair * 2 + 1]);
    }
  }
  const uint8_t* last = data + block * block_bytes + length - kStripeBytes;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair)
    add_pair(lanes[pair], load_pair<false>(last + pair * 16), keys + kLastKeys + pair * 2);
  out[block] = merged(lanes, length, keys + kMergeKeys);
}

}  // namespace evkernels
