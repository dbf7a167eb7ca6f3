// One double for each lane, in two registers. The including file has defined Vector, Pair (half as many doubles) with
// its store, and lower_half and upper_half, which widen the lanes of a Vector.
#ifndef RMSNORM_DEPLOY_CPU_ISA_PAIR_H_
#define RMSNORM_DEPLOY_CPU_ISA_PAIR_H_

namespace {

struct Wide {
  Pair lower;
  Pair upper;
};

INLINE Wide wide_zero() { return {Pair{}, Pair{}}; }
INLINE Wide wide_add(Vector v, Wide total) { return {lower_half(v) + total.lower, upper_half(v) + total.upper}; }
INLINE void wide_store(double* p, Wide w) {
  store(p, w.lower);
  store(p + kLanes / 2, w.upper);
}

}  // namespace

#endif  // RMSNORM_DEPLOY_CPU_ISA_PAIR_H_
