// One norm, checked and laid out: which kernel runs, over which units of work, with scale and bias as that kernel wants
// them. The contract's entry point and the onnxruntime binding share it; the binding runs ranges of units in parallel.
#ifndef RMSNORM_DEPLOY_CPU_PLAN_H_
#define RMSNORM_DEPLOY_CPU_PLAN_H_

#include <cstdint>

#include "../contract/outputs.h"
#include "../include/rms_norm.h"
#include "table.h"
#include "weights.h"

namespace rmsnorm_deploy {

// Where the tensors of a call lie. A plan is for those of any call whose params are otherwise the same.
struct Tensors {
  const void* x = nullptr;
  const void* residual = nullptr;
  void* y = nullptr;
  void* sum = nullptr;
  void* quantised = nullptr;
  const void* quantised_scale = nullptr;
  const void* zero_point = nullptr;
  float* least = nullptr;
  float* most = nullptr;

  Tensors() = default;
  explicit Tensors(const rms_norm_params& p)
      : x(p.x),
        residual(p.residual),
        y(p.y),
        sum(p.sum),
        quantised(p.quantised),
        quantised_scale(p.quantised_scale),
        zero_point(p.zero_point),
        least(p.least),
        most(p.most) {}

  void put(rms_norm_params& p) const {
    p.x = x;
    p.residual = residual;
    p.y = y;
    p.sum = sum;
    p.quantised = quantised;
    p.quantised_scale = quantised_scale;
    p.zero_point = zero_point;
    p.least = least;
    p.most = most;
  }
};

// Whether none of them is beyond kMostModerate.
bool all_moderate(const float* values, std::int64_t count) noexcept;

class Plan {
 public:
  // Check `params` and prepare to run it. `already_rounded`: scale and bias hold values of round_type, so that rounding
  // them again would change nothing. `moderate`: all_moderate() of the scale, so that no value of it is looked at.
  // Returns a code of the contract; the plan is usable on RMS_NORM_OK only.
  //
  // Throws nothing. `params`, the scale and the bias must outlive the plan.
  int prepare(const rms_norm_params& params, bool already_rounded, bool moderate = false) noexcept;

  // Number of units of work; they can run in any order and at the same time.
  std::int64_t units() const noexcept { return units_; }

  // How much work one unit is: the values of x that it covers. In float64 arithmetic each counts as four, by its time.
  std::int64_t unit_work() const noexcept { return unit_values_ * (float64_ ? 4 : 1); }

  // Whether it matters where the tensors lie that it was prepared for.
  bool depends_on_tensors() const noexcept { return far_; }

  void run(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept;

  // The same in three steps, for a scale and a zero point of `quantised` that follow from the range of y. The first
  // computes `sum`, and what is kept of each row from `begin` on. The second, of all rows, widens `least` and `most` to
  // the ends of y; zero counts as a value. The third reads what quantised_scale and zero_point hold by then, and does
  // the rest. Only where has_ranges().
  bool has_ranges() const noexcept { return bytes_ && !apart_; }
  std::int64_t pieces() const noexcept;  // of one row
  void run_ranges(const Tensors& t, std::int64_t begin, std::int64_t end, const RowFactors& factors,
                  const PieceEnds& ends) const noexcept;
  void widen_range(const Tensors& t, const RowFactors& factors, const PieceEnds& ends, float* least,
                   float* most) const noexcept;
  void run_outputs(const Tensors& t, std::int64_t begin, std::int64_t end, const RowFactors& factors) const noexcept;

 private:
  bool whole_lines(const void* output) const noexcept;
  template <typename Args>
  Args args_at(const Tensors& t, std::int64_t skip) const noexcept;
  void run_rows(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept;
  void prepare_outputs(const Sizes& sizes, bool moderate) noexcept;
  template <typename Pointer>
  Pointer row_of(RowTensor tensor, Pointer base, std::int64_t row) const noexcept;
  void run_columns(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept;
  void run_float64(const Tensors& t, std::int64_t begin, std::int64_t end) const noexcept;

  const rms_norm_params* params_ = nullptr;
  const KernelTable* kernels_ = nullptr;
  bool float64_ = false;    // arithmetic in float64
  std::int64_t outer_ = 0;  // product of the dimensions before the normalised ones
  std::int64_t size_ = 0;   // of the normalised ones
  std::int64_t inner_ = 0;  // of those behind
  std::int64_t measured_ = 0;
  std::int64_t same_weights_ = 1;  // this many consecutive outer positions share scale and bias
  std::int64_t tiles_ = 1;         // units for each outer position where inner > 1
  std::int64_t units_ = 0;
  std::int64_t unit_values_ = 0;
  std::int64_t unit_bytes_ = 0;
  bool outputs_ = false;  // rows lie apart, or their results do not just go into y of x's type
  Rows rows_;             // where they lie; set where outputs_
  bool apart_ = false;    // they do lie apart
  bool bytes_ = false;    // float32 becomes 8 bits before it is stored
  bool far_ = false;      // outputs are written past the caches
  int element_ = 0;
  int mode_ = 0;
  int rounding_ = 0;
  Attributes attributes_;
  Weights scale_;
  Weights bias_;
};

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_CPU_PLAN_H_
