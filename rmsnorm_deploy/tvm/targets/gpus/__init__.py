"""One file for each kind of GPU; :mod:`rmsnorm_deploy.tvm.targets.registry` finds them."""
