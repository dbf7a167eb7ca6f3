#include <algorithm>
#include <limits>

#include "../contract/gate.h"
#include "layout.h"
#include "plan.h"
#include "statistic.cuh"

namespace rmsnorm_deploy {
namespace cuda {
namespace {

// ---- The table of launch configurations ---------------------------------------------------------------------------
//
// A row of H elements is H * bytes / 16 chunks. 2^group_log2 threads share a row, each with two or four chunks in
// registers. Reasons:
//   * Rows of up to 64 chunks (512 bytes; query and key norms) take two chunks to a thread, so that what is done once
//     for a row (exchanging sums, the root) is done by half as many warps; a warp's load of 32 chunks is whole sectors
//     whatever the row length, and a block has 256 / group rows. A head of 128 is 8 threads.
//   * Up to 128 chunks a warp does the row by itself, with shuffles and no barrier.
//   * Longer rows have a block to themselves, of 64 or 128 threads with four chunks each. Small blocks rather than more
//     chunks, so that one multiprocessor has several rows in different phases: while one waits at its barrier, others
//     load. The registers, and so the resident blocks, are those of resident_blocks() in rows.cuh.
//   * Twice as many threads with two chunks each where there are no more rows than multiprocessors (decoding: one row
//     of 4096 is 256 threads): nothing else would use the multiprocessor, and each thread has half as much to do. Also
//     where a residual, a float32 scale or an unusual form needs the registers.
//   * Beyond, a block of 512 threads keeps the row in shared memory, which an H100 has 227 KB of, and copies the next
//     one there meanwhile: two blocks for rows of up to 56 KB, one up to 113 KB. Rows up to twice that are alone there;
//     past the limit the second reading comes from L2, which is faster than memory.
struct RowConfiguration {
  std::int64_t most_chunks;
  std::int32_t group_log2;
  std::int32_t per_thread;
};
constexpr RowConfiguration kRows[] = {
    {2, 0, 2}, {4, 1, 2}, {8, 2, 2}, {16, 3, 2}, {32, 4, 2}, {64, 5, 2}, {128, 5, 4}, {256, 6, 4}, {512, 7, 4},
};

// Blocks are at least this large; smaller ones only where a row has fewer threads than that and there are too few rows
// to give every multiprocessor one block.
constexpr unsigned kLeastThreads = 64;

// A grid has at most so many blocks for each multiprocessor; beyond, blocks go on to further rows. That is several
// times what is resident, so that the last ones to finish leave little idle, and few enough for scale to be loaded
// seldom.
constexpr std::int64_t kBlocksPerMultiprocessor = 32;

// Columns: with chunks along the columns, at most kKeptChunks loads to a thread if 64 slices are enough for that;
// 64 slices leave 4 chunks side by side, 64 contiguous bytes, the least that memory delivers at full speed.
constexpr std::int64_t kMostSlices = 64;
constexpr std::int64_t kRereadSlices = 32;   // longer runs: 128 contiguous bytes
constexpr std::int64_t kSingleColumns = 32;  // one value at a time: a warp side by side
constexpr std::int64_t kSingleLoads = 4;     // values to a thread before more slices are taken

// --------------------------------------------------------------------------------------------------------------------

constexpr std::int32_t kMostOutputGroup = 9;                 // 2^9 is kLongRowsThreads
constexpr std::int64_t kMostChunks = std::int64_t{1} << 30;  // of a row, whose numbers are to fit 32 bits

std::int64_t round_up_to_power(std::int64_t value) {
  std::int64_t power = 1;
  while (power < value) power *= 2;
  return power;
}

std::int64_t ceiling(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

// The kernels of rows.cuh that a call needs.
RowKernels row_kernels(const rms_norm_params& p, const RowArgs& a, std::int64_t size) {
  const bool wide = p.scale_type == RMS_NORM_FLOAT32;
  const bool ordinary = a.measured == size && !a.bias.data && a.scale.row_stride == 0 && a.outer <= kOrdinaryRows;
  const bool twice = p.x_type != RMS_NORM_FLOAT32 && p.round_type != RMS_NORM_FLOAT32;
  const int form = !ordinary ? kAnyForm : twice ? kTwoRoundings : kOneRounding;
  switch (p.x_type) {
    case RMS_NORM_FLOAT16:
      return float16_rows(wide, p.residual, form);
    case RMS_NORM_BFLOAT16:
      return bfloat16_rows(wide, p.residual, form);
    default:
      return float32_rows(wide, p.residual, form);
  }
}

unsigned blocks_for(std::int64_t wanted, const Device& device) {
  return static_cast<unsigned>(std::min(wanted, kBlocksPerMultiprocessor * device.multiprocessors));
}

void plan_rows(const RowKernels& kernels, const Device& device, Launch& launch) {
  RowArgs& a = launch.row_args;
  for (const RowConfiguration& row : kRows) {
    if (a.chunks > row.most_chunks) continue;
    const bool four = row.per_thread == 4 && kernels.chunks4 && a.outer > device.multiprocessors;
    launch.rows = four ? kernels.chunks4 : kernels.chunks2;
    a.group_log2 = row.group_log2 + (row.per_thread == 4 && !four ? 1 : 0);
    launch.threads = a.group_log2 > 5 ? 1u << a.group_log2 : static_cast<unsigned>(kRowsThreads);
    const auto blocks = [&] { return ceiling(a.outer, launch.threads >> a.group_log2); };
    while (a.group_log2 <= 5 && launch.threads > kLeastThreads && blocks() < device.multiprocessors) {
      launch.threads /= 2;
    }
    launch.blocks = blocks_for(blocks(), device);
    launch.shared_bytes = kReduceBytes;
    return;
  }
  launch.rows = kernels.longer;
  launch.threads = kLongRowsThreads;
  a.group_log2 = 9;
  const std::int64_t row_bytes = a.chunks * kChunkBytes * (a.residual ? 2 : 1);
  const std::int64_t room = device.shared_bytes - kReduceBytes;
  a.buffers = static_cast<std::int32_t>(std::min<std::int64_t>(room / row_bytes, 2));
  // A block that copies its next row while it works on one has to have a next one, and gains nothing from others that
  // wait for a multiprocessor: there are as many as can be resident.
  const std::int64_t resident = 2 * a.buffers * row_bytes <= room - 2 * kReduceBytes ? 2 : 1;
  launch.blocks = a.buffers == 2 ? static_cast<unsigned>(std::min(a.outer, resident * device.multiprocessors))
                                 : blocks_for(a.outer, device);
  launch.shared_bytes = kReduceBytes + static_cast<unsigned>(a.buffers * row_bytes);
}

// As many threads to a row as the kernel of two chunks to a thread has, and as the one for long rows: so the sums come
// out with the same bits. Rows are not kept in shared memory.
void plan_other_rows(const Device& device, Launch& launch) {
  RowArgs& a = launch.row_args;
  a.group_log2 = 0;
  while (a.group_log2 < kMostOutputGroup && a.chunks > 2 << a.group_log2) ++a.group_log2;
  launch.threads = a.group_log2 > 5 ? 1u << a.group_log2 : static_cast<unsigned>(kRowsThreads);
  const auto blocks = [&] { return ceiling(a.outer, launch.threads >> a.group_log2); };
  while (a.group_log2 <= 5 && launch.threads > kLeastThreads && blocks() < device.multiprocessors) launch.threads /= 2;
  launch.blocks = blocks_for(blocks(), device);
  launch.shared_bytes = kReduceBytes + kExtremeBytes;
}

void plan_strided(const rms_norm_params& p, const Sizes& sizes, bool one_by_one, const Device& device, Launch& launch) {
  Args& a = launch.args;
  const std::int64_t per_chunk = kChunkBytes / element_size(p.x_type);
  const bool in_chunks = !one_by_one && !sizes.float64 && a.inner % per_chunk == 0 && aligned(a.x) &&
                         aligned(a.residual) && aligned(a.y) && aligned(a.sum) && fit_columns(a.scale, p.x_type) &&
                         fit_columns(a.bias, p.x_type);
  const std::int64_t values = in_chunks ? per_chunk : 1;
  const std::int64_t columns = ceiling(a.inner, values);
  const bool kept = in_chunks && a.size <= kKeptChunks * kMostSlices;
  std::int64_t slices = kRereadSlices;
  std::int64_t side_by_side = kStridedThreads / slices;
  if (kept) {
    slices = round_up_to_power(ceiling(a.size, kKeptChunks));
    side_by_side = kStridedThreads / slices;
  }
  if (!in_chunks) side_by_side = kSingleColumns;
  side_by_side = std::min(side_by_side, round_up_to_power(columns));
  if (!in_chunks) {
    slices = std::min(kStridedThreads / side_by_side, round_up_to_power(ceiling(a.size, kSingleLoads)));
  }
  a.columns = static_cast<std::int32_t>(side_by_side);
  a.slices = static_cast<std::int32_t>(slices);
  a.tiles = ceiling(columns, side_by_side);
  if (sizes.float64) {
    launch.strided = float64_kernel(p.x_type);
  } else {
    const StridedKernels kernels = p.x_type == RMS_NORM_FLOAT16    ? float16_strided()
                                   : p.x_type == RMS_NORM_BFLOAT16 ? bfloat16_strided()
                                                                   : float32_strided();
    launch.strided = !in_chunks ? kernels.single : kept ? kernels.chunked8 : kernels.chunked;
  }
  launch.threads = kStridedThreads;
  launch.blocks = blocks_for(ceiling(a.outer * a.tiles, kStridedThreads / (side_by_side * slices)), device);
  // A sum is two floats, or two doubles.
  launch.shared_bytes = static_cast<unsigned>(kStridedThreads * values * (sizes.float64 ? 16 : 8));
}

}  // namespace

int plan(const rms_norm_params& p, const rms_norm_gate* gate, const Device& device, Launch& launch) noexcept {
  Sizes sizes = {};
  const int code = gate ? check_gated(p, *gate, sizes) : check(p, sizes);
  launch = {};
  if (code != RMS_NORM_OK || sizes.total == 0) return code;
  if (gate) {
    launch.gate = {gate->gate, gate->place, gate->type == RMS_NORM_FLOAT32, gate->activation == RMS_NORM_SILU};
  }
  const bool has_more = has_outputs(p) && outputs_of(p, sizes, launch.outputs);
  Args& a = launch.args;
  a.x = p.x;
  a.residual = p.residual;
  a.y = p.y;
  a.sum = p.sum;
  a.scale = weights(p, p.scale, p.scale_strides);
  a.bias = weights(p, p.bias, p.bias_strides);
  a.statistic = statistic_of(p, sizes.measured);
  a.outer = sizes.outer;
  a.size = sizes.size;
  a.inner = sizes.inner;
  a.measured = sizes.measured;
  a.round_type = p.round_type;
  RowArgs& r = launch.row_args;
  const std::int64_t row_bytes = a.size * element_size(p.x_type);
  const bool all_aligned =
      aligned(a.x) && aligned(a.residual) && aligned(a.y) && aligned(a.sum) && aligned(launch.gate.data);
  const bool in_rows = !sizes.float64 && a.inner == 1 && row_bytes % kChunkBytes == 0 &&
                       row_bytes / kChunkBytes <= kMostChunks && (all_aligned || has_more) &&
                       fit_rows(a.scale, p.x_type, a.outer, r.scale) && fit_rows(a.bias, p.x_type, a.outer, r.bias);
  if (!in_rows) {
    plan_strided(p, sizes, gate != nullptr, device, launch);
    if (has_more) launch.output_values = output_values(p.x_type, sizes.float64);
    if (gate) launch.gated_values = gated_values(p.x_type, sizes.float64);
    if (has_more || gate) launch.strided = nullptr;
    return RMS_NORM_OK;
  }
  r.x = a.x;
  r.residual = a.residual;
  r.y = a.y;
  r.sum = a.sum;
  r.statistic = a.statistic;
  r.outer = a.outer;
  r.measured = a.measured;
  r.chunks = static_cast<std::int32_t>(row_bytes / kChunkBytes);
  r.round_type = a.round_type;
  if (has_more) launch.output_rows = output_rows(p.x_type);
  if (gate) launch.gated_rows = gated_rows(p.x_type);
  if (has_more || gate) {
    plan_other_rows(device, launch);
  } else {
    plan_rows(row_kernels(p, r, a.size), device, launch);
  }
  return RMS_NORM_OK;
}

}  // namespace cuda
}  // namespace rmsnorm_deploy
