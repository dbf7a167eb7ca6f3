// A call of the kernels' contract, as far as a node's attributes and the shape of X say what it is.
#ifndef RMSNORM_DEPLOY_ORT_OURS_PARAMS_H_
#define RMSNORM_DEPLOY_ORT_OURS_PARAMS_H_

#include <cstdint>

#include "../custom_op.h"
#include "attributes.h"

namespace rmsnorm_deploy {

// Element type of the arithmetic, which is also that of converted constants.
std::int32_t arithmetic_of(const NormAttributes& attributes, const Types& types);

// Everything but the tensors and the strides of scale and bias; long arrays are set as far as they are used.
void set_attributes(const Node& node, const NormAttributes& attributes, const Types& types, const Shape& x,
                    rms_norm_params& params);

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_OURS_PARAMS_H_
