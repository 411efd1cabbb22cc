// The kernel tables: built once, on first use.
#include "halfstep/core/kernels.h"

#include "halfstep/core/error.h"

namespace halfstep {
namespace {

KernelTable make_table(void (*register_kernels)(KernelTable&)) {
  KernelTable table{};
  register_kernels(table);
  return table;
}

const KernelTable& table_of(DeviceType type) {
  static const KernelTable cpu = make_table(register_cpu_kernels);
  if (type == DeviceType::CPU) return cpu;
  static const KernelTable cuda = make_table(register_cuda_kernels);
  return cuda;
}

}  // namespace

bool is_available(Device device) { return table_of(device.type).allocate != nullptr; }

const KernelTable& kernels(Device device) {
  const KernelTable& table = table_of(device.type);
  HS_CHECK(table.allocate, DeviceError, "device", device.str(),
           " asked for; this build has no CUDA, so only cpu is available");
  return table;
}

}  // namespace halfstep
