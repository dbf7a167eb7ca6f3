"""The names that the library offers: the kernels' contract, and what onnxruntime calls. Programs are built on them."""

EXPORTED = {
    "RegisterCustomOps",
    "rmsnorm_deploy_cpu_isa",
    "rmsnorm_deploy_cpu_isa_at",
    "rmsnorm_deploy_cpu_run",
    "rmsnorm_deploy_cpu_run_gated",
    "rmsnorm_deploy_cpu_set_isa",
    "rmsnorm_deploy_cuda_architectures",
    "rmsnorm_deploy_cuda_error_text",
    "rmsnorm_deploy_cuda_run",
    "rmsnorm_deploy_cuda_run_gated",
    "rmsnorm_deploy_cuda_version",
    "rmsnorm_deploy_error_text",
}
