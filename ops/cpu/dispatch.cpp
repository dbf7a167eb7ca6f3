#include "dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "../include/rms_norm.h"

// The build lists the instruction sets that the library has kernels for, best first: as in TABLE(avx2) TABLE(portable).
#if !defined(RMSNORM_DEPLOY_TABLES)
#error "RMSNORM_DEPLOY_TABLES is not defined; see instruction_set() in CMakeLists.txt"
#endif

namespace rmsnorm_deploy {

#define TABLE(name) extern const KernelTable name##_kernels;
RMSNORM_DEPLOY_TABLES
#undef TABLE

namespace {

#define TABLE(name) &name##_kernels,
constexpr const KernelTable* kTables[] = {RMSNORM_DEPLOY_TABLES};
#undef TABLE

std::atomic<const KernelTable*> chosen{nullptr};

const KernelTable* choose(const char* name) {
  for (const KernelTable* table : kTables) {
    const bool wanted = !name || !*name || std::strcmp(name, table->name) == 0;
    if (wanted && table->usable()) return table;
  }
  return nullptr;
}

}  // namespace

const KernelTable* kernels() noexcept {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  if (!table) {
    // Two threads may both come here at the same time; they find the same answer.
    table = choose(std::getenv("RMSNORM_DEPLOY_ISA"));
    if (table) chosen.store(table, std::memory_order_release);
  }
  return table;
}

}  // namespace rmsnorm_deploy

extern "C" {

const char* rmsnorm_deploy_cpu_isa(void) {
  const rmsnorm_deploy::KernelTable* table = rmsnorm_deploy::kernels();
  return table ? table->name : nullptr;
}

int rmsnorm_deploy_cpu_set_isa(const char* name) {
  if (!name || !*name) {
    rmsnorm_deploy::chosen.store(nullptr, std::memory_order_release);
    return rmsnorm_deploy::kernels() ? RMS_NORM_OK : RMS_NORM_BAD_ISA;
  }
  const rmsnorm_deploy::KernelTable* table = rmsnorm_deploy::choose(name);
  if (!table) return RMS_NORM_BAD_ISA;
  rmsnorm_deploy::chosen.store(table, std::memory_order_release);
  return RMS_NORM_OK;
}

const char* rmsnorm_deploy_cpu_isa_at(int index, int* usable) {
  constexpr int count = static_cast<int>(sizeof rmsnorm_deploy::kTables / sizeof rmsnorm_deploy::kTables[0]);
  if (index < 0 || index >= count) return nullptr;
  if (usable) *usable = rmsnorm_deploy::kTables[index]->usable() ? 1 : 0;
  return rmsnorm_deploy::kTables[index]->name;
}

}  // extern "C"
