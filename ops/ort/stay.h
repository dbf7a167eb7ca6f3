// Keeping this library in its process.
#ifndef RMSNORM_DEPLOY_ORT_STAY_H_
#define RMSNORM_DEPLOY_ORT_STAY_H_

namespace rmsnorm_deploy {

// Never unload this library: onnxruntime unloads it with the last session options that hold it, and what is made once
// for a process would be made, and lost, again with the next. On Linux the file itself says so.
void stay_loaded() noexcept;

}  // namespace rmsnorm_deploy

#endif  // RMSNORM_DEPLOY_ORT_STAY_H_
